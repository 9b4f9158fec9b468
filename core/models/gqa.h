/* Inside core: grouped-query attention with all that modeling files add to it, as a module and as a piece of forward.
 */
#ifndef TENON_CORE_GQA_H
#define TENON_CORE_GQA_H

#include "models/adapter.h"
#include "models/mixer.h"
#include "models/parts.h"

enum { GQA_NO_ROPE = -1 };

/* What a file calls the pieces. */
typedef struct gqa_names {
    const char *module, *q, *k, *v, *o, *q_norm, *k_norm, *qkv;
} gqa_names;

typedef struct gqa_spec {
    const char *class_name;
    const gqa_names *names; /* NULL: self_attn with q_proj, k_proj, v_proj, o_proj, q_norm, k_norm, qkv_proj */
    const parts_norm_kind *head_norm; /* of q and k; NULL: none                                    */
    bool norm_full;                   /* ... over all heads at once, not each on its own             */
    bool norm_last;                   /* ... behind the rotation                                    */
    bool norm_own;                    /* ... with a weight for each head: a matrix, or, with norm_list, */
    const char *norm_list;            /* ... norms of this list in the module                        */
    const parts_norm_kind *v_norm;    /* of each head of v; NULL: none                              */
    int64_t hidden, heads, kv_heads, head_dim;
    int64_t v_dim;         /* of a head's values; 0: head_dim                                               */
    int64_t out;           /* width of what o_proj gives; 0: hidden                                         */
    int rope;              /* which of the model's rotations, GQA_NO_ROPE                          */
    int64_t window, chunk; /* positions that are seen, or blocks of them; 0: all                   */
    double scale, softcap; /* of the scores; softcap 0: none                                       */
    tn_dtype alibi;        /* scores grow with the key's position, which slopes of this type multiply; 0: no */
    double alibi_scale;    /* ... times this                                                         */
    double k_scale;        /* factor of keys, before they are rotated; 0: none                        */
    double clip;           /* q, k and v within -clip .. clip; 0: no                               */
    double v_scale;        /* factor of the values; 0: none                                        */
    bool qkv_bias, o_bias;
    const parts_linear_kind *linear; /* NULL: Linear                                                 */
    bool fused;                      /* q, k and v are one projection                                            */
    bool by_head;                    /* ... whose rows are queries, key and value of key head 0, those of 1, ... */
    bool gated;                      /* q_proj gives a query and a gate for each head; the result times sigmoid(gate) */
    bool sinks;                      /* a score for each head that takes part in the softmax                     */
    bool scale_q;                    /* queries times a factor that follows their position (graph_run.q_scale)    */
    bool both_sides;                 /* tokens see those behind them, too                                        */
    bool k_is_v;                     /* no v_proj: values are what k_proj gives                                  */
    bool borrows;                    /* no keys and values of its own: those of layer                            */
    int64_t from_layer;              /* ... this                                                                */
    const char *const *adapters;     /* lists of those of q, k and v, which are apart; NULL: none               */
    int64_t adapter, adapter_rank;   /* ... of this element                                                      */
} gqa_spec;

typedef struct gqa {
    graph_site *q, *k, *v, *o;            /* q: of all three where fused; v NULL: k's                        */
    adapter adapters[3];                  /* of q, k and v                                          */
    graph_site *q_norm, *k_norm, *v_norm; /* or NULL                                                */
    tn_tensor q_weight, k_weight; /* [heads,D]: what normed heads are multiplied by, each by its row; or nothing */
    graph_site *site;             /* ATTENTION                                                     */
    tn_site *weigh;               /* the step that does                                            */
    graph_cut cut;                /* of what attention gives: the rank's heads; group NULL: all heads are here  */
    tn_site *clamp, *row_scale, *v_scale, *gate, *copy, *gather, *k_scale; /* steps, or NULL */
    int64_t heads, kv_heads, head_dim, v_dim, from_layer;
    int rope;
    bool fused, by_head, norm_full, norm_last, borrows;
} gqa;

/* The module self_attn and its sites. Errors stick in b. */
void gqa_build(graph_builder *b, graph_module *layer, const gqa_spec *spec, gqa *out);

/* How many heads of queries and of keys this rank has: whole groups that share keys, where every rank gets some and
 * nothing needs all heads at once; else all of them. */
void gqa_own_heads(const graph_builder *b, const gqa_spec *spec, int64_t *heads, int64_t *kv_heads);

/* What a session caches for it. */
model_layer gqa_cache(const graph_builder *b, const gqa_spec *spec);

/* x [B*T,H] to what o_proj gives. Where fewer tokens are wanted the run is narrowed to them once all keys are in the
 * cache; of none, nothing is computed. */
tn_tensor gqa_forward(graph_run *r, const gqa *a, const mixer_place *at, const tn_tensor *x);

#endif
