/* Inside plugins/ascend: operators on rows: of scores, and of tokens sorted by expert. As operators.h. */
#ifndef ASCEND_OPERATORS_ROWS_H
#define ASCEND_OPERATORS_ROWS_H

#include "operators.h"

/* A view; dense where stride is NULL. */
tn_tensor npu_view(const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride);

void npu_divide(npu_run *r, const tn_tensor *a, const tn_tensor *b, const tn_tensor *y);

/* Along the last dimension: softmax; sums, which keep it with length 1; y = a and b side by side. y is not an input. */
void npu_softmax(npu_run *r, const tn_tensor *x, const tn_tensor *y);
void npu_sums(npu_run *r, const tn_tensor *x, const tn_tensor *y);
void npu_join(npu_run *r, const tn_tensor *a, const tn_tensor *b, const tn_tensor *y);

/* The k largest of each row of x [rows,n] by falling value: values, and their places [rows,k] i64. */
void npu_largest(npu_run *r, const tn_tensor *x, int64_t k, const tn_tensor *values, const tn_tensor *places);

/* y [n,a,c] = x [n,a,b] w [n,b,c] of one type, summed in f32 and rounded once; y dense. */
void npu_batch_matmul(npu_run *r, const tn_tensor *x, const tn_tensor *w, const tn_tensor *y);

/* rows [T k,H] = tokens [T,H] in the order of their ids [T,k] or [T] i32, k times each; order [T k] i32 says where the
 * row of each is. Back: y [T,H] = the sums of rows times weights [T,k], in f32 in the order of the ids, rounded once.
 * All dense. */
void npu_permute(npu_run *r, const tn_tensor *tokens, const tn_tensor *ids, const tn_tensor *rows,
                 const tn_tensor *order);
void npu_unpermute(npu_run *r, const tn_tensor *rows, const tn_tensor *order, const tn_tensor *weights,
                   const tn_tensor *y);

/* bins[i] f32 = how many of x, whole numbers as f32, are i. */
void npu_count(npu_run *r, const tn_tensor *x, const tn_tensor *bins);

/* The host's memory may be reused at once. */
void npu_put(npu_run *r, void *device, const void *host, size_t bytes);
void npu_no_memory(npu_run *r);

#endif
