/* RMS norm of runs of rows and its gradients: the table of functions and their argument. */
#ifndef TENON_RMSNORM_H
#define TENON_RMSNORM_H

#include <tenon/kernel.h>

/* What the rows of a tensor are. */
typedef enum rmsnorm_tensor {
    NORM_X,    /* input                                                                        */
    NORM_R,    /* input that is added to x before the norm; absent: nothing is                 */
    NORM_GATE, /* input of TN_NORM_W_GATED                                                     */
    NORM_Y,    /* forward: the norm                                                            */
    NORM_SUM,  /* forward: x + r                                                               */
    NORM_DY,   /* backward: the gradient of y, read                                            */
    NORM_DSUM, /* backward: the gradient of sum, read; absent: zeros                           */
    NORM_DX,   /* backward: the gradients of the inputs, written; absent: not wanted           */
    NORM_DR,   /*   (that of r is that of x)                                                   */
    NORM_DGATE,
    NORM_TENSORS
} rmsnorm_tensor;

/* Rows of width elements of dtype (f32, bf16 or f16), each dense, at constant steps in bytes. Any alignment. y may be
 * x, sum may be x or r, a gradient of x or r may be one of y or sum; rows of different arrays do not overlap otherwise.
 */
typedef struct rmsnorm_rows {
    char *row[NORM_TENSORS]; /* the first row of each; NULL: absent                               */
    ptrdiff_t step[NORM_TENSORS];
    const char *weight; /* [width]; NULL for TN_NORM_NO_WEIGHT                                  */
    float *dw;          /* backward: the weight's gradient is added to it; NULL: not wanted; see rmsnorm_blocks */
    int64_t count, width;
    tn_dtype dtype;
    float eps;
    tn_norm norm;
} rmsnorm_rows;

/* The weight's gradient in parts: f32 sums over blocks of rows, each of RMSNORM_DW_MULTIPLE elements or a multiple of
 * that, 64-byte aligned, in an order of elements that only the variant which adds to them knows. */
enum { RMSNORM_DW_MULTIPLE = 64 };

typedef struct rmsnorm_blocks {
    const float *sums; /* block b at sums + b * step                                           */
    int64_t count, step;
    tn_dtype dtype;
    char *dw; /* [width] of the dtype                                                    */
} rmsnorm_blocks;

typedef void rmsnorm_fn(const rmsnorm_rows *rows);

/* Elements begin .. end - 1 of dw: the sums in the order of the blocks, rounded. begin: a multiple as above. */
typedef void rmsnorm_blocks_fn(const rmsnorm_blocks *blocks, int64_t begin, int64_t end);

typedef struct rmsnorm_kernels {
    rmsnorm_fn *forward, *backward;
    rmsnorm_blocks_fn *add_blocks;
} rmsnorm_kernels;

/* m of a row's gradient, mean(h n), summed in double: for rows whose sum of products leaves the range of f32. */
float rmsnorm_mean(const rmsnorm_rows *a, int64_t row, tn_dtype dtype, float scale);

/* Fills every entry with the best that these flags allow. All variants add in the same order: forward gives the same
 * bits, except for silu(gate) and for squares below the normal numbers of f32; backward differs in the last places. */
void rmsnorm_kernels_init(rmsnorm_kernels *table, uint64_t cpu_flags);
void rmsnorm_kernels_init_avx2(rmsnorm_kernels *table);
void rmsnorm_kernels_init_avx512(rmsnorm_kernels *table);
void rmsnorm_kernels_init_avx512bf16(rmsnorm_kernels *table);
void rmsnorm_kernels_init_neon(rmsnorm_kernels *table);

/* The implementations on an Ascend device. */
enum { RMSNORM_ASCEND_IMPLS = 3 };
extern const tn_impl rmsnorm_ascend_impls[RMSNORM_ASCEND_IMPLS];

#endif
