/* Inside core/eager: what RMS_NORM and ADD_RMS_NORM and their gradients share. */
#ifndef TENON_CORE_EAGER_RMS_NORM_H
#define TENON_CORE_EAGER_RMS_NORM_H

#include "eager/rows.h"
#include "eager/vec.h"

typedef struct norm_job {
    const tn_tensor *x, *gate, *weight, *add, *sum, *y; /* add and sum: ADD_RMS_NORM; sum and y: forward only */
    tn_norm variant;
    float eps;
    int64_t width, span; /* of a row; of what is normalised at once: a row, or a group of it       */
} norm_job;

/* The job of a call without what only forward has; an error where the site contradicts itself. */
tn_status rms_norm_make(const tn_call *call, norm_job *job, tn_error *err);

/* Is it rounded before it is multiplied by the weight? */
static inline bool rms_norm_rounds(tn_norm variant)
{
    return variant == TN_NORM_W || variant == TN_NORM_W_GATED;
}

static inline bool rms_norm_is_gated(tn_norm variant)
{
    return variant == TN_NORM_W_GATED || variant == TN_NORM_GATED_W || variant == TN_NORM_W_GATED_F32;
}

/* Elements of the piece that begins at column at, of those before column end. */
static inline int64_t norm_length(int64_t at, int64_t end)
{
    return end - at < VEC_CHUNK ? end - at : VEC_CHUNK;
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

/* rms_norm.c: n elements of what is normalised: those of from, times silu(gate) where that comes first. */
void rms_norm_load(const norm_job *job, const tn_tensor *from, int64_t row, int64_t at, float *out, int64_t n);

/* rms_norm.c: the factor of a row or group with this sum of squares. */
float rms_norm_scale(const norm_job *job, double sum_squares);

/* Forward, beside backward in rms_norm_grad.c, where the operation is put together. */
tn_status rms_norm_forward(const tn_call *call, tn_error *err);

#endif
