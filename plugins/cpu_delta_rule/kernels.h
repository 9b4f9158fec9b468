/* The arithmetic of the delta rule: rows, small products and triangular systems in f32, one table of functions for each
 * instruction set. What is done with them is in forward.c and backward.c, once for all. */
#ifndef DELTA_RULE_KERNELS_H
#define DELTA_RULE_KERNELS_H

#include <tenon/kernel.h>

/* Where a [m,k] has only zeros: above its diagonal, or below it. Those are not multiplied, but must be there. */
typedef enum delta_form { DELTA_FULL, DELTA_LOWER, DELTA_UPPER } delta_form;

/* c [m,n] = scale from + a b, with b [k,n]. Element (i, j) of a lies at a[i * a_row + j * a_k], of b at
 * b[i * b_k + j * b_col], one of which is 1; rows of c and from are dense. from is not read where scale is 0, and may
 * be c. The sum over k runs from the first to the last, whatever m and n are. */
typedef struct delta_product {
    const float *a, *b, *from;
    float *c;
    int64_t a_row, a_k, b_k, b_col, from_row, c_row, m, n, k;
    float scale;
    delta_form form;
} delta_product;

/* Floats of scratch that a product needs for each of its k. */
enum { DELTA_PANEL = 32 };

/* What decays by less than e to this power is forgotten: as a factor it would make numbers below the normal ones, which
 * take a processor a hundred times as long. */
#define DELTA_FORGOTTEN (-78.0f)

/* One token: M' = decay M, d = beta (v - M'^T k), M = M' + k d^T, o = M^T q. M [dk,dv] is read from `from` and written
 * to `to`, which may be the same. v becomes d. seen: [dv] of scratch. ahead: where the state lies that is read next,
 * with rows as far apart, or NULL. */
typedef struct delta_token {
    const float *from, *k, *q, *ahead;
    float *to, *v, *o, *seen;
    int64_t from_row, to_row, dk, dv;
    float decay, beta;
} delta_token;

typedef struct delta_kernels {
    void (*load)(const void *from, tn_dtype dtype, int64_t n, float *to);
    void (*store)(const float *from, tn_dtype dtype, int64_t n, void *to);
    float (*dot)(const float *x, const float *y, int64_t n);
    void (*scale)(float *x, float factor, int64_t n);
    /* y += factor x */
    void (*add_scaled)(float *y, const float *x, float factor, int64_t n);
    /* e_j = e^(sign ((high - highs_j) + (low - lows_j))), or 0: see DELTA_FORGOTTEN */
    void (*decays)(float high, float low, float sign, const float *highs, const float *lows, int64_t n, float *e);
    void (*token)(const delta_token *token);
    void (*product)(const delta_product *product, float *panel);
    /* Rows of x [n,width], from the first to the last: x_i += sum_{j<i} l_ij x_j. n is at most DELTA_SOLVE. */
    void (*solve)(const float *l, int64_t l_row, int64_t n, float *x, int64_t x_row, int64_t width);
} delta_kernels;

enum { DELTA_SOLVE = 16 };

/* Fills every entry with the best that these flags allow. */
void delta_kernels_init(delta_kernels *kernels, uint64_t cpu_flags);
void delta_kernels_init_avx2(delta_kernels *kernels);
void delta_kernels_init_avx512(delta_kernels *kernels);
void delta_kernels_init_neon(delta_kernels *kernels);

#endif
