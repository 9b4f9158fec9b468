/* SOFTCAP: cap tanh(x / cap) with cap the site's TN_NUM_SOFTCAP, rounded after each of its three steps. */
#include "eager/softcap.h"

#include "eager/rows.h"
#include "eager/vec.h"

typedef struct softcap_job {
    const tn_tensor *x, *g, *y; /* y: the result, or dL/dx                                         */
    int64_t width;
    float cap;
} softcap_job;

/* tanh(x / cap). */
static void softcap_tanh(float *x, int64_t n, float cap, tn_dtype dtype)
{
    vec_div(x, n, cap);
    vec_round(x, n, dtype);
    vec_act(TN_ACT_TANH, dtype, x, n);
}

void softcap_apply(float *x, int64_t n, float cap, tn_dtype dtype)
{
    softcap_tanh(x, n, cap, dtype);
    vec_scale_rounded(x, n, cap, dtype);
}

void softcap_grad(float *x, float *g, int64_t n, float cap, tn_dtype dtype)
{
    softcap_tanh(x, n, cap, dtype);
    vec_scale_rounded(g, n, cap, dtype);
    for (int64_t i = 0; i < n; i++)
        g[i] = g[i] == 0.0f ? 0.0f : g[i] * (1.0f - x[i] * x[i]);
    vec_round(g, n, dtype);
    vec_div(g, n, cap);
    vec_round(g, n, dtype);
}

/* Every piece is read before it is written, so the result may be the memory of x or g. */
static void softcap_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const softcap_job *job = ctx;
    (void)thread;
    float x[VEC_CHUNK], g[VEC_CHUNK];
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
            int64_t n = job->width - i < VEC_CHUNK ? job->width - i : VEC_CHUNK;
            size_t offset = (size_t)i * tn_dtype_size(job->x->dtype);
            convert_to_f32(rows_at(job->x, row) + offset, job->x->dtype, x, n);
            if (job->g) {
                convert_to_f32(rows_at(job->g, row) + offset, job->x->dtype, g, n);
                softcap_grad(x, g, n, job->cap, job->x->dtype);
            } else {
                softcap_apply(x, n, job->cap, job->x->dtype);
            }
            convert_from_f32(job->g ? g : x, job->x->dtype, rows_at(job->y, row) + offset, n);
        }
}

static tn_status softcap_run(const tn_call *call, const tn_tensor *g, const tn_tensor *y)
{
    softcap_job job = {.x = &call->in[0],
                       .g = g,
                       .y = y,
                       .width = rows_width(&call->in[0]),
                       .cap = (float)call->site->num[TN_NUM_SOFTCAP]};
    tn_parallel_for(rows_count(job.x), rows_grain(job.width), softcap_rows, &job);
    return TN_OK;
}

static tn_status softcap_forward(const tn_call *call, tn_error *err)
{
    (void)err;
    return softcap_run(call, NULL, &call->out[0]);
}

static tn_status softcap_backward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *g = &call->grads->out[0], *dx = &call->grads->in[0];
    if (!dx->data)
        return TN_OK;
    if (g->data)
        return softcap_run(call, g, dx);
    rows_clear(dx);
    return TN_OK;
}

const eager_op eager_softcap = {.op = TN_OP_SOFTCAP, .forward = softcap_forward, .backward = softcap_backward};
