/* Inside core/eager: what RMS_NORM and ADD_RMS_NORM and their gradients share. */
#ifndef TENON_CORE_EAGER_RMS_NORM_H
#define TENON_CORE_EAGER_RMS_NORM_H

#include "eager/rows.h"
#include "eager/vec.h"

typedef struct norm_job {
    const tn_tensor *x, *gate, *weight, *add, *sum, *y; /* add and sum: ADD_RMS_NORM; sum and y: forward only */
    tn_norm variant;
    float eps;
    int64_t width;
} norm_job;

/* The job of a call without what only forward has; an error where the site contradicts itself. */
tn_status rms_norm_make(const tn_call *call, norm_job *job, tn_error *err);

static inline int64_t norm_length(const norm_job *job, int64_t at)
{
    return job->width - at < VEC_CHUNK ? job->width - at : VEC_CHUNK;
}

/* n elements of a row from column at on, as f32. */
static inline void norm_load(const tn_tensor *t, int64_t row, int64_t at, float *out, int64_t n)
{
    convert_to_f32(rows_at(t, row) + (size_t)at * tn_dtype_size(t->dtype), t->dtype, out, n);
}

/* The same of a weight, which is one row. */
static inline void norm_load_weight(const tn_tensor *t, int64_t at, float *out, int64_t n)
{
    convert_to_f32((const char *)t->data + (size_t)at * tn_dtype_size(t->dtype), t->dtype, out, n);
}

static inline void norm_store(const tn_tensor *t, int64_t row, int64_t at, const float *in, int64_t n)
{
    convert_from_f32(in, t->dtype, rows_at(t, row) + (size_t)at * tn_dtype_size(t->dtype), n);
}

/* rms_norm.c: the factor of a row with this sum of squares. */
float rms_norm_scale(const norm_job *job, double sum_squares);

/* Forward, beside backward in rms_norm_grad.c, where the operation is put together. */
tn_status rms_norm_forward(const tn_call *call, tn_error *err);

#endif
