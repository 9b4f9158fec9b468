/* y = down(silu(gate(x)) * up(x)) for a whole call: blocks of tokens, threads, scratch. The arithmetic is in
 * plugins/common/product*.c, one file per instruction set. */
#ifndef SWIGLU_H
#define SWIGLU_H

#include "product_mlp.h"

typedef struct swiglu_shape {
    int64_t hidden, inter;
    int64_t max_tokens; /* of a call                                                               */
    int32_t threads;    /* most of a call                                                          */
} swiglu_shape;

/* Bytes of scratch that swiglu_forward needs. */
size_t swiglu_scratch_size(const product_kernels *kernels, const swiglu_shape *shape);

/* x and y [..., hidden] of kernels->dtype, of at most shape->max_tokens tokens, rows dense. wide: the kernels of the
 * same dtype whose native type is f32. */
void swiglu_forward(const product_kernels *kernels, const product_kernels *wide, const swiglu_shape *shape,
                    const product_mlp *mlp, tn_act act, const tn_tensor *x, const tn_tensor *y, void *scratch);

#endif
