/* RMS_NORM and ADD_RMS_NORM: n = x / sqrt(mean(x^2) + eps) in f32, then by variant as tn_norm says. */
#include "eager/rms_norm.h"

#include <math.h>

#define LANES 16

CLONES static float sum_squares(const float *x, int64_t n)
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

float rms_norm_scale(const norm_job *job, double sum_squares)
{
    return 1.0f / sqrtf((float)(sum_squares / (double)job->span) + job->eps);
}

/* t times silu(gate). */
static void times_gate(const norm_job *job, int64_t row, int64_t at, float *t, int64_t n)
{
    float s[VEC_CHUNK];
    norm_load(job->gate, row, at, s, n);
    vec_act(TN_ACT_SILU, TN_F32, s, n);
    vec_mul(t, s, n);
}

void rms_norm_load(const norm_job *job, const tn_tensor *from, int64_t row, int64_t at, float *out, int64_t n)
{
    norm_load(from, row, at, out, n);
    if (job->variant == TN_NORM_GATED_W)
        times_gate(job, row, at, out, n);
}

CLONES static void multiply_1_plus(float *x, const float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= 1.0f + w[i];
}

/* sum = rnd(x + add), the row that is then normalised. */
static void norm_add_row(const norm_job *job, int64_t row)
{
    float a[VEC_CHUNK], b[VEC_CHUNK];
    for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
        int64_t n = norm_length(i, job->width);
        norm_load(job->x, row, i, a, n);
        norm_load(job->add, row, i, b, n);
        vec_add(a, b, n);
        norm_store(job->sum, row, i, a, n);
    }
}

/* t holds n values of x * r; on return what is to be rounded and stored. */
static void norm_finish(const norm_job *job, int64_t row, int64_t at, float *t, int64_t n, tn_dtype dtype)
{
    float w[VEC_CHUNK];
    if (job->variant == TN_NORM_NO_WEIGHT)
        return;
    norm_load_weight(job->weight, at, w, n);
    if (job->variant == TN_NORM_1_PLUS_W) {
        multiply_1_plus(t, w, n);
        return;
    }
    if (rms_norm_rounds(job->variant))
        vec_round(t, n, dtype);
    vec_mul(t, w, n);
    if (job->variant == TN_NORM_W_GATED)
        vec_round(t, n, dtype);
    if (job->variant == TN_NORM_W_GATED || job->variant == TN_NORM_W_GATED_F32)
        times_gate(job, row, at, t, n);
}

/* A row, or the group of it that begins at column first. */
static void norm_span(const norm_job *job, const tn_tensor *from, int64_t row, int64_t first)
{
    float t[VEC_CHUNK];
    double total = 0.0;
    int64_t end = first + job->span;
    for (int64_t i = first; i < end; i += VEC_CHUNK) {
        int64_t n = norm_length(i, end);
        rms_norm_load(job, from, row, i, t, n);
        total += (double)sum_squares(t, n);
    }
    float scale = rms_norm_scale(job, total);
    for (int64_t i = first; i < end; i += VEC_CHUNK) {
        int64_t n = norm_length(i, end);
        rms_norm_load(job, from, row, i, t, n);
        vec_scale(t, n, scale);
        norm_finish(job, row, i, t, n, from->dtype);
        norm_store(job->y, row, i, t, n);
    }
}

static void norm_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const norm_job *job = ctx;
    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        if (job->add)
            norm_add_row(job, row);
        for (int64_t first = 0; first < job->width; first += job->span)
            norm_span(job, job->add ? job->sum : job->x, row, first);
    }
}

tn_status rms_norm_make(const tn_call *call, norm_job *job, tn_error *err)
{
    bool adds = call->op == TN_OP_ADD_RMS_NORM;
    int64_t groups = call->site->features & TN_HAS_GROUPS ? call->site->dim[TN_DIM_GROUPS] : 1;
    *job = (norm_job){.x = &call->in[0],
                      .gate = adds ? NULL : &call->in[1],
                      .add = adds ? &call->in[1] : NULL,
                      .weight = rows_param(call->site, TN_ROLE_WEIGHT),
                      .variant = (tn_norm)call->site->meaning[TN_AXIS_NORM],
                      .eps = (float)call->site->num[TN_NUM_EPS],
                      .width = rows_width(&call->in[0]),
                      .span = rows_width(&call->in[0]) / groups};
    if (job->variant < TN_NORM_W || job->variant > TN_NORM_W_GATED_F32 ||
        (job->variant != TN_NORM_NO_WEIGHT && !job->weight))
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "norm variant %d without its weight; report this defect",
                       (int)job->variant);
    if (adds && rms_norm_is_gated(job->variant))
        return tn_fail(err, TN_E_INTERNAL, call->site->path,
                       "ADD_RMS_NORM has no gate for a gated norm; report this defect");
    return TN_OK;
}

tn_status rms_norm_forward(const tn_call *call, tn_error *err)
{
    norm_job job;
    tn_status status = rms_norm_make(call, &job, err);
    job.sum = job.add ? &call->out[0] : NULL;
    job.y = &call->out[job.add ? 1 : 0];
    if (status == TN_OK)
        tn_parallel_for(rows_count(job.x), rows_grain(job.width), norm_rows, &job);
    return status;
}
