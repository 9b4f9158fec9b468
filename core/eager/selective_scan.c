/* SELECTIVE_SCAN: the recurrence of Mamba-2, whose state M [n,p] of a head forgets by e^(rate s), with s the token's
 * step, and takes in x at b; c reads it:
 *
 *     M = e^(rate s) M + b (s x)^T,   y = rnd(M^T c + skip x).
 *
 * Token by token, whatever the call: what a token gives has the same bits in every call that it may be part of. */
#include "eager/selective_scan.h"

#include <math.h>

scan_job selective_scan_job(const tn_call *call)
{
    const tn_tensor *x = &call->in[0], *b = &call->in[2];
    bool limited = call->site->features & TN_HAS_STEP_LIMITS;
    return (scan_job){.x = x,
                      .state = &call->in[1],
                      .b = b,
                      .c = &call->in[3],
                      .dt = &call->in[4],
                      .index = &call->in[5],
                      .decay = rows_param(call->site, TN_ROLE_DECAY),
                      .bias = rows_param(call->site, TN_ROLE_BIAS),
                      .skip = rows_param(call->site, TN_ROLE_WEIGHT),
                      .dtype = x->dtype,
                      .rows = x->shape[0],
                      .tokens = x->shape[1],
                      .groups = b->shape[2],
                      .heads = x->shape[2],
                      .share = x->shape[2] / b->shape[2],
                      .n = b->shape[3],
                      .p = x->shape[3],
                      .least = limited ? (float)call->site->num[TN_NUM_LEAST] : 0.0f,
                      .limit = limited ? (float)call->site->num[TN_NUM_LIMIT] : INFINITY};
}

static float number(const tn_tensor *t, int64_t at)
{
    float value;
    convert_to_f32((const char *)t->data + at * (int64_t)tn_dtype_size(t->dtype), t->dtype, &value, 1);
    return value;
}

scan_head selective_scan_head(const scan_job *job, int64_t head)
{
    return (scan_head){-expf(number(job->decay, head)), number(job->bias, head), number(job->skip, head)};
}

/* The sum and softplus are rounded, as everything of the model's type is. By comparison, so that a NaN stays one. */
scan_step selective_scan_step(const scan_job *job, const scan_head *h, int64_t row, int64_t token, int64_t head)
{
    float raw = number(job->dt, row * job->dt->stride[0] + token * job->dt->stride[1] + head);
    float x = vec_round1(raw + h->bias, job->dtype);
    float s = vec_round1(x > 20.0f ? x : log1pf(expf(x)), job->dtype);
    bool below = s < job->least;
    bool above = s > job->limit;
    s = below ? job->least : above ? job->limit : s;
    return (scan_step){.s = s,
                       .keep = expf(h->rate * s),
                       .slope = below || above ? 0.0f
                                : x > 20.0f    ? 1.0f
                                               : 1.0f / (1.0f + expf(-x))};
}

void selective_scan_write(const scan_job *job, const scan_step *step, float *m, const float *b, const float *x,
                          float *scaled)
{
    memcpy(scaled, x, (size_t)job->p * sizeof *x);
    vec_scale(scaled, job->p, step->s);
    for (int64_t i = 0; i < job->n; i++) {
        vec_scale(m + i * job->p, job->p, step->keep);
        vec_add_scaled(m + i * job->p, scaled, b[i], job->p);
    }
}

typedef struct forward_job {
    scan_job scan;
    const tn_tensor *y, *next;
    char *scratch;
    size_t thread_bytes;
} forward_job;

typedef struct forward_work {
    float *m, *b, *c, *x, *scaled, *y; /* [n,p]; [n] twice; [p] three times                            */
} forward_work;

static size_t layout(const scan_job *job, char *base, forward_work *work)
{
    size_t used = 0;
    float **const places[] = {&work->m, &work->b, &work->c, &work->x, &work->scaled, &work->y};
    const int64_t sizes[] = {job->n * job->p, job->n, job->n, job->p, job->p, job->p};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        *places[i] = (float *)(void *)rows_take(base, &used, (size_t)sizes[i] * sizeof(float));
    return used;
}

static void one_token(const scan_job *job, const scan_head *h, int64_t row, int64_t token, int64_t head,
                      const forward_work *w)
{
    const scan_step step = selective_scan_step(job, h, row, token, head);
    convert_to_f32(rows_at3(job->x, row, token, head), job->dtype, w->x, job->p);
    convert_to_f32(rows_at3(job->b, row, token, head / job->share), job->dtype, w->b, job->n);
    convert_to_f32(rows_at3(job->c, row, token, head / job->share), job->dtype, w->c, job->n);
    selective_scan_write(job, &step, w->m, w->b, w->x, w->scaled);
    memset(w->y, 0, (size_t)job->p * sizeof *w->y);
    for (int64_t i = 0; i < job->n; i++)
        vec_add_scaled(w->y, w->m + i * job->p, w->c[i], job->p);
    vec_add_scaled(w->y, w->x, h->skip, job->p);
}

/* A head of a batch row. Each token is read before its result is written, which may lie in the place of x. */
static void forward_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const forward_job *job = ctx;
    const scan_job *scan = &job->scan;
    size_t row_bytes = (size_t)scan->p * sizeof(float);
    forward_work w;
    layout(scan, job->scratch + (size_t)thread * job->thread_bytes, &w);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / scan->heads, head = item % scan->heads;
        const scan_head h = selective_scan_head(scan, head);
        for (int64_t i = 0; i < scan->n; i++)
            memcpy(w.m + i * scan->p, rows_at3(scan->state, row, head, i), row_bytes);
        for (int64_t token = 0; token < scan->tokens; token++) {
            if (selective_scan_is_real(scan, row, token))
                one_token(scan, &h, row, token, head, &w);
            else
                memset(w.y, 0, row_bytes);
            convert_from_f32(w.y, job->y->dtype, rows_at3(job->y, row, token, head), scan->p);
        }
        for (int64_t i = 0; i < scan->n; i++)
            memcpy(rows_at3(job->next, row, head, i), w.m + i * scan->p, row_bytes);
    }
}

size_t selective_scan_scratch(const tn_call *call)
{
    scan_job job = selective_scan_job(call);
    forward_work work;
    return layout(&job, NULL, &work) * (size_t)tn_thread_count();
}

tn_status selective_scan_forward(const tn_call *call, tn_error *err)
{
    forward_work work;
    forward_job job = {
        .scan = selective_scan_job(call), .y = &call->out[0], .next = &call->out[1], .scratch = call->scratch};
    (void)err;
    job.thread_bytes = layout(&job.scan, NULL, &work);
    tn_parallel_for(job.scan.rows * job.scan.heads, 1, forward_items, &job);
    return TN_OK;
}
