/* Inside npu_moe: experts whose first product and activation are done apart: gates and ups that take turns in a matrix'
 * columns, and the clamped activation. Their sums become rows of f32, up to 64 features at a time, which are activated
 * one token after the other. */
#ifndef MOE_APART_H
#define MOE_APART_H

#include "moe_run.h"

enum { MOE_APART = 64 }; /* features at a time: rows of gate and up fill a strip                     */

/* Is expert e one of them? */
static inline bool moe_is_apart(const moe_layer *layer, int64_t e)
{
    return layer->act == TN_ACT_CLAMPED_SWIGLU || (e < layer->experts && layer->layout == TN_LAYOUT_PAIRS_IO);
}

/* Do gates and ups take turns? Then gate has the rows of both. */
static inline bool moe_mlp_pairs(const product_mlp *mlp)
{
    return !mlp->up.data;
}

/* A token's sums of n features from f on become rows of gates and ups, rounded and with their biases, as eager has
 * them: which of them are cut off follows from that. In sums are pairs, or the gates; then in ups are the ups. */
void moe_apart_split(const moe_layer *layer, const product_mlp *mlp, const float *sums, const float *ups, int64_t f,
                     int64_t n, float *gate, float *up);

/* The matrix whose products are such sums. */
static inline product_matrix moe_apart_matrix(const product_matrix *w)
{
    return (product_matrix){w->data, w->row_stride, w->k_stride, NULL};
}

/* Bytes that moe_apart_tiles needs for so many tokens. */
static inline size_t moe_apart_size(const moe_layer *layer, int64_t tokens)
{
    return (size_t)tokens * (MOE_APART * (size_t)moe_element(layer) + sizeof(void *));
}

/* As product_glu_tiles and product_glu_few. strip: room for 2 MOE_APART numbers per token, y: for a pointer. */
void moe_apart_tiles(const moe_layer *layer, const product_mlp *mlp, const void *x, int64_t tokens, int64_t begin,
                     int64_t end, char *h, float *strip, void **y, char *rows, void *scratch);
void moe_apart_few(const moe_layer *layer, const product_mlp *mlp, const void *const *x, int32_t tokens, int64_t begin,
                   int64_t end, void *const *h, float *strip);

/* n features of one token: h = scale act(gate, up), dh's gradients of gate and up times scale, all f32; returns the sum
 * of dh act(gate, up). dh is used up. */
float moe_apart_grad(const moe_layer *layer, const float *gate, const float *up, int64_t n, float *dh, float scale,
                     float *h, float *d_gate, float *d_up);

#endif
