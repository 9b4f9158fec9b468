/* Steps that change each element on its own: ACT, SCALE, CLAMP, ROW_SCALE, and COPY, which changes none. In f32 with
 * one rounding at the end, but for the activations that round in between. */
#include "eager/rows.h"
#include "eager/vec.h"

#include <math.h>

typedef struct elementwise_job {
    tn_op op;
    const tn_tensor *x, *s, *y;
    int64_t width;
    tn_act act;
    vec_xielu xielu; /* alpha_p: also the slope of PReLU                                            */
    float number, least;
} elementwise_job;

/* By comparison, so that a NaN stays one. */
static void clamp(float *x, int64_t n, float least, float limit)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] > limit ? limit : x[i] < least ? least : x[i];
}

static void change(const elementwise_job *job, int64_t row, float *x, int64_t n)
{
    if (job->op == TN_OP_ACT && job->act == TN_ACT_XIELU)
        vec_xielu_act(&job->xielu, job->x->dtype, x, n);
    else if (job->op == TN_OP_ACT)
        vec_act_by(job->act, job->xielu.alpha_p, job->x->dtype, x, n);
    else if (job->op == TN_OP_SCALE)
        vec_scale(x, n, job->number);
    else if (job->op == TN_OP_CLAMP)
        clamp(x, n, job->least, job->number);
    else if (job->op == TN_OP_ROW_SCALE)
        vec_scale(x, n, ((const float *)job->s->data)[row * job->s->stride[0]]);
}

static void elementwise_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const elementwise_job *job = ctx;
    (void)thread;
    size_t from = tn_dtype_size(job->x->dtype), to = tn_dtype_size(job->y->dtype);
    float x[VEC_CHUNK];
    for (int64_t row = begin; row < end; row++) {
        const char *in = rows_at(job->x, row);
        char *out = rows_at(job->y, row);
        if (job->op == TN_OP_COPY && job->x->dtype == job->y->dtype) {
            memmove(out, in, (size_t)job->width * from);
            continue;
        }
        for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
            int64_t n = job->width - i < VEC_CHUNK ? job->width - i : VEC_CHUNK;
            convert_to_f32(in + (size_t)i * from, job->x->dtype, x, n);
            change(job, row, x, n);
            convert_from_f32(x, job->y->dtype, out + (size_t)i * to, n);
        }
    }
}

/* What the call says of its operation. */
static elementwise_job job_of(const tn_call *call)
{
    elementwise_job job = {.op = call->op, .s = &call->in[1], .width = rows_width(&call->in[0])};
    if (call->op == TN_OP_ACT) {
        job.act = (tn_act)call->site->meaning[TN_AXIS_ACT];
        job.xielu = vec_xielu_of(call->site);
    }
    if (call->op == TN_OP_SCALE)
        job.number = (float)call->site->num[TN_NUM_SCALE];
    if (call->op == TN_OP_CLAMP) {
        bool both = call->site->features & TN_HAS_STEP_LIMITS;
        job.number = (float)call->site->num[TN_NUM_LIMIT];
        job.least = both ? (float)call->site->num[TN_NUM_LEAST] : -job.number;
    }
    return job;
}

static void run_job(elementwise_job *job, const tn_tensor *x, const tn_tensor *y)
{
    job->x = x;
    job->y = y;
    tn_parallel_for(rows_count(x), rows_grain(job->width), elementwise_rows, job);
}

static tn_status elementwise_forward(const tn_call *call, tn_error *err)
{
    (void)err;
    elementwise_job job = job_of(call);
    run_job(&job, &call->in[0], &call->out[0]);
    return TN_OK;
}

void elementwise_copy(const tn_tensor *from, const tn_tensor *to)
{
    elementwise_job job = {.op = TN_OP_COPY, .width = rows_width(to)};
    if (from->data)
        run_job(&job, from, to);
    else
        rows_clear(to);
}

/* Of what is linear, COPY, SCALE and ROW_SCALE, it is the same operation. */
static tn_status linear_backward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *dy = &call->grads->out[0], *dx = &call->grads->in[0];
    elementwise_job job = job_of(call);
    if (dx->data && dy->data)
        run_job(&job, dy, dx);
    else if (dx->data)
        rows_clear(dx);
    return TN_OK;
}

/* dx = dy where x lies within the limits. */
static tn_status clamp_backward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *x = &call->in[0], *dy = &call->grads->out[0], *dx = &call->grads->in[0];
    elementwise_job job = job_of(call);
    size_t size = tn_dtype_size(x->dtype);
    float t[VEC_CHUNK], g[VEC_CHUNK] = {0};
    for (int64_t row = 0; dx->data && row < rows_count(x); row++)
        for (int64_t i = 0; i < job.width; i += VEC_CHUNK) {
            int64_t n = job.width - i < VEC_CHUNK ? job.width - i : VEC_CHUNK;
            convert_to_f32(rows_at(x, row) + (size_t)i * size, x->dtype, t, n);
            if (dy->data)
                convert_to_f32(rows_at(dy, row) + (size_t)i * size, dy->dtype, g, n);
            for (int64_t k = 0; k < n; k++)
                g[k] = t[k] < job.least || t[k] > job.number ? 0.0f : g[k];
            convert_from_f32(g, dx->dtype, rows_at(dx, row) + (size_t)i * size, n);
        }
    return TN_OK;
}

/* dx = act'(x) dy; no dy: zeros. */
static void act_grad_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const tn_call *call = ctx;
    const tn_tensor *x = &call->in[0], *dy = &call->grads->out[0], *dx = &call->grads->in[0];
    (void)thread;
    size_t size = tn_dtype_size(x->dtype);
    int64_t width = rows_width(x);
    tn_act act = (tn_act)call->site->meaning[TN_AXIS_ACT];
    vec_xielu xielu = vec_xielu_of(call->site);
    float t[VEC_CHUNK], g[VEC_CHUNK] = {0};
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < width; i += VEC_CHUNK) {
            int64_t n = width - i < VEC_CHUNK ? width - i : VEC_CHUNK;
            convert_to_f32(rows_at(x, row) + (size_t)i * size, x->dtype, t, n);
            if (dy->data)
                convert_to_f32(rows_at(dy, row) + (size_t)i * size, dy->dtype, g, n);
            if (act == TN_ACT_XIELU)
                vec_xielu_grad(&xielu, x->dtype, t, g, n);
            else
                vec_act_grad_by(act, xielu.alpha_p, x->dtype, t, g, n);
            convert_from_f32(g, dx->dtype, rows_at(dx, row) + (size_t)i * size, n);
        }
}

static tn_status act_backward(const tn_call *call, tn_error *err)
{
    (void)err;
    tn_call copy = *call; /* a context is not constant                                             */
    if (call->grads->in[0].data)
        tn_parallel_for(rows_count(&call->in[0]), rows_grain(rows_width(&call->in[0])), act_grad_rows, &copy);
    return TN_OK;
}

const eager_op eager_act = {.op = TN_OP_ACT, .forward = elementwise_forward, .backward = act_backward};
const eager_op eager_scale = {.op = TN_OP_SCALE, .forward = elementwise_forward, .backward = linear_backward};
const eager_op eager_clamp = {.op = TN_OP_CLAMP, .forward = elementwise_forward, .backward = clamp_backward};
const eager_op eager_copy = {.op = TN_OP_COPY, .forward = elementwise_forward, .backward = linear_backward};
const eager_op eager_row_scale = {.op = TN_OP_ROW_SCALE, .forward = elementwise_forward, .backward = linear_backward};
