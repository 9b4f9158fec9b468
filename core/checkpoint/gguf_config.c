/* A config.json made of the metadata of a .gguf. */
#include "checkpoint/checkpoint.h"

#include "base/json_memory.h"
#include "checkpoint/gguf_arch.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct maker {
    const gguf *file;
    const gguf_arch *arch;
    json_t *root;
    tn_status status;
    tn_error *err;
} maker;

/* key: without the architecture before it. */
static void fail(maker *m, const char *key, const char *what)
{
    if (m->status == TN_OK)
        m->status = tn_fail(m->err, TN_E_INPUT, gguf_path(m->file, 0), "key '%s.%s' %s", m->arch->name, key, what);
}

/* Takes value. */
static void put_in(maker *m, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0 && m->status == TN_OK)
        m->status = tn_fail(m->err, TN_E_MEMORY, gguf_path(m->file, 0), "out of memory");
}

static void put(maker *m, const char *key, json_t *value)
{
    put_in(m, m->root, key, value);
}

/* ---- numbers -------------------------------------------------------------------------------------- */

/* The shortest decimal that is this float: what config.json said before it became one. */
static double shortest(double value)
{
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtof(text, NULL) == (float)value)
            return strtod(text, NULL);
    }
    return value;
}

/* false where it is absent. */
static bool number(const maker *m, const char *name, double *value)
{
    char key[128];
    if (!gguf_number(m->file, gguf_arch_key(m->arch, name, key), value))
        return false;
    *value = shortest(*value);
    return true;
}

/* Element 0 of an array whose elements are all the same. */
static bool same_integer(maker *m, const char *name, int64_t *value)
{
    char key[128];
    int64_t count = gguf_array(m->file, gguf_arch_key(m->arch, name, key)), other;
    if (count < 1 || !gguf_array_integer(m->file, key, 0, value))
        return false;
    for (int64_t i = 1; i < count; i++)
        if (!gguf_array_integer(m->file, key, i, &other) || other != *value)
            fail(m, name, "differs from layer to layer, which is not supported here");
    return m->status == TN_OK;
}

/* All of these are sizes and counts. */
static bool integer(maker *m, const char *name, int64_t *value)
{
    char key[128];
    if (!gguf_integer(m->file, gguf_arch_key(m->arch, name, key), value) && !same_integer(m, name, value))
        return false;
    if (*value < 0 || *value > INT32_MAX)
        fail(m, name, "is out of range");
    return m->status == TN_OK;
}

static int64_t integer_or(maker *m, const char *name, int64_t fallback)
{
    int64_t value = fallback;
    return integer(m, name, &value) ? value : fallback;
}

static int64_t made(const maker *m, const char *key)
{
    return json_integer_value(json_object_get(m->root, key));
}

/* ---- what is copied --------------------------------------------------------------------------------- */

static const gguf_field fields[] = {
    {"block_count", "num_hidden_layers", INTEGER, true},
    {"embedding_length", "hidden_size", INTEGER, true},
    {"context_length", "max_position_embeddings", INTEGER, true},
    {"attention.head_count", "num_attention_heads", INTEGER, true},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", NUMBER, true},
    {"feed_forward_length", "intermediate_size", COUNT, false},
    {"attention.sliding_window", "sliding_window", COUNT, false},
    {"rope.scaling.original_context_length", "original_max_position_embeddings", COUNT, false},
    {"attn_logit_softcapping", "attn_logit_softcapping", NUMBER, false},
    {"final_logit_softcapping", "final_logit_softcapping", NUMBER, false},
    {"expert_count", "num_experts", COUNT, false},
    {"expert_used_count", "num_experts_per_tok", COUNT, false},
    {"expert_feed_forward_length", "moe_intermediate_size", COUNT, false},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", COUNT, false},
    {"expert_shared_count", "n_shared_experts", INTEGER, false},
    {"expert_weights_norm", "norm_topk_prob", FLAG, false},
    {"expert_weights_scale", "routed_scaling_factor", NUMBER, false},
    {"expert_group_count", "n_group", COUNT, false},
    {"expert_group_used_count", "topk_group", COUNT, false},
    {"leading_dense_block_count", "first_k_dense_replace", INTEGER, false},
    {"attention.q_lora_rank", "q_lora_rank", COUNT, false},
    {"attention.kv_lora_rank", "kv_lora_rank", COUNT, false},
};

/* The value as JSON; NULL: it is of another type. *says: it is more than none. */
static json_t *field_value(maker *m, const gguf_field *f, const char *key, bool *says)
{
    int64_t whole = 0;
    double real = 0;
    bool flag = false;
    if (f->kind == FLAG)
        return gguf_flag(m->file, key, &flag) ? json_boolean(flag) : NULL;
    if (f->kind == NUMBER ? !number(m, f->gguf, &real) : !integer(m, f->gguf, &whole))
        return NULL;
    *says = f->kind == INTEGER || whole != 0 || real != 0;
    return f->kind == NUMBER ? json_real(real) : json_integer(whole);
}

static void copy_field(maker *m, const gguf_field *f)
{
    static const char *const no[] = {"is no integer", "is no integer", "is no number", "is neither true nor false"};
    char key[128];
    bool says = true, is_there = gguf_kind_of(m->file, gguf_arch_key(m->arch, f->gguf, key)) != GGUF_ABSENT;
    json_t *value = is_there ? field_value(m, f, key, &says) : NULL;
    if (value && says)
        put(m, f->config, value);
    else if (value)
        json_decref(value);
    else if (is_there || f->needed)
        fail(m, f->gguf, is_there ? no[f->kind] : "is missing");
}

static bool has(const maker *m, const char *tensor)
{
    tn_tensor t;
    return gguf_arch_tensor(m->file, tensor, &t);
}

const gguf_field *gguf_config_field(size_t index)
{
    return index < sizeof fields / sizeof *fields ? &fields[index] : NULL;
}

static void copy_fields(maker *m)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        copy_field(m, &fields[i]);
    put(m, "attention_bias", json_boolean(has(m, "blk.0.attn_q.bias")));
    put(m, "mlp_bias", json_boolean(has(m, "blk.0.ffn_up.bias")));
    put(m, "tie_word_embeddings", json_boolean(!has(m, "output.weight")));
    put(m, "num_hidden_layers", json_integer(made(m, "num_hidden_layers") - integer_or(m, "nextn_predict_layers", 0)));
}

/* ---- what follows from tensors ------------------------------------------------------------------------ */

/* What is computed in: bf16, where nothing is quantised the type of the matrices. */
static const char *find_dtype(const maker *m)
{
    const char *found = NULL;
    for (size_t i = 0; i < gguf_tensor_count(m->file); i++) {
        tn_tensor t;
        const char *path;
        gguf_tensor(m->file, i, &t, &path);
        if (t.dtype != TN_F32 && t.dtype != TN_F16)
            return "bfloat16";
        if (t.ndim > 1 && t.dtype == TN_F16)
            found = "float16";
    }
    return found ? found : "float32";
}

static void put_vocab(maker *m)
{
    tn_tensor t;
    if (!gguf_arch_tensor(m->file, "token_embd.weight", &t) || t.ndim != 2) {
        if (m->status == TN_OK)
            m->status = tn_fail(m->err, TN_E_INPUT, gguf_path(m->file, 0),
                                "has no matrix 'token_embd.weight': it is no model, or a part of one");
        return;
    }
    put(m, "vocab_size", json_integer(t.shape[0]));
    put(m, "dtype", json_string(find_dtype(m)));
}

/* Layers that have an MLP where others have experts. */
static void put_dense_layers(maker *m)
{
    json_t *list = json_array();
    for (int64_t i = 0, layers = made(m, "num_hidden_layers"); i < layers && i < 1 << 16; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.ffn_up.weight", (long long)i);
        if (has(m, name))
            json_array_append_new(list, json_integer(i));
    }
    put(m, "mlp_only_layers", list);
}

/* ---- attention -------------------------------------------------------------------------------------- */

static int64_t head_dim(const maker *m)
{
    return made(m, "head_dim");
}

static void put_heads(maker *m)
{
    int64_t heads = made(m, "num_attention_heads"), hidden = made(m, "hidden_size");
    int64_t usual = heads > 0 ? hidden / heads : 0, dim = integer_or(m, "attention.key_length", usual);
    if (dim != integer_or(m, "attention.value_length", dim) && m->status == TN_OK)
        fail(m, "attention.value_length", "is not key_length, which is not supported here");
    put(m, "head_dim", json_integer(dim));
    put(m, "num_key_value_heads", json_integer(integer_or(m, "attention.head_count_kv", heads)));
}

/* Layers with a window: as the file says, else all but the last of each period. */
static void put_layer_types(maker *m)
{
    char key[128];
    int64_t window = made(m, "sliding_window"), layers = made(m, "num_hidden_layers"), slides;
    bool listed = gguf_array(m->file, gguf_arch_key(m->arch, "attention.sliding_window_pattern", key)) >= layers;
    int64_t period = listed ? 0 : integer_or(m, "attention.sliding_window_pattern", m->arch->period);
    json_t *types = m->arch->period && window > 0 && layers < 1 << 16 ? json_array() : NULL;
    if (!types)
        return;
    for (int64_t i = 0; i < layers; i++) {
        if (!listed || !gguf_array_integer(m->file, key, i, &slides))
            slides = period < 1 || (i + 1) % period != 0;
        json_array_append_new(types, json_string(slides ? "sliding_attention" : "full_attention"));
    }
    put(m, "layer_types", types);
}

/* Sizes of latent attention. Old files have those of heads where newer ones have those of the latent. */
static void put_latent(maker *m)
{
    if (integer_or(m, "expert_gating_func", 0) > 2)
        fail(m, "expert_gating_func", "is neither 1 (softmax) nor 2 (sigmoid), which is not supported here");
    int64_t rope = integer_or(m, "rope.dimension_count", 0);
    int64_t key = integer_or(m, "attention.key_length_mla", integer_or(m, "attention.key_length", 0));
    int64_t value = integer_or(m, "attention.value_length_mla", integer_or(m, "attention.value_length", 0));
    put(m, "qk_rope_head_dim", json_integer(rope));
    put(m, "qk_nope_head_dim", json_integer(key - rope));
    put(m, "v_head_dim", json_integer(value));
    put(m, "num_key_value_heads", json_integer(made(m, "num_attention_heads")));
    /* Files of before there was a key for them have one group, but those of V3 itself. */
    if (made(m, "n_group") == 0 && made(m, "num_experts") != 256)
        put(m, "n_group", json_integer(1));
    if (made(m, "n_group") == 1)
        put(m, "topk_group", json_integer(1));
    if (!strcmp(m->arch->model_type, "deepseek_v2"))
        put(m, "topk_method", json_string(made(m, "n_group") > 1 ? "group_limited_greedy" : "greedy"));
}

/* ---- rotation ---------------------------------------------------------------------------------------- */

/* A tensor of factors as a list; NULL where there is none. */
static json_t *factors(maker *m, const char *name)
{
    tn_tensor t;
    if (!gguf_arch_tensor(m->file, name, &t))
        return NULL;
    if ((t.dtype != TN_F32 || t.ndim != 1 || t.shape[0] > 1 << 16) && m->status == TN_OK)
        m->status = tn_fail(m->err, TN_E_INPUT, gguf_path(m->file, 0), "tensor '%s' is no list of f32", name);
    json_t *list = json_array();
    for (int64_t i = 0; m->status == TN_OK && i < t.shape[0]; i++) {
        float factor;
        memcpy(&factor, (const char *)t.data + (size_t)i * sizeof factor, sizeof factor);
        if (json_array_append_new(list, json_real((double)factor)) != 0)
            m->status = tn_fail(m->err, TN_E_INPUT, gguf_path(m->file, 0),
                                "tensor '%s' has a factor that is no finite number", name);
    }
    return list;
}

/* Factors that divide the frequencies: those of a short and a long context, or of any. */
static bool put_factors(maker *m, json_t *rope)
{
    double attention;
    json_t *any = factors(m, "rope_freqs.weight");
    json_t *shorter = any ? json_incref(any) : factors(m, "rope_factors_short.weight");
    json_t *longer = any ? any : factors(m, "rope_factors_long.weight");
    if (any || number(m, "rope.scaling.attn_factor", &attention))
        put_in(m, rope, "attention_factor", json_real(any ? 1 : attention));
    if (!shorter || !longer) {
        json_decref(shorter);
        json_decref(longer);
        return false;
    }
    put_in(m, rope, "rope_type", json_string("longrope"));
    put_in(m, rope, "short_factor", shorter);
    put_in(m, rope, "long_factor", longer);
    return true;
}

static void put_yarn(maker *m, json_t *rope)
{
    static const char *const keys[][2] = {{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                          {"rope.scaling.yarn_beta_slow", "beta_slow"}};
    double value;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (number(m, keys[i][0], &value))
            put_in(m, rope, keys[i][1], json_real(value));
    /* The file has a tenth of mscale_all_dim, which published models have as mscale, too. */
    if (number(m, "rope.scaling.yarn_log_multiplier", &value) && value != 0) {
        put_in(m, rope, "mscale", json_real(shortest(10 * value)));
        put_in(m, rope, "mscale_all_dim", json_real(shortest(10 * value)));
    }
    if (number(m, "rope.scaling.attn_factor", &value) && value != 1)
        put_in(m, rope, "attention_factor", json_real(value));
    if (!strcmp(m->arch->model_type, "gpt_oss"))
        put_in(m, rope, "truncate", json_false());
}

static void put_scaling(maker *m, json_t *rope)
{
    char key[128];
    double factor;
    const char *type = gguf_text(m->file, gguf_arch_key(m->arch, "rope.scaling.type", key));
    if (put_factors(m, rope) || !type || !strcmp(type, "none"))
        return;
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0) {
        fail(m, "rope.scaling.type", "is neither none, linear nor yarn, nor are there tensors of factors");
        return;
    }
    put_in(m, rope, "rope_type", json_string(type));
    if (number(m, "rope.scaling.factor", &factor))
        put_in(m, rope, "factor", json_real(factor));
    if (!strcmp(type, "yarn"))
        put_yarn(m, rope);
    if (made(m, "original_max_position_embeddings") > 0)
        put_in(m, rope, "original_max_position_embeddings",
               json_incref(json_object_get(m->root, "original_max_position_embeddings")));
}

/* The share of a head that rotates, as a number that gives that size again. */
static void put_partial(maker *m, json_t *rope)
{
    int64_t dim = head_dim(m), count = integer_or(m, "rope.dimension_count", dim);
    double part = dim > 0 ? (double)count / (double)dim : 1;
    if ((m->arch->traits & GGUF_LATENT) || count == dim)
        return;
    if (!(m->arch->traits & GGUF_PARTIAL) || count < 2 || count > dim)
        fail(m, "rope.dimension_count", "is not that of a head, which is not supported here");
    if ((int64_t)((double)dim * part) != count)
        part = nextafter(part, 1);
    put_in(m, rope, "partial_rotary_factor", json_real(part));
}

static json_t *make_rope(maker *m, double theta, bool scaled)
{
    json_t *rope = json_pack("{s:f, s:s}", "rope_theta", theta, "rope_type", "default");
    put_partial(m, rope);
    if (scaled)
        put_scaling(m, rope);
    return rope;
}

static void put_rope(maker *m)
{
    double theta = 10000, local = 10000;
    char key[128];
    number(m, "rope.freq_base", &theta);
    if (gguf_array(m->file, gguf_arch_key(m->arch, "rope.dimension_sections", key)) >= 0)
        fail(m, "rope.dimension_sections", "is there: positions on several axes are not supported in a .gguf");
    if (!(m->arch->traits & GGUF_TWO_ROPES)) {
        put(m, "rope_parameters", make_rope(m, theta, true));
        return;
    }
    number(m, "rope.freq_base_swa", &local);
    json_t *both = json_object();
    put_in(m, both, "full_attention", make_rope(m, theta, true));
    put_in(m, both, "sliding_attention", make_rope(m, local, false));
    put(m, "rope_parameters", both);
}

/* The largest Gemma divides scores by another number than the root of head_dim. */
static void put_score_scale(maker *m)
{
    int64_t largest = !strcmp(m->arch->name, "gemma2") ? 46 : 62, heads = made(m, "num_attention_heads");
    bool is_largest = made(m, "num_hidden_layers") == largest && heads > 0;
    put(m, "query_pre_attn_scalar", json_integer(is_largest ? made(m, "hidden_size") / heads : head_dim(m)));
}

/* ---- tokens that end a text -------------------------------------------------------------------------- */

static void add_end(maker *m, json_t *list, int64_t id)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == id)
            return;
    if (id >= 0 && json_array_append_new(list, json_integer(id)) != 0)
        m->status = tn_fail(m->err, TN_E_MEMORY, gguf_path(m->file, 0), "out of memory");
}

/* Is token id a control token that ends a turn, whatever the keys say? Many files name only the end of a text. In
 * gpt-oss "<|end|>" ends a message, behind which its answer goes on. */
static bool ends_turn(const maker *m, int64_t id)
{
    static const char *const texts[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>",    "<end_of_turn>",
                                        "<|return|>", "<|call|>",   "<|endoftext|>", "<|end|>"};
    size_t texts_count = sizeof texts / sizeof *texts - !strcmp(m->arch->name, "gpt-oss");
    enum { CONTROL = 3 };
    int64_t type = CONTROL;
    size_t length = 0;
    const char *text = gguf_array_text(m->file, "tokenizer.ggml.tokens", id, &length);
    gguf_array_integer(m->file, "tokenizer.ggml.token_type", id, &type);
    for (size_t i = 0; text && type == CONTROL && i < texts_count; i++)
        if (strlen(texts[i]) == length && !memcmp(text, texts[i], length))
            return true;
    return false;
}

static void put_ends(maker *m)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    int64_t id;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (gguf_integer(m->file, keys[i], &id))
            add_end(m, list, id);
    for (int64_t i = 0, count = gguf_array(m->file, "tokenizer.ggml.tokens"); i < count; i++)
        if (ends_turn(m, i))
            add_end(m, list, i);
    put(m, "eos_token_id", list);
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static void make(maker *m)
{
    put(m, "model_type", json_string(m->arch->model_type));
    put(m, "architectures", json_pack("[s]", m->arch->class_name));
    copy_fields(m);
    put_vocab(m);
    if (made(m, "num_experts") > 0)
        put_dense_layers(m);
    if (m->arch->traits & GGUF_LATENT)
        put_latent(m);
    else
        put_heads(m);
    put_layer_types(m);
    put_rope(m);
    put_ends(m);
    if (m->arch->traits & GGUF_PAIRS)
        put(m, "gguf_rope_pairs", json_true());
    if (m->arch->traits & GGUF_PLUS_ONE)
        put_score_scale(m);
}

config_file *gguf_config_read(const gguf *file, tn_error *err)
{
    maker m = {.file = file, .arch = gguf_arch_of(file, err), .err = err};
    if (!m.arch)
        return NULL;
    json_memory_watch();
    m.root = json_loads(m.arch->implied ? m.arch->implied : "{}", 0, NULL);
    make(&m);
    if (json_memory_failed())
        m.status = tn_fail(err, TN_E_MEMORY, gguf_path(file, 0), "out of memory");
    if (m.status == TN_OK)
        return config_open_object(gguf_path(file, 0), m.root, err);
    json_decref(m.root);
    return NULL;
}
