/* Which type each tensor gets: what llama.cpp's files of that name have. */
#include "quantize/quantize.h"

#include "quantize/encode.h"

#include <string.h>
#include <strings.h>

static const quantize_recipe recipes[] = {
    {"Q8_0", 7, TN_Q8_0, TN_Q8_0, TN_Q8_0},
    {"Q6_K", 18, TN_Q6_K, TN_Q6_K, TN_Q6_K},
    {"Q5_K_M", 17, TN_Q5_K, TN_Q6_K, TN_Q6_K},
    {"Q4_K_M", 15, TN_Q4_K, TN_Q6_K, TN_Q6_K},
    {"Q4_0", 2, TN_Q4_0, TN_Q4_0, TN_Q6_K},
    {"IQ4_NL", 25, TN_IQ4_NL, TN_Q5_K, TN_Q6_K},
    {"MXFP4", 38, TN_MXFP4, TN_MXFP4, TN_Q8_0},
    {"FP8", 0, TN_F8_E4M3, TN_F8_E4M3, TN_BF16}, /* a folder: quantize_folder.c                        */
};

const quantize_recipe *quantize_recipe_find(const char *name, tn_error *err)
{
    char known[128] = "";
    for (size_t i = 0, used = 0; i < sizeof recipes / sizeof *recipes; i++) {
        if (!strcasecmp(name, recipes[i].name))
            return &recipes[i];
        used += text_cut(known + used, sizeof known - used, "%s%s", i ? ", " : "", recipes[i].name);
    }
    tn_fail(err, TN_E_USAGE, "type", "'%.40s' is no type to quantise to; choose one of %s", name, known);
    return NULL;
}

bool quantize_recipe_weighs(const quantize_recipe *recipe)
{
    return encode_weighs(recipe->usual);
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), n = strlen(end);
    return length >= n && !strcmp(name + length - n, end);
}

/* Its part behind "blk.N." begins with what. */
static bool is_a(const quantize_tensor *t, const char *what)
{
    const char *rest = t->layer >= 0 ? strchr(t->name + strlen("blk."), '.') + 1 : t->name;
    return !strncmp(rest, what, strlen(what));
}

/* The first eighth of the layers, the last one, and every third between. */
static bool is_fine_layer(const quantize_plan *p, int64_t layer)
{
    int64_t layers = p->shape->layers, eighth = layers / 8;
    return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

static bool is_kept(const quantize_tensor *t)
{
    return t->ndim < 2 || ends_with(t->name, "_norm.weight") || is_a(t, "ffn_gate_inp.") ||
           is_a(t, "ffn_gate_inp_shexp.") || !ends_with(t->name, ".weight");
}

/* Of heads that share keys: those are few, and so is what finer values cost. */
static bool shares_keys(const quantize_plan *p)
{
    int64_t heads = config_i64(&p->config, "num_attention_heads", 1, 1, INT32_MAX);
    return heads >= 4 * p->shape->layer[0].kv_heads;
}

/* Experts; in a model without them its MLPs. */
static bool is_expert(const quantize_plan *p, const quantize_tensor *t)
{
    return p->experts > 0 ? t->matrices > 1 : is_a(t, "ffn_");
}

/* Q4_K_M and Q5_K_M: what is worth more bits. */
static tn_dtype mixed_type(const quantize_plan *p, const quantize_tensor *t)
{
    const quantize_recipe *r = p->recipe;
    bool worth = is_a(t, "attn_v.") || is_a(t, "attn_qkv.") || is_a(t, "ffn_down");
    return worth && is_fine_layer(p, t->layer) ? r->finer : r->usual;
}

static tn_dtype wanted_type(const quantize_plan *p, const quantize_tensor *t)
{
    tn_dtype usual = p->recipe->usual;
    bool tied = !strcmp(t->name, "token_embd.weight") && config_bool(&p->config, "tie_word_embeddings", true);
    if (tied || !strcmp(t->name, "output.weight"))
        return p->recipe->output;
    if (usual == TN_MXFP4)
        return is_expert(p, t) ? usual : TN_Q8_0;
    if (p->experts == 8 && usual != TN_Q8_0) {
        if (is_a(t, "attn_k.") || is_a(t, "attn_v."))
            return TN_Q8_0;
        if (is_a(t, "attn_output.") && (usual == TN_Q4_K || usual == TN_IQ4_NL))
            return TN_Q5_K;
    }
    if (usual == TN_Q4_K || usual == TN_Q5_K)
        return mixed_type(p, t);
    bool finer = (is_a(t, "attn_v.") && shares_keys(p)) || (is_a(t, "ffn_down") && t->layer < p->shape->layers / 8);
    return usual == TN_IQ4_NL && finer ? p->recipe->finer : usual;
}

/* Rows that are no whole blocks take a type of smaller ones. */
static tn_dtype fitting_type(tn_dtype dtype, int64_t columns)
{
    if (columns % tn_dtype_block_elements(dtype) == 0)
        return dtype;
    tn_dtype smaller = dtype == TN_Q4_K ? TN_Q5_0 : dtype == TN_Q5_K ? TN_Q5_1 : TN_Q8_0;
    return columns % 32 == 0 ? smaller : TN_F16;
}

tn_dtype quantize_type(const quantize_plan *p, const quantize_tensor *t)
{
    return is_kept(t) ? TN_F32 : t->stays ? TN_MXFP4 : fitting_type(wanted_type(p, t), t->columns);
}
