/* Mixture of experts: y_t = sum over the k experts of token t of weight * expert(x_t), where an expert is a gated MLP;
 * with a router that chooses them, and with a shared expert that every token has besides. The products are those of
 * plugins/common/product*.c, one file per instruction set. */
#ifndef MOE_H
#define MOE_H

#include "product_mlp.h"

/* What a site says, with its weights. Borrowed from the site. */
typedef struct moe_layer {
    tn_dtype dtype;
    tn_act act;
    int64_t hidden, inter, experts, top_k;
    tn_layout layout;
    const tn_tensor *gate, *up, *down, *gate_up; /* arrays of one per expert, or stacked tensors   */
    /* Only for whole blocks: */
    const tn_tensor *router; /* [E,H]; NULL: the caller routes                                     */
    bool renormalise, f32_weights;
    int64_t shared_inter; /* 0: no shared expert                                                   */
    const tn_tensor *shared_gate, *shared_up, *shared_down;
    const tn_tensor *shared_scale; /* [1,H]: the shared expert counts sigmoid(x . it) times; or NULL */
} moe_layer;

/* Expert e, or the shared one for e == layer->experts. */
product_mlp moe_expert(const moe_layer *layer, int64_t e);

/* Slots per token: one per chosen expert, then the shared expert. */
static inline int64_t moe_slots(const moe_layer *layer)
{
    return layer->top_k + (layer->shared_inter > 0);
}

/* ---- moe_route.c ---------------------------------------------------------------------------------------- */

/* Softmax over `experts` logits of dtype, the top_k best (the lowest id first among equals) in descending order;
 * weights are divided by their sum if the layer says so, and rounded to dtype unless they stay f32. False: a score is
 * NaN. */
bool moe_choose(const product_kernels *kernels, const moe_layer *layer, const void *logits, float *probability,
                float *weights, int32_t *experts);

/* Tokens by expert: slots[offsets[e] .. offsets[e + 1] - 1] are the places token * slots-per-token + j of expert e's
 * tokens, ascending; e runs to the number of experts, the shared one included. experts: top_k ids per token. */
void moe_group(const moe_layer *layer, const int32_t *experts, int64_t tokens, int32_t *offsets, int32_t *slots);

/* The piece of the grouped tokens that a thread does: a place in the list of experts and a token there. */
typedef struct moe_place {
    int64_t expert, token;
} moe_place;

/* Where share `thread` of `threads` equal shares of the work begins. Experts are only cut where both parts remain
 * products of many tokens, at whole tiles. */
moe_place moe_cut(const moe_layer *layer, const int32_t *offsets, int32_t thread, int32_t threads);

/* ---- moe.c ------------------------------------------------------------------------------------------------ */

/* Bytes of scratch for calls of at most max_tokens tokens on at most `threads` threads. */
size_t moe_scratch_size(const product_kernels *kernels, const moe_layer *layer, int64_t max_tokens, int32_t threads);

/* One call. weights [T,k] (f32 or dtype) and experts [T,k] i32 are NULL for a layer with a router. where: the site's
 * path for errors: an expert id out of range, a score that is NaN; then nothing is written. */
tn_status moe_forward(const product_kernels *kernels, const moe_layer *layer, int64_t max_tokens, int32_t threads,
                      const tn_tensor *x, const tn_tensor *weights, const tn_tensor *experts, const tn_tensor *y,
                      void *scratch, const char *where, tn_error *err);

#endif
