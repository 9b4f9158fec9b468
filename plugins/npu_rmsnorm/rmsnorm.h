/* RMS norm of runs of rows: the table of functions and their argument. */
#ifndef TENON_RMSNORM_H
#define TENON_RMSNORM_H

#include <tenon/kernel.h>

/* Rows of width elements of one dtype, each dense, at a constant step in bytes. Any alignment. y may be x; sum may be
 * x or r; rows of different arrays do not overlap otherwise. */
typedef struct rmsnorm_rows {
    const char *x, *r, *gate, *weight; /* r: what is added, add_norm only; gate: TN_NORM_W_GATED; weight: [width] */
    char *y, *sum;                     /* sum: x + r, add_norm only                             */
    ptrdiff_t x_step, r_step, gate_step, y_step, sum_step;
    int64_t count, width;
    float eps;
    tn_norm norm;
} rmsnorm_rows;

typedef void rmsnorm_fn(const rmsnorm_rows *rows);

/* By tn_dtype; entries of types other than f32, bf16, f16 are NULL. */
typedef struct rmsnorm_kernels {
    rmsnorm_fn *norm[TN_F16 + 1], *add_norm[TN_F16 + 1];
} rmsnorm_kernels;

/* Fills every entry with the best that these flags allow. All variants add the squares in the same order, so for the
 * same input they give the same bits, except for the last place of silu(gate). */
void rmsnorm_kernels_init(rmsnorm_kernels *table, uint64_t cpu_flags);
void rmsnorm_kernels_init_avx2(rmsnorm_kernels *table);
void rmsnorm_kernels_init_avx512(rmsnorm_kernels *table);
void rmsnorm_kernels_init_neon(rmsnorm_kernels *table);

#endif
