/* y = x W^T + b and its gradients for a whole call: blocks of tokens, threads, scratch. The arithmetic is in
 * plugins/common/product*.c, one file per instruction set. */
#ifndef LINEAR_H
#define LINEAR_H

#include "codes.h"
#include "product_grad.h"

/* A layer with the functions that compute it. */
typedef struct linear_layer {
    product_kernels kernels;
    product_matrix weight; /* rows [out, in]; of quantised ones only the bias                      */
    codes codes;           /* their rows, where it has a type                                      */
    codes_kernels unpacks;
    int32_t terms; /* of int8 that few tokens are rounded to for products of integers (INTS_DTYPES): 1, or 2, the second
                      being what the first leaves; 0: they are taken as they are                             */
    bool many_ints; /* many tokens are rounded to as many, and a token's bits are the same in any call       */
    int64_t in, out;
    int64_t max_tokens; /* of a call                                                               */
    int32_t threads;    /* most of a call                                                          */
} linear_layer;

/* Bytes of scratch. */
size_t linear_scratch_size(const linear_layer *layer);
size_t linear_backward_scratch_size(const linear_layer *layer);

/* Multiply-adds that one thread does while the team wakes up: less work than this stays on the calling thread. */
enum { linear_serial_work = 30000 };

/* x [..., in] and y [..., out] of the layer's dtype, of at most max_tokens tokens, rows dense. */
void linear_forward(const linear_layer *layer, const tn_tensor *x, const tn_tensor *y, void *scratch)
    __attribute__((nonnull(4)));

/* Where gradients come from and go to. A tensor that is NULL or has no data is not wanted; dy without data is zero. */
typedef struct linear_gradients {
    const tn_tensor *dy, *dx, *weight, *bias;
} linear_gradients;

/* Fails where the rows of x or dy do not lie at one distance. where: the site's path, for errors. */
tn_status linear_backward(const linear_layer *layer, const tn_tensor *x, const linear_gradients *to, void *scratch,
                          const char *where, tn_error *err) __attribute__((nonnull(4)));

#endif
