/* A config.json made of the metadata of a .gguf: what is copied, what the architecture's name says, what is refused. */
#include "base/gguf.h"
#include "broken.h"
#include "checkpoint/checkpoint.h"
#include "gguf_model.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static char *path;
static gguf_model *f;
static tn_status status;
static tn_error err;

static void setup(void)
{
    path = tempdir_at(tempdir_new(), "m.gguf");
    f = gguf_model_new();
    status = TN_OK;
    err = (tn_error)TN_ERROR_INIT;
}

/* The keys of every model behind those that the test has added. */
static void add_usual(const char *arch)
{
    static const struct {
        const char *key;
        int64_t value;
    } keys[] = {{"block_count", 4},          {"embedding_length", 64},       {"context_length", 128},
                {"attention.head_count", 4}, {"attention.head_count_kv", 2}, {"feed_forward_length", 96}};
    char key[64];
    gguf_model_text(f, "general.architecture", arch);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, keys[i].key);
        gguf_model_integer(f, key, keys[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_model_number(f, key, 1e-6);
    gguf_model_tensor(f, "token_embd.weight", TN_Q8_0, 2, (int64_t[]){10, 64}, NULL);
}

static config_file *make(void)
{
    gguf_model_write(f, path);
    gguf *file = gguf_open(path, &err);
    ck_assert_msg(file != NULL, "%s: %s", err.where, err.message);
    config_file *config = gguf_config_read(file, &err);
    gguf_close(file);
    return config;
}

/* Of the file with the usual keys. */
static config_reader read_usual(const char *arch, config_file **config)
{
    add_usual(arch);
    *config = make();
    ck_assert_msg(*config != NULL, "%s: %s", err.where, err.message);
    return config_root(*config, &status, &err);
}

START_TEST(what_the_file_says)
{
    static const char *const tokens[] = {"a", "<|im_end|>", "<|eot_id|>", "b"};
    config_file *config;
    gguf_model_number(f, "llama.rope.freq_base", 5e5);
    gguf_model_integer(f, "tokenizer.ggml.eos_token_id", 3);
    gguf_model_texts(f, "tokenizer.ggml.tokens", 4, tokens);
    gguf_model_integers(f, "tokenizer.ggml.token_type", 4, (int32_t[]){1, 3, 1, 3}); /* <|eot_id|> is a word */
    config_reader c = read_usual("llama", &config), rope = config_child(&c, "rope_parameters");
    ck_assert_str_eq(config_str(&c, "model_type", ""), "llama");
    ck_assert_str_eq(config_list_str(&c, "architectures", 0), "LlamaForCausalLM");
    ck_assert_int_eq(config_i64(&c, "num_hidden_layers", 0, 0, 99), 4);
    ck_assert_int_eq(config_i64(&c, "vocab_size", 0, 0, 99), 10);
    ck_assert_int_eq(config_i64(&c, "head_dim", 0, 0, 99), 16);
    ck_assert_int_eq(config_i64(&c, "num_key_value_heads", 0, 0, 99), 2);
    ck_assert(config_f64(&c, "rms_norm_eps", 0) == 1e-6); /* and not the nearest float */
    ck_assert(config_bool(&c, "tie_word_embeddings", false));
    ck_assert(config_bool(&c, "gguf_rope_pairs", false));
    ck_assert(!config_bool(&c, "attention_bias", true));
    ck_assert_str_eq(config_str(&c, "dtype", ""), "bfloat16");
    ck_assert(config_f64(&rope, "rope_theta", 0) == 5e5);
    ck_assert_int_eq(config_list(&c, "eos_token_id"), 2);
    ck_assert_int_eq(config_list_i64(&c, "eos_token_id", 0), 3);
    ck_assert_int_eq(config_list_i64(&c, "eos_token_id", 1), 1);
    ck_assert_msg(status == TN_OK, "%s", err.message);
    config_close(config);
}
END_TEST

START_TEST(what_tensors_say)
{
    static const float factors[8] = {1, 1, 1, 1, 2, 4, 8, 8};
    config_file *config;
    gguf_model_tensor(f, "rope_freqs.weight", TN_F32, 1, (int64_t[]){8}, factors);
    gguf_model_tensor(f, "output.weight", TN_F16, 2, (int64_t[]){10, 64}, NULL);
    gguf_model_tensor(f, "blk.0.attn_q.bias", TN_F32, 1, (int64_t[]){64}, NULL);
    gguf_model_tensor(f, "token_embd.weight", TN_F16, 2, (int64_t[]){10, 64}, NULL);
    gguf_model_without(f, "token_embd.weight");
    config_reader c = read_usual("llama", &config), rope = config_child(&c, "rope_parameters");
    ck_assert(!config_bool(&c, "tie_word_embeddings", true));
    ck_assert(config_bool(&c, "attention_bias", false));
    ck_assert_str_eq(config_str(&c, "dtype", ""), "float16");
    ck_assert_str_eq(config_str(&rope, "rope_type", ""), "longrope");
    ck_assert(config_f64(&rope, "attention_factor", 0) == 1);
    ck_assert(config_list_f64(&rope, "short_factor", 5) == 4 && config_list_f64(&rope, "long_factor", 7) == 8);
    ck_assert_msg(status == TN_OK, "%s", err.message);
    config_close(config);
}
END_TEST

/* What the file does not say: the pattern of windows, the rotation of local layers, the factor of scores. */
START_TEST(what_gemma_implies)
{
    config_file *config;
    gguf_model_integer(f, "gemma3.attention.sliding_window", 8);
    gguf_model_integer(f, "gemma3.attention.key_length", 32);
    gguf_model_number(f, "gemma3.rope.freq_base", 1e6);
    gguf_model_text(f, "gemma3.rope.scaling.type", "linear");
    gguf_model_number(f, "gemma3.rope.scaling.factor", 8);
    gguf_model_integer(f, "gemma3.block_count", 7);
    gguf_model_without(f, "gemma3.block_count");
    config_reader c = read_usual("gemma3", &config), both = config_child(&c, "rope_parameters");
    config_reader all = config_child(&both, "full_attention"), local = config_child(&both, "sliding_attention");
    for (int64_t i = 0; i < 7; i++)
        ck_assert_str_eq(config_list_str(&c, "layer_types", i), i == 5 ? "full_attention" : "sliding_attention");
    ck_assert_int_eq(config_i64(&c, "query_pre_attn_scalar", 0, 0, 99), 32);
    ck_assert(config_f64(&all, "rope_theta", 0) == 1e6 && config_f64(&local, "rope_theta", 0) == 1e4);
    ck_assert(config_f64(&all, "factor", 0) == 8 && !config_has(&local, "factor"));
    ck_assert(config_is_null(&c, "final_logit_softcapping"));
    ck_assert_msg(status == TN_OK, "%s", err.message);
    config_close(config);
}
END_TEST

/* One name, two classes. */
START_TEST(what_deepseek2_is)
{
    config_file *config;
    bool is_v3 = _i;
    gguf_model_integer(f, "deepseek2.expert_gating_func", is_v3 ? 2 : 1);
    gguf_model_integer(f, "deepseek2.rope.dimension_count", 16);
    gguf_model_integer(f, "deepseek2.attention.key_length_mla", 48);
    gguf_model_integer(f, "deepseek2.attention.value_length_mla", 32);
    gguf_model_text(f, "deepseek2.rope.scaling.type", "yarn");
    gguf_model_number(f, "deepseek2.rope.scaling.factor", 40);
    gguf_model_number(f, "deepseek2.rope.scaling.yarn_log_multiplier", 0.1);
    config_reader c = read_usual("deepseek2", &config), rope = config_child(&c, "rope_parameters");
    ck_assert_str_eq(config_str(&c, "model_type", ""), is_v3 ? "deepseek_v3" : "deepseek_v2");
    ck_assert_int_eq(config_bool(&c, "norm_topk_prob", !is_v3), is_v3);
    ck_assert(config_is_null(&c, "q_lora_rank"));
    ck_assert_int_eq(config_i64(&c, "qk_nope_head_dim", 0, 0, 99), 32);
    ck_assert_int_eq(config_i64(&c, "qk_rope_head_dim", 0, 0, 99), 16);
    ck_assert_int_eq(config_i64(&c, "v_head_dim", 0, 0, 99), 32);
    ck_assert_int_eq(config_i64(&c, "num_key_value_heads", 0, 0, 99), 4);
    ck_assert(config_f64(&rope, "mscale_all_dim", 0) == 1 && config_f64(&rope, "factor", 0) == 40);
    ck_assert_msg(status == TN_OK, "%s", err.message);
    config_close(config);
}
END_TEST

/* Factors for short and for long contexts, of the part of a head that rotates. */
START_TEST(factors_of_phi3)
{
    static const float shorter[6] = {1, 1, 1, 1, 1, 1}, longer[6] = {1, 2, 3, 4, 5, 6};
    config_file *config;
    gguf_model_integer(f, "phi3.rope.dimension_count", 12);
    gguf_model_integer(f, "phi3.rope.scaling.original_context_length", 32);
    gguf_model_number(f, "phi3.rope.scaling.attn_factor", 1.25);
    gguf_model_integer(f, "phi3.attention.sliding_window", 0);
    gguf_model_tensor(f, "rope_factors_short.weight", TN_F32, 1, (int64_t[]){6}, shorter);
    gguf_model_tensor(f, "rope_factors_long.weight", TN_F32, 1, (int64_t[]){6}, longer);
    config_reader c = read_usual("phi3", &config), rope = config_child(&c, "rope_parameters");
    ck_assert_str_eq(config_str(&rope, "rope_type", ""), "longrope");
    ck_assert(config_f64(&rope, "partial_rotary_factor", 0) == 0.75);
    ck_assert(config_f64(&rope, "attention_factor", 0) == 1.25);
    ck_assert(config_list_f64(&rope, "short_factor", 5) == 1 && config_list_f64(&rope, "long_factor", 5) == 6);
    ck_assert_int_eq(config_i64(&c, "original_max_position_embeddings", 0, 0, 99), 32);
    ck_assert(!config_has(&c, "sliding_window"));
    ck_assert_msg(status == TN_OK, "%s", err.message);
    config_close(config);
}
END_TEST

START_TEST(windows_layer_by_layer)
{
    config_file *config;
    gguf_model_integer(f, "gpt-oss.attention.sliding_window", 8);
    gguf_model_integers(f, "gpt-oss.attention.sliding_window_pattern", 4, (int32_t[]){0, 1, 1, 0});
    config_reader c = read_usual("gpt-oss", &config);
    for (int64_t i = 0; i < 4; i++)
        ck_assert_str_eq(config_list_str(&c, "layer_types", i), i % 3 ? "sliding_attention" : "full_attention");
    config_close(config);
}
END_TEST

START_TEST(equal_numbers_of_layers)
{
    config_file *config;
    gguf_model_integers(f, "llama.attention.head_count_kv", 4, (int32_t[]){1, 1, 1, 1});
    gguf_model_without(f, "llama.attention.head_count_kv");
    config_reader c = read_usual("llama", &config);
    ck_assert_int_eq(config_i64(&c, "num_key_value_heads", 0, 0, 99), 1);
    config_close(config);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------------------------ */

static void add_nothing(void)
{
}

static void add_unlike(void)
{
    gguf_model_integers(f, "llama.attention.head_count_kv", 4, (int32_t[]){1, 2, 1, 1});
}

static void add_scaling(void)
{
    gguf_model_text(f, "llama.rope.scaling.type", "dynamic");
}

static void add_value_length(void)
{
    gguf_model_integer(f, "llama.attention.value_length", 8);
}

static void add_partial(void)
{
    gguf_model_integer(f, "llama.rope.dimension_count", 8);
}

static void add_sections(void)
{
    gguf_model_integers(f, "llama.rope.dimension_sections", 3, (int32_t[]){2, 2, 4});
}

static void add_huge(void)
{
    gguf_model_integer(f, "llama.embedding_length", 4000000000);
}

static void add_word(void)
{
    gguf_model_text(f, "llama.attention.sliding_window", "none");
}

static void add_text(void)
{
    gguf_model_text(f, "llama.embedding_length", "64");
}

static void add_factors(void)
{
    gguf_model_tensor(f, "rope_freqs.weight", TN_F16, 1, (int64_t[]){8}, NULL);
}

static void add_no_number(void)
{
    gguf_model_tensor(f, "rope_freqs.weight", TN_F32, 1, (int64_t[]){1}, &(float){NAN});
}

static const struct {
    const char *without;
    void (*add)(void);
    const char *words[2];
} wrong[] = {
    {"general.architecture", add_nothing, {"'general.architecture' is missing", "not a model"}},
    {"llama.block_count", add_nothing, {"'llama.block_count' is missing", ""}},
    {"llama.attention.head_count", add_nothing, {"'llama.attention.head_count' is missing", ""}},
    {"llama.embedding_length", add_huge, {"'llama.embedding_length' is out of range", ""}},
    {"llama.embedding_length", add_text, {"'llama.embedding_length' is no integer", ""}},
    {NULL, add_word, {"'llama.attention.sliding_window' is no integer", ""}},
    {"llama.attention.layer_norm_rms_epsilon", add_nothing, {"layer_norm_rms_epsilon' is missing", ""}},
    {"token_embd.weight", add_nothing, {"'token_embd.weight'", "no matrix"}},
    {"llama.attention.head_count_kv", add_unlike, {"'llama.attention.head_count_kv' differs from layer to layer", ""}},
    {NULL, add_scaling, {"'llama.rope.scaling.type' is neither none, linear nor yarn", ""}},
    {NULL, add_value_length, {"'llama.attention.value_length' is not key_length", ""}},
    {NULL, add_partial, {"'llama.rope.dimension_count' is not that of a head", ""}},
    {NULL, add_sections, {"'llama.rope.dimension_sections' is there", ""}},
    {NULL, add_factors, {"tensor 'rope_freqs.weight' is no list of f32", ""}},
    {NULL, add_no_number, {"tensor 'rope_freqs.weight' has a factor that is no finite number", ""}},
};

START_TEST(what_is_wrong_is_named)
{
    wrong[_i].add();
    gguf_model_without(f, wrong[_i].without);
    add_usual("llama");
    ck_assert_ptr_null(make());
    broken_expect(&err, TN_E_INPUT, "m.gguf", wrong[_i].words[0], wrong[_i].words[1], NULL);
}
END_TEST

/* Scores that are neither softmax nor sigmoid are not taken for one of them. */
START_TEST(scores_that_are_not_known)
{
    gguf_model_integer(f, "deepseek2.expert_gating_func", 3);
    add_usual("deepseek2");
    ck_assert_ptr_null(make());
    broken_expect(&err, TN_E_INPUT, "m.gguf", "'deepseek2.expert_gating_func' is neither 1 (softmax) nor 2 (sigmoid)",
                  NULL);
}
END_TEST

START_TEST(an_architecture_that_is_not_known)
{
    add_usual("mamba2");
    ck_assert_ptr_null(make());
    broken_expect(&err, TN_E_INPUT, "m.gguf", "'general.architecture' is 'mamba2', which is not supported",
                  "deepseek2, gemma2", "qwen3moe", NULL);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("gguf_config", 0);
    tcase_add_checked_fixture(tc, setup, NULL);
    suite_add(tc, what_the_file_says, what_tensors_say, what_gemma_implies, factors_of_phi3, windows_layer_by_layer,
              equal_numbers_of_layers, scores_that_are_not_known, an_architecture_that_is_not_known);
    tcase_add_loop_test(tc, what_deepseek2_is, 0, 2);
    tcase_add_loop_test(tc, what_is_wrong_is_named, 0, sizeof wrong / sizeof *wrong);
    return suite_run();
}
