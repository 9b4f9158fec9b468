/* Reference of products of matrices and gated MLPs in double, with bounds derived from the operands. */
#ifndef TENON_CHECK_PRODUCTS_H
#define TENON_CHECK_PRODUCTS_H

#include "check_kernels.h"

/* A number with the largest distance that a kernel may have from it. */
typedef struct estimate {
    double value, error;
} estimate;

/* As wanted and as its bound. */
void estimate_store(estimate e, double *want, double *bound, int64_t at);

/* What a kernel in dtype may do: sums in f32, each step rounded to dtype or not. */
estimate estimate_exact(double value);
estimate estimate_rounded(tn_dtype dtype, estimate e);
estimate estimate_product(tn_dtype dtype, estimate a, estimate b);
estimate estimate_act(tn_act act, tn_dtype dtype, estimate x);

/* sum of a[i] * b[i] (b exact, b_stride elements apart) + bias. */
estimate estimate_dot(tn_dtype dtype, const estimate *a, const double *b, int64_t b_stride, int64_t n, double bias);

/* One gated MLP in double: gate and up [inter, hidden], down [hidden, inter], row-major; biases may be NULL. */
typedef struct reference_mlp {
    tn_dtype dtype;
    tn_act act; /* 0: TN_ACT_SILU                                                                  */
    int64_t hidden, inter;
    const double *gate, *up, *down;
    const double *gate_bias, *up_bias, *down_bias;
    bool sparse; /* with Gaussian sparsity                                                         */
    double quantile;
} reference_mlp;

/* The middle of a token's MLP: sums of gate and up, and what the activation is applied to: the gate, or what a cut
 * leaves of it. */
typedef struct reference_middle {
    estimate *gate, *up, *arg; /* [inter]                                                          */
    estimate mean, deviation;  /* of a sparse row                                                  */
} reference_middle;

void reference_mlp_middle(const reference_mlp *m, const double *x, reference_middle *row);

/* y[hidden] from x[hidden]; h: room for inter estimates. */
void reference_mlp_token(const reference_mlp *m, const double *x, estimate *h, estimate *y);

/* ---- gradients (products_grad.c) --------------------------------------------------------------------------- */

/* As the tensors that they belong to, row-major; zeroed by the caller.                            */
typedef struct reference_gradients {
    estimate *x, *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
} reference_gradients;

/* x and dy [tokens, hidden]. */
void reference_mlp_gradients(const reference_mlp *m, const double *x, const double *dy, int64_t tokens,
                             reference_gradients *to);

#endif
