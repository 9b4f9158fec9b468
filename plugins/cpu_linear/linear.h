/* y = x W^T + b and its gradients for a whole call: blocks of tokens, threads, scratch. The arithmetic is in
 * plugins/common/product*.c, one file per instruction set. */
#ifndef LINEAR_H
#define LINEAR_H

#include "product_mlp.h"

/* A layer with the functions that compute it. */
typedef struct linear_layer {
    product_kernels kernels;
    product_matrix weight; /* rows [out, in]                                                       */
    int64_t in, out;
    int64_t max_tokens; /* of a call                                                               */
    int32_t threads;    /* most of a call                                                          */
} linear_layer;

/* Bytes of scratch. */
size_t linear_scratch_size(const linear_layer *layer);

/* x [..., in] and y [..., out] of the layer's dtype, of at most max_tokens tokens, rows dense. */
void linear_forward(const linear_layer *layer, const tn_tensor *x, const tn_tensor *y, void *scratch);

#endif
