/* Inside core/eager: products of matrices on the calling thread, through oneDNN. What is computed never depends on how
 * many threads there are: callers cut their work into tiles whose sizes follow from shapes alone. */
#ifndef TENON_CORE_EAGER_GEMM_H
#define TENON_CORE_EAGER_GEMM_H

#include "eager/eager.h"
#include "op/weight.h"

/* What one thread needs to call oneDNN: taken from a pool and given back. Between the two, OpenMP's number of threads
 * is 1 for this thread, so that oneDNN starts none. NULL (out of memory) is taken by every function: plain C then. */
typedef struct gemm_context gemm_context;
gemm_context *gemm_acquire(void);
void gemm_release(gemm_context *context);

typedef enum gemm_form {
    GEMM_NT, /* a [m,k], w [n,k]: c = a w^T                                                      */
    GEMM_NN, /* a [m,k], w [k,n]: c = a w                                                        */
    GEMM_TN  /* a [k,m], w [k,n]: c = a^T w                                                      */
} gemm_form;
#define GEMM_FORMS 3

/* c [m,n] f32 = a times w. Strides count elements from row to row. */
typedef struct gemm_shape {
    tn_dtype type; /* of a, and of the product: f32, or bf16 where gemm_type says so             */
    tn_dtype w_type;
    gemm_form form;
    int64_t m, n, k, lda, ldw, ldc;
    /* Quantised weights, of which this is the product with rows and columns from these on; w and ldw have no meaning
     * then. NULL: they are not. */
    const weight *quantised;
    int64_t w_row, w_column;
} gemm_shape;

/* The type in which a product of x and w is computed: their own where oneDNN does that directly, else f32. */
tn_dtype gemm_type(tn_dtype x, tn_dtype w);

/* work: gemm_work_size(k) bytes, for weights that have to be converted, or copied because their address is odd; may be
 * NULL where neither can be. */
size_t gemm_work_size(int64_t k);
void gemm_run(gemm_context *context, const gemm_shape *shape, const void *a, const void *w, float *c, void *work);

/* c [m,n] = a times w, all f32 and dense. */
void gemm_dense(gemm_context *context, gemm_form form, int64_t m, int64_t n, int64_t k, const float *a, const float *w,
                float *c);

/* Makes oneDNN's code for products of values of this type: what is forked later has it. [any thread] */
void gemm_prepare(tn_dtype type);

/* TN_E_MEMORY once oneDNN ran out of memory: plain C took its place from then on, whose sums round otherwise, and the
 * process goes without it. [any thread] */
tn_status gemm_check(tn_error *err);

/* Columns and rows of the tiles that a product is cut into, from its shape alone. */
int64_t gemm_tile_columns(int64_t n);
int64_t gemm_tile_rows(int64_t m);

/* Tiles of a product that are worth waking a thread for, given the rows, columns and inner size of one. */
int64_t gemm_grain(int64_t m, int64_t n, int64_t k);

#endif
