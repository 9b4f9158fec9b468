/* Gradients of the weights of a product y = x w^T: sums over tokens. The gradient of x is product_lines, with rows of
 * the upstream gradient and columns of the weight. */
#ifndef PRODUCT_GRAD_H
#define PRODUCT_GRAD_H

#include "product_mlp.h"

/* Element (t, i) of a matrix of tokens is at data + (t * stride + i) elements of the kernels' dtype. Borrowed. */
typedef product_columns product_tokens_matrix;

/* The rows of a tensor as one matrix; data NULL when they are not all at one distance. */
product_tokens_matrix product_all_rows(const tn_tensor *t);

/* Scratch of one thread; more tokens never take less. */
size_t product_grad_scratch_size(const product_kernels *kernels, int64_t tokens);

/* dw[r][c] = sum over t < tokens of a[t][r] * b[t][c], in f32, rounded once to dtype, for rows begin .. end - 1 and
 * columns 0 .. columns - 1; element (r, c) of dw is at dw + (r * stride + c) elements. No tokens: zeros. Rows may be
 * split between threads at multiples of product_unit; the order of the sums depends on tokens alone. */
void product_weight_grad(const product_kernels *kernels, const product_tokens_matrix *a, const product_tokens_matrix *b,
                         int64_t tokens, int64_t begin, int64_t end, int64_t columns, void *dw, int64_t stride,
                         void *scratch) __attribute__((nonnull(10)));

#endif
