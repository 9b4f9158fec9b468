/* Inside plugins/ascend: operators on rows, and views. As npu_ops.h. */
#ifndef ASCEND_OPERATORS_ROWS_H
#define ASCEND_OPERATORS_ROWS_H

#include "operators.h"

/* A view; dense where stride is NULL. */
tn_tensor npu_view(const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride);

/* Sums along the last dimension, which stays with one element. y is no input. */
void npu_sums(npu_run *r, tn_tensor x, tn_tensor y);

/* y [n,a,c] = x [n,a,b] w [n,b,c] of one type, summed in f32 and rounded once; y dense. */
void npu_batch_matmul(npu_run *r, tn_tensor x, tn_tensor w, tn_tensor y);

/* bins[i] f32 = how many of x, whole numbers as f32, are i. */
void npu_count(npu_run *r, tn_tensor x, tn_tensor bins);

/* The host's memory may be reused at once. */
void npu_put(npu_run *r, void *device, const void *host, size_t bytes);
void npu_no_memory(npu_run *r);

#endif
