/* What config.json says, as keys of a .gguf. */
#include "quantize/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What other classes call what a field is called. */
static const gguf_field others[] = {{"expert_count", "num_local_experts", COUNT, false},
                                    {"expert_count", "n_routed_experts", COUNT, false}};

static const char *key_of(const quantize_plan *p, const char *name, char key[static 128])
{
    return gguf_arch_key(p->arch, name, key);
}

static void put_integer(quantize_plan *p, const char *name, int64_t value)
{
    char key[128];
    quantize_put_integer(p, key_of(p, name, key), value);
}

static void put_number(quantize_plan *p, const char *name, double value)
{
    char key[128];
    quantize_put_number(p, key_of(p, name, key), value);
}

/* A window that is there but not used counts as none. */
static bool is_meant(const quantize_plan *p, const gguf_field *f)
{
    return config_has(&p->config, f->config) &&
           (strcmp(f->config, "sliding_window") != 0 || config_bool(&p->config, "use_sliding_window", true));
}

static void put_field(quantize_plan *p, const gguf_field *f)
{
    char key[128];
    if (!is_meant(p, f))
        return;
    if (f->kind == FLAG)
        quantize_put_flag(p, key_of(p, f->gguf, key), config_bool(&p->config, f->config, false));
    else if (f->kind == NUMBER)
        put_number(p, f->gguf, config_f64(&p->config, f->config, 0));
    else
        put_integer(p, f->gguf, config_i64(&p->config, f->config, 0, 0, UINT32_MAX));
}

static void put_fields(quantize_plan *p)
{
    const gguf_field *f;
    for (size_t i = 0; (f = gguf_config_field(i)); i++)
        put_field(p, f);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        put_field(p, &others[i]);
}

static void put_heads(quantize_plan *p)
{
    const model_layer *layer = &p->shape->layer[0];
    put_integer(p, "attention.head_count_kv", layer->kv_heads);
    put_integer(p, "attention.key_length", layer->head_dim);
    put_integer(p, "attention.value_length", layer->v_head_dim ? layer->v_head_dim : layer->head_dim);
    put_integer(p, "vocab_size", p->shape->vocab);
}

/* Sizes of heads, beside those of the latent that all of them share; how experts are scored. */
static void put_latent(quantize_plan *p)
{
    int64_t nope = config_i64(&p->config, "qk_nope_head_dim", 128, 1, INT32_MAX);
    put_integer(p, "attention.key_length_mla", nope + config_i64(&p->config, "qk_rope_head_dim", 64, 1, INT32_MAX));
    put_integer(p, "attention.value_length_mla", config_i64(&p->config, "v_head_dim", 128, 1, INT32_MAX));
    put_integer(p, "expert_gating_func", p->arch->is ? p->arch->is : 1);
}

/* ---- rotation -------------------------------------------------------------------------------------------- */

/* What divides the usual frequencies to give these, as a tensor. */
static void add_factors(quantize_plan *p, const char *name, const rope_params *r, const float *frequencies)
{
    int64_t count = r->dim / 2;
    float *factors = realloc(p->factors, (size_t)(p->factor_count + count) * sizeof *factors);
    if (!factors) {
        p->status = tn_fail(p->err, TN_E_MEMORY, p->model->folder, "out of memory");
        return;
    }
    for (int64_t i = 0; i < count; i++)
        factors[p->factor_count + i] =
            (float)(pow(r->theta, -2.0 * (double)i / (double)r->dim) / (double)frequencies[i]);
    p->factors = factors;
    quantize_tensor *t = &p->tensors[p->count++];
    *t = (quantize_tensor){.matrices = 1, .rows = 1, .columns = count, .ndim = 1, .layer = -1, .from = TN_F32};
    t->made = p->factor_count;
    text_cut(t->name, sizeof t->name, "%s", name);
    p->factor_count += count;
}

/* Factors of any context, or of a short and a long one. */
static void put_factors(quantize_plan *p, const rope_params *r)
{
    bool any = r->kind == ROPE_LLAMA3 || !memcmp(r->inv_freq, r->long_freq, (size_t)(r->dim / 2) * sizeof(float));
    add_factors(p, any ? "rope_freqs.weight" : "rope_factors_short.weight", r, r->inv_freq);
    if (any)
        return;
    add_factors(p, "rope_factors_long.weight", r, r->long_freq);
    put_number(p, "rope.scaling.attn_factor", (double)r->scaling);
    if (!config_has(&p->config, "original_max_position_embeddings"))
        put_integer(p, "rope.scaling.original_context_length", (int64_t)r->original);
}

static void put_yarn(quantize_plan *p, const rope_params *r)
{
    put_number(p, "rope.scaling.yarn_beta_fast", r->fast);
    put_number(p, "rope.scaling.yarn_beta_slow", r->slow);
    if (r->scaling_given)
        put_number(p, "rope.scaling.attn_factor", (double)r->scaling);
    if ((p->arch->traits & GGUF_LATENT) && r->mscale_all != 0)
        put_number(p, "rope.scaling.yarn_log_multiplier", 0.1 * r->mscale_all);
}

static void put_scaling(quantize_plan *p, const rope_params *r)
{
    char key[128];
    if (r->kind == ROPE_LLAMA3 || r->kind == ROPE_LONG)
        put_factors(p, r);
    if (r->kind != ROPE_LINEAR && r->kind != ROPE_YARN)
        return;
    quantize_put_text(p, key_of(p, "rope.scaling.type", key), r->kind == ROPE_YARN ? "yarn" : "linear");
    put_number(p, "rope.scaling.factor", r->factor);
    if (r->kind == ROPE_YARN) {
        if (!config_has(&p->config, "original_max_position_embeddings"))
            put_integer(p, "rope.scaling.original_context_length", (int64_t)r->original);
        put_yarn(p, r);
    }
}

/* Of two rotations the last is that of layers without a window. */
static void put_rope(quantize_plan *p)
{
    const rope_params *r = p->shape->rope + p->shape->rope_count - 1;
    if (p->shape->rope_count < 1)
        return;
    if (r->kind == ROPE_DYNAMIC || r->kind == ROPE_PROPORTIONAL) {
        p->status = tn_fail(p->err, TN_E_INPUT, "config.json", "key 'rope_type' is %s, which cannot be said in a .gguf",
                            r->kind == ROPE_DYNAMIC ? "dynamic" : "proportional");
        return;
    }
    put_number(p, "rope.freq_base", r->theta);
    put_integer(p, "rope.dimension_count", r->dim);
    if (p->arch->traits & GGUF_TWO_ROPES)
        put_number(p, "rope.freq_base_swa", p->shape->rope[0].theta);
    put_scaling(p, r);
}

/* ---- all of it ------------------------------------------------------------------------------------------- */

static void put_general(quantize_plan *p)
{
    const char *slash = strrchr(p->model->folder, '/');
    quantize_put_text(p, "general.architecture", p->arch->name);
    quantize_put_text(p, "general.type", "model");
    quantize_put_text(p, "general.name", slash && slash[1] ? slash + 1 : p->model->folder);
    quantize_put_integer(p, "general.quantization_version", 2);
    quantize_put_integer(p, "general.file_type", p->recipe->file_type);
}

void quantize_config(quantize_plan *p)
{
    put_general(p);
    put_fields(p);
    put_heads(p);
    if (p->arch->traits & GGUF_LATENT)
        put_latent(p);
    if (!strcmp(p->arch->model_type, "gpt_oss") && !config_has(&p->config, "moe_intermediate_size"))
        put_integer(p, "expert_feed_forward_length", config_i64(&p->config, "intermediate_size", 2880, 1, INT32_MAX));
    put_rope(p);
}
