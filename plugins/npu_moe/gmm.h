/* GROUPED_MATMUL: rows of x [T',in] that are sorted by group, times the matrix of their group. */
#ifndef GMM_H
#define GMM_H

#include "product_grad.h"

typedef struct gmm_layer {
    const product_kernels *kernels;
    const tn_tensor *weights; /* one per group, or all stacked                                               */
    bool list, io;            /* io: matrices are [in,out], else [out,in]                                    */
    int64_t groups, in, out;
} gmm_layer;

/* Bytes of scratch for calls of at most max_rows rows on at most `threads` threads. */
size_t gmm_scratch_size(const gmm_layer *layer, int64_t max_rows, int32_t threads);
size_t gmm_backward_scratch_size(const gmm_layer *layer, int64_t max_rows, int32_t threads);

/* y [T',out] of dtype. counts [E] i64. where: the site's path, for errors: counts that do not describe x; then nothing
 * is written. */
tn_status gmm_forward(const gmm_layer *layer, const tn_tensor *x, const tn_tensor *counts, const tn_tensor *y,
                      int64_t max_rows, int32_t threads, void *scratch, const char *where, tn_error *err)
    __attribute__((nonnull(7)));

/* g: dL/dy, data NULL: zeros. dx and dw as in tn_grads: data NULL, count 0: not wanted. */
tn_status gmm_backward(const gmm_layer *layer, const tn_tensor *x, const tn_tensor *counts, const tn_tensor *g,
                       const tn_tensor *dx, const tn_param *dw, int64_t max_rows, int32_t threads, void *scratch,
                       const char *where, tn_error *err) __attribute__((nonnull(9)));

#endif
