/* The models that make_checkpoint knows. Their figures are those of the published models (qwen3-0.6b, llama-3.2-1b,
 * gemma-2-2b) or of a mixture of experts of about 1.5 billion parameters; the tiny ones have two layers of the same
 * shape. */
#include "spec.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define QWEN3                                                                                                          \
    .class_name = "Qwen3ForCausalLM", .model_type = "qwen3", .hidden = 1024, .heads = 16, .kv_heads = 8,               \
    .head_dim = 128, .intermediate = 3072, .max_positions = 40960, .eps = 1e-6, .theta = 1e6, .tied = true,            \
    .head_norm = true
#define MOE                                                                                                            \
    .class_name = "Qwen3MoeForCausalLM", .model_type = "qwen3_moe", .hidden = 1024, .heads = 16, .kv_heads = 4,        \
    .head_dim = 128, .intermediate = 3072, .max_positions = 40960, .vocab = 32000, .bos = 1, .eos = 2, .experts = 64,  \
    .top_k = 8, .expert_intermediate = 384, .eps = 1e-6, .theta = 1e6, .head_norm = true
#define GEMMA2                                                                                                         \
    .class_name = "Gemma2ForCausalLM", .model_type = "gemma2", .hidden = 2304, .heads = 8, .kv_heads = 4,              \
    .head_dim = 256, .intermediate = 9216, .max_positions = 8192, .bos = 2, .eos = 1, .eps = 1e-6, .theta = 10000,     \
    .tied = true, .gemma = true

static const spec specs[] = {
    {.name = "qwen3-0.6b", QWEN3, .layers = 28, .vocab = 151936, .bos = 151643, .eos = 151645},
    {.name = "tiny-qwen3", QWEN3, .layers = 2, .vocab = 32000, .bos = 1, .eos = 2},
    {.name = "moe-1.5b", MOE, .layers = 18},
    {.name = "tiny-moe", MOE, .layers = 2},
    {.name = "llama-3.2-1b",
     .class_name = "LlamaForCausalLM",
     .model_type = "llama",
     .hidden = 2048,
     .layers = 16,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 64,
     .intermediate = 8192,
     .vocab = 128256,
     .max_positions = 131072,
     .bos = 128000,
     .eos = 128001,
     .eps = 1e-5,
     .theta = 500000,
     .tied = true,
     .llama3_rope = true},
    {.name = "gemma-2-2b", GEMMA2, .layers = 26, .vocab = 256000},
    {.name = "tiny-gemma2", GEMMA2, .layers = 2, .vocab = 32000},
    {.name = "tiny-mixtral",
     .class_name = "MixtralForCausalLM",
     .model_type = "mixtral",
     .hidden = 1024,
     .layers = 2,
     .heads = 16,
     .kv_heads = 4,
     .head_dim = 64,
     .intermediate = 3584,
     .vocab = 32000,
     .max_positions = 32768,
     .bos = 1,
     .eos = 2,
     .experts = 8,
     .top_k = 2,
     .expert_intermediate = 3584,
     .eps = 1e-5,
     .theta = 1e6,
     .block_sparse_moe = true},
};

const spec *spec_find(const char *name)
{
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        if (!strcmp(name, specs[i].name))
            return &specs[i];
    return NULL;
}

void spec_list(FILE *out)
{
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        fprintf(out, "%s%s", i ? " " : "", specs[i].name);
}

typedef struct list {
    weights_tensor *tensors;
    size_t count, capacity;
    tn_dtype dtype;
} list;

/* columns 0: a vector. */
static void add(list *l, int64_t rows, int64_t columns, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void add(list *l, int64_t rows, int64_t columns, const char *format, ...)
{
    if (l->count == l->capacity)
        return; /* the caller sees it: capacity is exact */
    weights_tensor *t = &l->tensors[l->count++];
    *t = (weights_tensor){.dtype = l->dtype, .ndim = columns ? 2 : 1, .shape = {rows, columns}};
    t->vector = columns == 0;
    t->scale = WEIGHTS_VECTOR_SCALE;
    va_list args;
    va_start(args, format);
    vsnprintf(t->name, sizeof t->name, format, args);
    va_end(args);
}

/* The weight of a norm. */
static void add_norm(list *l, const spec *s, int64_t width, const char *in, const char *name)
{
    add(l, width, 0, "%s.%s.weight", in, name);
    l->tensors[l->count - 1].mean = s->gemma ? 0 : 1;
}

static void add_experts(list *l, const spec *s, const char *at)
{
    static const char *const plain[] = {"gate_proj", "up_proj", "down_proj"}, *const mixtral[] = {"w1", "w3", "w2"};
    const char *const *name = s->block_sparse_moe ? mixtral : plain;
    const char *block = s->block_sparse_moe ? "block_sparse_moe" : "mlp";
    int64_t h = s->hidden, inter = s->experts ? s->expert_intermediate : s->intermediate;
    if (s->experts)
        add(l, s->experts, h, "%s.%s.gate.weight", at, block);
    for (int e = 0; e < (s->experts ? s->experts : 1); e++) {
        char in[40];
        snprintf(in, sizeof in, "%s", block);
        if (s->experts)
            snprintf(in, sizeof in, "%s.experts.%d", block, e);
        add(l, inter, h, "%s.%s.%s.weight", at, in, name[0]);
        add(l, inter, h, "%s.%s.%s.weight", at, in, name[1]);
        add(l, h, inter, "%s.%s.%s.weight", at, in, name[2]);
    }
}

static void add_layer(list *l, const spec *s, int layer)
{
    char at[40];
    snprintf(at, sizeof at, "model.layers.%d", layer);
    int64_t h = s->hidden, d = s->head_dim;
    add_norm(l, s, h, at, "input_layernorm");
    add(l, s->heads * d, h, "%s.self_attn.q_proj.weight", at);
    add(l, s->kv_heads * d, h, "%s.self_attn.k_proj.weight", at);
    add(l, s->kv_heads * d, h, "%s.self_attn.v_proj.weight", at);
    add(l, h, s->heads * d, "%s.self_attn.o_proj.weight", at);
    if (s->head_norm) {
        add_norm(l, s, d, at, "self_attn.q_norm");
        add_norm(l, s, d, at, "self_attn.k_norm");
    }
    add_norm(l, s, h, at, "post_attention_layernorm");
    if (s->gemma) {
        add_norm(l, s, h, at, "pre_feedforward_layernorm");
        add_norm(l, s, h, at, "post_feedforward_layernorm");
    }
    add_experts(l, s, at);
}

weights_tensor *spec_tensors(const spec *s, tn_dtype dtype, size_t *count)
{
    size_t per_layer = 11 + 3 * (size_t)(s->experts ? s->experts : 1);
    list l = {.capacity = 3 + per_layer * (size_t)s->layers, .dtype = dtype};
    l.tensors = malloc(l.capacity * sizeof *l.tensors);
    if (!l.tensors)
        return NULL;
    add(&l, s->vocab, s->hidden, "model.embed_tokens.weight");
    for (int i = 0; i < s->layers; i++)
        add_layer(&l, s, i);
    add_norm(&l, s, s->hidden, "model", "norm");
    if (!s->tied)
        add(&l, s->vocab, s->hidden, "lm_head.weight");
    *count = l.count;
    return l.tensors;
}

static const char *truth(bool value)
{
    return value ? "true" : "false";
}

static void print_config(FILE *f, const spec *s, tn_dtype dtype)
{
    fprintf(f, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", s->class_name, s->model_type);
    fprintf(f, "  \"hidden_size\": %lld,\n  \"num_hidden_layers\": %lld,\n", (long long)s->hidden,
            (long long)s->layers);
    fprintf(f, "  \"num_attention_heads\": %lld,\n  \"num_key_value_heads\": %lld,\n  \"head_dim\": %lld,\n",
            (long long)s->heads, (long long)s->kv_heads, (long long)s->head_dim);
    fprintf(f, "  \"intermediate_size\": %lld,\n  \"vocab_size\": %lld,\n  \"max_position_embeddings\": %lld,\n",
            (long long)s->intermediate, (long long)s->vocab, (long long)s->max_positions);
    if (s->experts)
        fprintf(f,
                "  \"%s\": %lld,\n  \"num_experts_per_tok\": %lld,\n  \"moe_intermediate_size\": %lld,\n"
                "  \"norm_topk_prob\": true,\n  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [],\n"
                "  \"router_aux_loss_coef\": 0.001,\n  \"output_router_logits\": false,\n",
                s->block_sparse_moe ? "num_local_experts" : "num_experts", (long long)s->experts, (long long)s->top_k,
                (long long)s->expert_intermediate);
    if (s->gemma)
        fprintf(f, "  \"hidden_activation\": \"gelu_pytorch_tanh\",\n  \"query_pre_attn_scalar\": 256,\n"
                   "  \"attn_logit_softcapping\": 50.0,\n  \"final_logit_softcapping\": 30.0,\n"
                   "  \"sliding_window\": 4096,\n");
    if (s->llama3_rope)
        fprintf(f, "  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0, \"low_freq_factor\": 1.0,\n"
                   "    \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192},\n"
                   "  \"mlp_bias\": false,\n  \"pretraining_tp\": 1,\n");
    else if (!s->gemma)
        fprintf(f,
                "  \"rope_scaling\": null,\n  \"use_sliding_window\": false,\n  \"sliding_window\": null,\n"
                "  \"max_window_layers\": %lld,\n",
                (long long)s->layers);
    fprintf(f, "  \"rope_theta\": %.1f,\n  \"rms_norm_eps\": %g,\n  \"hidden_act\": \"silu\",\n", s->theta, s->eps);
    fprintf(f, "  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n  \"initializer_range\": 0.02,\n");
    fprintf(f, "  \"bos_token_id\": %lld,\n  \"eos_token_id\": %lld,\n", (long long)s->bos, (long long)s->eos);
    fprintf(f, "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"%s\",\n", truth(s->tied),
            dtype == TN_F32   ? "float32"
            : dtype == TN_F16 ? "float16"
                              : "bfloat16");
    fprintf(f, "  \"transformers_version\": \"4.51.0\",\n  \"use_cache\": true\n}\n");
}

bool spec_write_config(const spec *s, tn_dtype dtype, const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    if (!f)
        return false;
    print_config(f, s, dtype);
    bool ok = !ferror(f);
    ok = fclose(f) == 0 && ok;
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    f = ok ? fopen(path, "w") : NULL;
    if (!f)
        return false;
    fprintf(f, "{\n  \"bos_token_id\": %lld,\n  \"eos_token_id\": %lld,\n  \"do_sample\": false\n}\n",
            (long long)s->bos, (long long)s->eos);
    ok = !ferror(f);
    return fclose(f) == 0 && ok;
}
