/* Inside core: grouped-query attention with separate projections, as a module and as a piece of forward. */
#ifndef TENON_CORE_GQA_H
#define TENON_CORE_GQA_H

#include "models/parts.h"
#include "run/steps.h"

typedef struct gqa_spec {
    const char *class_name;
    const parts_norm_kind *head_norm; /* of q and k per head, before the rotation; NULL: none     */
    int64_t hidden, heads, kv_heads, head_dim;
    int64_t window;        /* 0: none                                                             */
    double scale, softcap; /* of the scores; softcap 0: none                                      */
    bool qkv_bias, o_bias;
} gqa_spec;

typedef struct gqa {
    graph_site *q, *k, *v, *o;
    graph_site *q_norm, *k_norm; /* or NULL                                                       */
    graph_site *site;            /* ATTENTION                                                     */
    int64_t heads, kv_heads, head_dim;
} gqa;

/* The module self_attn and its sites. Errors stick in b. */
void gqa_build(graph_builder *b, graph_module *layer, const gqa_spec *spec, gqa *out);

/* What a session caches for it. */
model_layer gqa_cache(const gqa_spec *spec);

/* x [B*T,H] to what o_proj gives. rope: rotates with the tables of kind 0. layer: whose cache. */
tn_tensor gqa_forward(graph_run *r, const gqa *a, const graph_site *rope, int64_t layer, const tn_tensor *x);

#endif
