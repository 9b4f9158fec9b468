/* LAYER_NORM: y = rnd((x - mean) / sqrt(var + eps) * w + b), var the mean of (x - mean)^2; everything before the
 * rounding in f32, as torch.nn.LayerNorm and Cohere2LayerNorm compute it. */
#include "eager/layer_norm.h"

#include "eager/vec.h"

#include <math.h>

typedef struct norm_job {
    const tn_tensor *x, *y, *weight, *bias;
    float eps;
    int64_t width;
} norm_job;

static void load(const tn_tensor *t, int64_t row, int64_t at, float *out, int64_t n)
{
    convert_to_f32(rows_at(t, row) + (size_t)at * tn_dtype_size(t->dtype), t->dtype, out, n);
}

/* The sums of x - shift and of its squares: in lanes, so that they are added a few at a time. */
CLONES static void add_moments(const float *x, int64_t n, float shift, double *sum, double *squares)
{
    enum { LANES = 8 };
    double s[LANES] = {0}, q[LANES] = {0};
    for (int64_t i = 0; i < n; i += LANES)
        for (int64_t l = 0; l < LANES && i + l < n; l++) {
            double d = (double)x[i + l] - (double)shift;
            s[l] += d;
            q[l] += d * d;
        }
    for (int l = 0; l < LANES; l++) {
        *sum += s[l];
        *squares += q[l];
    }
}

layer_norm_row layer_norm_statistics(const tn_tensor *x, int64_t row, float eps)
{
    int64_t width = rows_width(x);
    float t[VEC_CHUNK], first = 0;
    double sum = 0, squares = 0;
    /* Around the first element: a mean far from zero then costs no digits of the variance. */
    load(x, row, 0, &first, 1);
    for (int64_t at = 0; at < width; at += VEC_CHUNK) {
        int64_t n = width - at < VEC_CHUNK ? width - at : VEC_CHUNK;
        load(x, row, at, t, n);
        add_moments(t, n, first, &sum, &squares);
    }
    double mean = sum / (double)width, variance = squares / (double)width - mean * mean;
    return (layer_norm_row){(float)((double)first + mean),
                            (float)(1 / sqrt((variance > 0 ? variance : 0) + (double)eps))};
}

CLONES static void normalise(float *x, int64_t n, float mean, float scale, const float *w, const float *b)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) * scale * w[i] + b[i];
}

static void norm_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const norm_job *job = ctx;
    float t[VEC_CHUNK], w[VEC_CHUNK], b[VEC_CHUNK] = {0};
    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        layer_norm_row s = layer_norm_statistics(job->x, row, job->eps);
        for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
            int64_t n = job->width - at < VEC_CHUNK ? job->width - at : VEC_CHUNK;
            load(job->x, row, at, t, n);
            load(job->weight, 0, at, w, n);
            if (job->bias)
                load(job->bias, 0, at, b, n);
            normalise(t, n, s.mean, s.scale, w, b);
            convert_from_f32(t, job->y->dtype, rows_at(job->y, row) + (size_t)at * tn_dtype_size(job->y->dtype), n);
        }
    }
}

tn_status layer_norm_forward(const tn_call *call, tn_error *err)
{
    (void)err;
    norm_job job = {.x = &call->in[0],
                    .y = &call->out[0],
                    .weight = rows_param(call->site, TN_ROLE_WEIGHT),
                    .bias = rows_param(call->site, TN_ROLE_BIAS),
                    .eps = (float)call->site->num[TN_NUM_EPS],
                    .width = rows_width(&call->in[0])};
    tn_parallel_for(rows_count(job.x), rows_grain(job.width), norm_rows, &job);
    return TN_OK;
}
