/* Model folders whose files are sound and do not fit together: each gives one clear error that names key or tensor. */
#include "broken.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DOWN "model.layers.0.mlp.down_proj.weight"

static void expect_refused(const char *folder, const char *word, const char *word2)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *model = tn_model_open(folder, NULL, &err);
    ck_assert_msg(model == NULL, "a model that lacks '%s' is accepted", word);
    broken_expect(&err, TN_E_INPUT, word, word2, NULL);
}

/* ---- config.json --------------------------------------------------------------------------- */

static const struct {
    const char *model, *key, *value, *word, *word2;
} configs[] = {
    {"llama", "model_type", NULL, "'model_type'", "missing"},
    {"llama", "model_type", "\"no_such_type\"", "'no_such_type'", "docs/models.md lists"},
    {"llama", "model_type", "7", "'model_type'", "a string"},
    {"llama", "architectures", "[\"LlamaForTokenClassification\"]", "'LlamaForTokenClassification'",
     "LlamaForCausalLM"},
    {"llama", "quantization_config", "{\"quant_method\": \"exl2\"}", "quantization_config.quant_method",
     "is 'exl2'; supported are fp8, compressed-tensors, gptq, awq, mxfp4, bitsandbytes, modelopt"},
    {"llama", "quantization_config", "{\"bits\": 4}", "quantization_config.quant_method", "is ''"},
    {"llama", "quantization_config", "{\"quant_method\": \"gptq\"}", "quantization_config.bits", "is missing"},
    {"llama", "quantization_config", "{\"quant_method\": \"gptq\", \"bits\": 5}", "quantization_config.bits", "is 5"},
    {"llama", "quantization_config",
     "{\"quant_method\": \"gptq\", \"bits\": 4, \"dynamic\": {\"-:.*attn.*\": {}, \"lm_head\": {\"bits\": 8}}}",
     "lm_head", "single modules"},
    {"llama", "quantization_config", "{\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\"}",
     "quantization_config.version", "gemv"},
    {"llama", "quantization_config", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A8_AWQ\"}",
     "quantization_config.quant_algo", "W4A8_AWQ"},
    {"llama", "quantization_config", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, -1]}",
     "quantization_config.weight_block_size", "above 0"},
    {"llama", "quantization_config",
     "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 1}}}}",
     "num_bits", "is 1"},
    {"llama", "quantization_config", "{\"quant_method\": \"compressed-tensors\", \"format\": \"marlin-24\"}",
     "quantization_config.format", "marlin-24"},
    {"llama", "hidden_size", NULL, "'hidden_size'", "missing"},
    {"llama", "hidden_size", "null", "'hidden_size'", "missing"},
    {"llama", "intermediate_size", NULL, "'intermediate_size'", "missing"},
    {"llama", "num_hidden_layers", NULL, "'num_hidden_layers'", "missing"},
    {"llama", "num_attention_heads", NULL, "'num_attention_heads'", "missing"},
    {"llama", "vocab_size", NULL, "'vocab_size'", "missing"},
    {"llama", "hidden_size", "\"64\"", "'hidden_size'", "an integer"},
    {"llama", "hidden_size", "64.5", "'hidden_size'", "an integer"},
    {"llama", "hidden_size", "0", "'hidden_size'", "0"},
    {"llama", "hidden_size", "-64", "'hidden_size'", "-64"},
    {"llama", "hidden_size", "1000000000000", "'hidden_size'", "1000000000000"},
    {"llama", "intermediate_size", "1e15", "'intermediate_size'", "1000000000000000"},
    {"llama", "num_hidden_layers", "1000000000", "'num_hidden_layers'", "1000000000"},
    {"llama", "num_hidden_layers", "[2]", "'num_hidden_layers'", "a list"},
    {"llama", "num_attention_heads", "9223372036854775807", "'num_attention_heads'", "9223372036854775807"},
    {"llama", "num_key_value_heads", "3", "num_key_value_heads", "4"},
    {"llama", "vocab_size", "9223372036854775807", "'vocab_size'", "9223372036854775807"},
    {"llama", "head_dim", "1000000000", "'head_dim'", "1000000000"},
    {"llama", "max_position_embeddings", "-1", "'max_position_embeddings'", "-1"},
    {"llama", "max_position_embeddings", "9223372036854775807", "'max_position_embeddings'", "9223372036854775807"},
    {"llama", "rms_norm_eps", "\"small\"", "'rms_norm_eps'", "a number"},
    {"llama", "rms_norm_eps", "-1", "rms_norm_eps", "-1"},
    {"llama", "hidden_act", "\"swish_of_tomorrow\"", "swish_of_tomorrow", "hidden_act"},
    {"zamba2", "hidden_act", "\"xielu\"", "shared_transformer.feed_forward", "xielu"},
    {"llava", "projector_hidden_act", "\"xielu\"", "multi_modal_projector", "xielu"},
    {"llama", "tie_word_embeddings", "\"yes\"", "'tie_word_embeddings'", "a boolean"},
    {"llama", "attention_bias", "1", "'attention_bias'", "a boolean"},
    {"llama", "rope_parameters", "3", "'rope_parameters'", "an object"},
    {"llama", "rope_parameters/rope_type", "\"spiral\"", "spiral", "default"},
    {"llama", "rope_parameters/rope_theta", "-1", "rope_theta", "-1"},
    {"llama", "rope_parameters/rope_theta", "\"10000\"", "rope_parameters.rope_theta", "a number"},
    {"llama", "dtype", "\"int8\"", "'int8'", "bf16"},
    {"llama", "eos_token_id", "\"end\"", "'eos_token_id'", "an integer"},
    {"llama_llama3_rope", "rope_scaling/factor", "\"x\"", "rope_scaling.factor", "a number"},
    {"llama_llama3_rope", "rope_scaling/factor", "0", "factor", "0"},
    {"qwen2_sliding", "sliding_window", "0", "'sliding_window'", "0"},
    {"qwen3_moe", "num_experts", "1000000000000", "'num_experts'", "1000000000000"},
    {"qwen3_moe", "num_experts_per_tok", "0", "'num_experts_per_tok'", "0"},
    {"qwen3_moe", "num_experts_per_tok", "9", "num_experts_per_tok", "9"},
    {"qwen3_moe", "decoder_sparse_step", "0", "'decoder_sparse_step'", "0"},
    {"gemma2", "hidden_activation", "\"swish_of_tomorrow\"", "'hidden_activation'", "gelu_pytorch_tanh"},
    {"gemma2", "query_pre_attn_scalar", "0", "'query_pre_attn_scalar'", "0"},
    {"gemma2", "attn_logit_softcapping", "-50", "'attn_logit_softcapping'", "-50"},
    {"gemma2", "final_logit_softcapping", "\"30\"", "'final_logit_softcapping'", "a number"},
    {"gemma2", "use_bidirectional_attention", "true", "'use_bidirectional_attention'", "false"},
    {"gemma2", "layer_types", "[\"sliding_attention\", \"full_attention\"]", "'layer_types'", "2"},
    {"gemma2", "layer_types", "[\"full_attention\", \"chunked_attention\", \"full_attention\"]", "'layer_types'",
     "sliding_attention"},
    {"mixtral", "num_local_experts", "0", "'num_local_experts'", "0"},
    {"mixtral", "sliding_window", "-1", "'sliding_window'", "-1"},
    {"qwen3_moe", "moe_intermediate_size", "\"24\"", "'moe_intermediate_size'", "an integer"},
    {"llama_linear", "rope_parameters/factor", NULL, "factor", "is missing, and this rope_type needs it"},
    {"llama_llama3_rope", "rope_scaling/low_freq_factor", "9", "low_freq_factor", "must lie between 0 and"},
    {"llama_yarn", "rope_parameters/beta_fast", "-1", "beta_fast", "they must be positive"},
    {"phi3_longrope", "rope_parameters/short_factor", "[1, 1, 1, 1, 1, 0]", "short_factor", "all must be positive"},
    {"phi3_longrope", "rope_parameters/partial_rotary_factor", "1.5", "partial_rotary_factor", "at most 1"},
    {"phi3_longrope", "rope_parameters/partial_rotary_factor", "-1e300", "partial_rotary_factor", "at most 1"},
    {"glm", "rope_parameters/partial_rotary_factor", "0.1", "head_dim", "a rotary size of 1, which is no even number"},
    {"hunyuan_v1_moe", "rope_parameters", "{\"rope_type\": \"dynamic\", \"factor\": 1, \"alpha\": -1}", "alpha",
     "is -1, it must be positive"},
    {"mistral4", "rope_parameters/llama_4_scaling_beta", NULL, "llama_4_scaling_beta", "is missing"},
    {"mistral4", "rope_parameters/partial_rotary_factor", "0.25", "partial_rotary_factor", "qk_rope_head_dim is"},
    {"deepseek_v3", "n_group", "3", "n_group", "does not divide 16 experts"},
    {"deepseek_v3", "topk_group", "5", "topk_group", "is 5 of 4 groups"},
    {"deepseek_v3", "num_experts_per_tok", "9", "num_experts_per_tok", "groups have 8 experts"},
    {"deepseek_v3", "num_experts_per_tok", "17", "num_experts_per_tok", "n_routed_experts only 16"},
    {"deepseek_v2", "n_group", NULL, "n_group", "group_limited_greedy needs it"},
    {"gemma3n_text", "intermediate_size", "[112, 112]", "intermediate_size", "has 2 entries"},
    {"gemma3n_text", "intermediate_size", "[112, 112, 0, 112, 112]", "intermediate_size", "is 0 for layer 2"},
    {"gemma3n_text", "activation_sparsity_pattern", "[0, 0, 0, 1, 0]", "activation_sparsity_pattern",
     "is 1 for layer 3, it must be 0 or more and below 1"},
    {"hunyuan_v1_moe", "moe_topk", "9", "moe_topk", "is 9, of 8 experts"},
    {"smollm3", "no_rope_layers", "[1]", "no_rope_layers", "has 1 entries, num_hidden_layers is 2"},
    {"llama4_text", "no_rope_layers", "[1, 1]", "no_rope_layers", "has 2 entries, num_hidden_layers is larger"},
    {"granite", "logits_scaling", "0", "logits_scaling", "is 0"},
    {"qwen3_next", "linear_num_value_heads", "3", "linear_num_value_heads", "no multiple of linear_num_key_heads 2"},
    {"qwen3_vl", "text_config/rope_parameters/mrope_section", "[8, -4, 4]", "mrope_section", "-4, which is negative"},
    {"qwen3_vl", "vision_config/deepstack_visual_indexes", "[0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]",
     "deepstack_visual_indexes", "has 18 entries"},
};

START_TEST(a_wrong_configuration)
{
    char *folder = broken_copy(configs[_i].model);
    broken_json(folder, "config.json", configs[_i].key, configs[_i].value);
    tn_error err = TN_ERROR_INIT;
    tn_model *model = tn_model_open(folder, NULL, &err);
    ck_assert_msg(model == NULL, "%s = %s is accepted", configs[_i].key, configs[_i].value);
    broken_expect(&err, TN_E_INPUT, "config.json", configs[_i].word, configs[_i].word2, NULL);
}
END_TEST

START_TEST(no_configuration)
{
    char *folder = broken_copy("llama"), *path = tempdir_at(folder, "config.json");
    tempdir_write(path, "{\"hidden_size\": 64,", 19);
    expect_refused(folder, "config.json", "JSON");
    ck_assert_int_eq(unlink(path), 0);
    expect_refused(folder, "/config.json", "is not there, nor is tokenizer.json");
    tempdir_put(folder, "tokenizer.model", "");
    expect_refused(folder, "/config.json", "No such file");
    expect_refused("no/such/folder", "no/such/folder", "");
    expect_refused("tests/data/models/llama/config.json", "tests/data/models/llama/config.json", "folder");
}
END_TEST

/* ---- configuration and tensors ------------------------------------------------------------- */

static const struct {
    const char *key, *value, *word;
} mismatches[] = {
    {"num_hidden_layers", "3", "model.layers.2."},
    {"vocab_size", "265", "model.embed_tokens.weight"},
    {"hidden_size", "68", "68]"},
    {"intermediate_size", "105", "model.layers.0.mlp."},
    {"num_key_value_heads", "4", "_proj.weight"},
    {"head_dim", "16", "_proj.weight"},
    {"attention_bias", "true", "_proj.bias"},
    {"mlp_bias", "true", "_proj.bias"},
    {"model_type", "\"qwen3\"", "Llama"},
};

START_TEST(tensors_of_another_model)
{
    char *folder = broken_copy("llama");
    broken_json(folder, "config.json", mismatches[_i].key, mismatches[_i].value);
    expect_refused(folder, mismatches[_i].word, "");
}
END_TEST

START_TEST(a_tensor_of_the_wrong_shape_or_type)
{
    static const struct {
        const char *path, *value, *word;
    } lies[] = {
        {DOWN "/shape", "[104,64]", "[104,64]"},
        {DOWN "/shape", "[6656]", "[6656]"},
        {DOWN "/shape", "[64,104,1]", "[64,104,1]"},
        {DOWN "/dtype", "\"I32\"", "i32"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        char *folder = broken_copy("llama");
        broken_header(folder, "model.safetensors", lies[i].path, lies[i].value);
        expect_refused(folder, DOWN, lies[i].word);
    }
}
END_TEST

START_TEST(a_missing_tensor)
{
    static const char *const names[][2] = {{"llama", DOWN},
                                           {"llama", "model.embed_tokens.weight"},
                                           {"llama", "model.norm.weight"},
                                           {"llama", "lm_head.weight"},
                                           {"llama", "model.layers.1.self_attn.k_proj.weight"},
                                           {"mixtral", "model.layers.0.block_sparse_moe.gate.weight"},
                                           {"mixtral", "model.layers.1.block_sparse_moe.experts.7.w3.weight"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *folder = broken_copy(names[i][0]);
        broken_remove_tensor(folder, "model.safetensors", names[i][1]);
        expect_refused(folder, names[i][1], "");
    }
}
END_TEST

/* Files that test_bad_files breaks in every way reach the caller of tn_model_open with the same words. */
START_TEST(broken_files_are_reported_through)
{
    char *folder = broken_copy("qwen2");
    broken_truncate(folder, "model-00002-of-00002.safetensors", 1000);
    expect_refused(folder, "model-00002-of-00002.safetensors", "truncated");
    folder = broken_copy("llama");
    char *path = tempdir_at(folder, "model.safetensors");
    ck_assert_int_eq(unlink(path), 0);
    expect_refused(folder, folder, "model.safetensors");
}
END_TEST

/* The largest cache that anyone may ask for is more than any address space holds: an error, and the model goes on. */
/* ---- other things in a checkpoint's place --------------------------------------------------- */

#define LFS "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1073741824\n"

START_TEST(a_pointer_of_git_lfs)
{
    static const char *const names[] = {
        "config.json",    "model.safetensors", "model.safetensors.index.json", "model-00002-of-00002.safetensors",
        "tokenizer.json", "tokenizer.model"};
    static const char says[] = ": is a git-lfs pointer, not the file itself; run `git lfs pull` in ";
    for (int i = 0; i < 6; i++) {
        tn_error err = TN_ERROR_INIT;
        char *folder = broken_copy(i == 2 || i == 3 ? "qwen2" : "llama"), line[2048], told[2048];
        tempdir_put(folder, names[i], LFS);
        ck_assert(i < 4 ? !tn_model_open(folder, NULL, &err) : !tn_tokenizer_open(folder, &err));
        ck_assert_int_eq(err.code, TN_E_INPUT);
        snprintf(line, sizeof line, "%s/%s%s%s", folder, names[i], says, folder);
        snprintf(told, sizeof told, "%s: %s", err.where, err.message);
        ck_assert_str_eq(told, line);
    }
}
END_TEST

/* Files of a folder, and what is said of it; with config.json, too, which all but the adapter may have. */
static const struct {
    const char *files[2], *words[2];
} others[] = {
    {{"pytorch_model.bin", "training_args.bin"}, {"pickles (pytorch_model.bin), which are not read", "safetensors"}},
    {{"pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"},
     {"pickles (pytorch_model-00001-of-00002.bin)"}},
    {{"consolidated.00.pth", "params.json"}, {"pickles (consolidated.00.pth)", "a revision of the model"}},
    {{"model.pt", "model.gguf"}, {"pickles (model.pt)"}},
    {{"b-Q4_K_M.gguf", "a-Q8_0.gguf"}, {"GGUF; give the file itself, such as ", "/a-Q8_0.gguf"}},
    {{"adapter_model.safetensors", "adapter_config.json"},
     {"is an adapter (LoRA or another of PEFT's) for org/base-7b, not a model; merge it into that model"}},
    {{"adapter_model.bin", "adapter_config.json"}, {"for org/base-7b, not a model", "merge_and_unload()"}},
};

START_TEST(a_model_in_another_form)
{
    static const char config[] = "{\"model_type\": \"llama\", \"base_model_name_or_path\": \"org/base-7b\"}";
    char *folder = tempdir_new();
    for (int i = 0; i < 2; i++)
        tempdir_put(folder, others[_i].files[i], config);
    for (int with_config = 0; with_config < 2; with_config++) {
        tn_error err = TN_ERROR_INIT, of_text = TN_ERROR_INIT;
        if (with_config)
            tempdir_put(folder, "config.json", config);
        ck_assert_ptr_null(tn_model_open(folder, NULL, &err));
        broken_expect(&err, TN_E_INPUT, folder, others[_i].words[0], others[_i].words[1] ? others[_i].words[1] : "",
                      NULL);
        ck_assert_ptr_null(tn_tokenizer_open(folder, &of_text));
        broken_expect(&of_text, TN_E_INPUT, with_config ? "/tokenizer.json" : others[_i].words[0], NULL);
    }
}
END_TEST

/* What lies beside weights that are read is nobody's business. */
START_TEST(other_forms_beside_weights)
{
    static const char *const beside[] = {"pytorch_model.bin", "model.gguf", "adapter_config.json"};
    char *folder = broken_copy("llama");
    for (int i = 0; i < 3; i++)
        tempdir_put(folder, beside[i], "");
    test_model(folder, .dtype = NULL);
}
END_TEST

START_TEST(a_context_beyond_memory)
{
    char *folder = broken_copy("llama");
    broken_json(folder, "config.json", "max_position_embeddings", "2147483647");
    tn_error err = TN_ERROR_INIT;
    tn_model *model = test_model(folder, .dtype = NULL);
    tn_session_options o = {.size = sizeof o, .rows = 4096};
    ck_assert_ptr_null(tn_session_new(model, &o, &err));
    broken_expect(&err, TN_E_MEMORY, "context", NULL);
    tn_error_clear(&err);
    o = (tn_session_options){.size = sizeof o, .context = 64};
    tn_session *session = tn_session_new(model, &o, &err);
    ck_assert_msg(session != NULL, "%s: %s", err.where, err.message);
    tn_session_free(session);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("bad_models", 60);
    tcase_add_loop_test(tc, a_wrong_configuration, 0, sizeof configs / sizeof configs[0]);
    suite_add(tc, no_configuration);
    tcase_add_loop_test(tc, tensors_of_another_model, 0, sizeof mismatches / sizeof mismatches[0]);
    suite_add(tc, a_tensor_of_the_wrong_shape_or_type, a_missing_tensor, broken_files_are_reported_through,
              a_pointer_of_git_lfs);
    tcase_add_loop_test(tc, a_model_in_another_form, 0, sizeof others / sizeof others[0]);
    suite_add(tc, other_forms_beside_weights, a_context_beyond_memory);
    return suite_run();
}
