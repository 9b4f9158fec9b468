/* Grouped-query attention. */
#include "models/gqa.h"

static graph_site *build_attention(graph_builder *b, graph_module *m, const gqa_spec *spec)
{
    graph_site *s = build_site(b, m, TN_OP_ATTENTION, NULL);
    if (!s)
        return NULL;
    s->site.dim[TN_DIM_HEAD] = s->site.dim[TN_DIM_HEAD_V] = spec->head_dim;
    s->site.dim[TN_DIM_Q_HEADS] = spec->heads;
    s->site.dim[TN_DIM_KV_HEADS] = spec->kv_heads;
    s->site.dim[TN_DIM_WINDOW] = spec->window;
    s->site.num[TN_NUM_SCALE] = spec->scale;
    s->site.num[TN_NUM_SOFTCAP] = spec->softcap;
    s->site.features = (spec->window ? TN_HAS_WINDOW : 0) | (spec->softcap != 0 ? TN_HAS_SOFTCAP : 0);
    return s;
}

void gqa_build(graph_builder *b, graph_module *layer, const gqa_spec *spec, gqa *out)
{
    int64_t hidden = spec->hidden, q_width = spec->heads * spec->head_dim, kv_width = spec->kv_heads * spec->head_dim;
    graph_module *m = build_module(b, layer, "self_attn", spec->class_name);
    *out = (gqa){.heads = spec->heads, .kv_heads = spec->kv_heads, .head_dim = spec->head_dim};
    out->site = build_attention(b, m, spec);
    out->q = parts_linear(b, m, "q_proj", hidden, q_width, spec->qkv_bias, NULL);
    out->k = parts_linear(b, m, "k_proj", hidden, kv_width, spec->qkv_bias, NULL);
    out->v = parts_linear(b, m, "v_proj", hidden, kv_width, spec->qkv_bias, NULL);
    out->o = parts_linear(b, m, "o_proj", q_width, hidden, spec->o_bias, NULL);
    if (spec->head_norm) {
        out->q_norm = parts_norm(b, m, "q_norm", spec->head_norm, spec->head_dim, false);
        out->k_norm = parts_norm(b, m, "k_norm", spec->head_norm, spec->head_dim, false);
    }
}

model_layer gqa_cache(const gqa_spec *spec)
{
    return (model_layer){.kv_heads = spec->kv_heads,
                         .head_dim = spec->head_dim,
                         .v_head_dim = spec->head_dim,
                         .window = spec->window};
}

static tn_tensor heads_of(const graph_run *r, const tn_tensor *x, int64_t heads, int64_t dim)
{
    return steps_view(x, 4, (int64_t[]){r->rows, r->tokens, heads, dim});
}

tn_tensor gqa_forward(graph_run *r, const gqa *a, const graph_site *rope, int64_t layer, const tn_tensor *x)
{
    tn_tensor q = steps_linear(r, a->q, x), k = steps_linear(r, a->k, x), v = steps_linear(r, a->v, x);
    q = heads_of(r, &q, a->heads, a->head_dim);
    k = heads_of(r, &k, a->kv_heads, a->head_dim);
    v = heads_of(r, &v, a->kv_heads, a->head_dim);
    if (a->q_norm) {
        steps_norm_in_place(r, a->q_norm, &q);
        steps_norm_in_place(r, a->k_norm, &k);
    }
    steps_rope(r, rope, 0, &q, &k);
    steps_cache_append(r, layer, &k, &v);
    tn_tensor o = steps_attention(r, a->site, layer, &q);
    return steps_linear(r, a->o, &o);
}
