/* RMS_NORM and ADD_RMS_NORM: n = x / sqrt(mean(x^2) + eps) in f32, then by variant as tn_norm says. */
#include "eager/rows.h"
#include "eager/vec.h"

#include <math.h>

#define LANES 16

typedef struct norm_job {
    const tn_tensor *x, *gate, *weight, *add, *sum, *y; /* add and sum: ADD_RMS_NORM only        */
    tn_norm variant;
    float eps;
    int64_t width;
} norm_job;

EAGER_CLONES static float sum_squares(const float *x, int64_t n)
{
    float lane[LANES] = {0}, sum = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l] * x[i + l];
    for (; i < n; i++)
        sum += x[i] * x[i];
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

EAGER_CLONES static void multiply_1_plus(float *x, const float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= 1.0f + w[i];
}

static int64_t norm_chunk(const norm_job *job, int64_t at)
{
    return job->width - at < VEC_CHUNK ? job->width - at : VEC_CHUNK;
}

/* sum = rnd(x + add), the row that is then normalised. */
static void norm_add_row(const norm_job *job, int64_t row)
{
    const char *x = rows_at(job->x, row), *r = rows_at(job->add, row);
    char *sum = rows_at(job->sum, row);
    size_t x_size = tn_dtype_size(job->x->dtype), r_size = tn_dtype_size(job->add->dtype);
    size_t sum_size = tn_dtype_size(job->sum->dtype);
    float a[VEC_CHUNK], b[VEC_CHUNK];
    for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
        int64_t n = norm_chunk(job, i);
        convert_to_f32(x + (size_t)i * x_size, job->x->dtype, a, n);
        convert_to_f32(r + (size_t)i * r_size, job->add->dtype, b, n);
        vec_add(a, b, n);
        convert_from_f32(a, job->sum->dtype, sum + (size_t)i * sum_size, n);
    }
}

/* t holds n values of x * r; on return what is to be rounded and stored. */
static void norm_finish(const norm_job *job, int64_t row, int64_t at, float *t, int64_t n, tn_dtype dtype)
{
    float w[VEC_CHUNK];
    if (job->variant == TN_NORM_NO_WEIGHT)
        return;
    const tn_tensor *weight = job->weight;
    convert_to_f32((const char *)weight->data + (size_t)at * tn_dtype_size(weight->dtype), weight->dtype, w, n);
    if (job->variant == TN_NORM_1_PLUS_W) {
        multiply_1_plus(t, w, n);
        return;
    }
    if (job->variant == TN_NORM_W_F32) {
        vec_mul(t, w, n);
        return;
    }
    vec_round(t, n, dtype);
    vec_mul(t, w, n);
    if (job->variant == TN_NORM_W_GATED) {
        vec_round(t, n, dtype);
        convert_to_f32(rows_at(job->gate, row) + (size_t)at * tn_dtype_size(job->gate->dtype), job->gate->dtype, w, n);
        vec_act(TN_ACT_SILU, TN_F32, w, n);
        vec_mul(t, w, n);
    }
}

static void norm_row(const norm_job *job, const tn_tensor *from, int64_t row)
{
    const char *x = rows_at(from, row);
    char *y = rows_at(job->y, row);
    size_t x_size = tn_dtype_size(from->dtype), y_size = tn_dtype_size(job->y->dtype);
    float t[VEC_CHUNK];
    double total = 0.0;
    for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
        int64_t n = norm_chunk(job, i);
        convert_to_f32(x + (size_t)i * x_size, from->dtype, t, n);
        total += sum_squares(t, n);
    }
    float scale = 1.0f / sqrtf((float)(total / (double)job->width) + job->eps);
    for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
        int64_t n = norm_chunk(job, i);
        convert_to_f32(x + (size_t)i * x_size, from->dtype, t, n);
        vec_scale(t, n, scale);
        norm_finish(job, row, i, t, n, from->dtype);
        convert_from_f32(t, job->y->dtype, y + (size_t)i * y_size, n);
    }
}

static void norm_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const norm_job *job = ctx;
    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        if (job->add)
            norm_add_row(job, row);
        norm_row(job, job->add ? job->sum : job->x, row);
    }
}

static tn_status norm_run(const tn_call *call, norm_job *job, tn_error *err)
{
    job->weight = rows_param(call->site, TN_ROLE_WEIGHT);
    job->variant = (tn_norm)call->site->meaning[TN_AXIS_NORM];
    job->eps = (float)call->site->num[TN_NUM_EPS];
    job->width = rows_width(job->x);
    if (job->variant < TN_NORM_W || job->variant > TN_NORM_NO_WEIGHT ||
        (job->variant != TN_NORM_NO_WEIGHT && !job->weight))
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "norm variant %d without its weight; report this defect",
                       (int)job->variant);
    tn_parallel_for(rows_count(job->x), rows_grain(job->width), norm_rows, job);
    return TN_OK;
}

static tn_status rms_norm_forward(const tn_call *call, tn_error *err)
{
    norm_job job = {.x = &call->in[0], .gate = &call->in[1], .y = &call->out[0]};
    return norm_run(call, &job, err);
}

static tn_status add_rms_norm_forward(const tn_call *call, tn_error *err)
{
    norm_job job = {.x = &call->in[0], .add = &call->in[1], .sum = &call->out[0], .y = &call->out[1]};
    if (call->site->meaning[TN_AXIS_NORM] == TN_NORM_W_GATED)
        return tn_fail(err, TN_E_INTERNAL, call->site->path,
                       "ADD_RMS_NORM has no gate for a gated norm; report this defect");
    return norm_run(call, &job, err);
}

const eager_op eager_rms_norm = {.op = TN_OP_RMS_NORM, .forward = rms_norm_forward};
const eager_op eager_add_rms_norm = {.op = TN_OP_ADD_RMS_NORM, .forward = add_rms_norm_forward};
