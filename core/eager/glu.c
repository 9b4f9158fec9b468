/* GLU: rnd(rnd(act(gate)) * up), and its gradients. A gate whose last stride is 0 holds one value for all features of a
 * token. With Gaussian top-k sparsity (Gemma 3n) act is applied to relu(gate - cut), cut = mean + z deviation of the
 * token's gates; transformers rounds mean, deviation, z, their product, cut and the difference each. */
#include "eager/rows.h"
#include "eager/vec.h"

#include <math.h>

typedef struct glu_job {
    const tn_tensor *gate, *up, *y;    /* y: forward only                                          */
    const tn_tensor *dp, *dgate, *dup; /* backward only; data NULL: zeros; not wanted             */
    tn_act act;
    tn_dtype dtype;
    bool sparse;
    float z;         /* sparse: the normal quantile                                                       */
    vec_clamp clamp; /* alpha: also the slope of PReLU                                              */
    int64_t width;
} glu_job;

/* What makes a row sparse. */
typedef struct glu_cut {
    double mean, deviation;
    float cut;
} glu_cut;

/* A piece of a row: the gate as it is, what act is applied to, and up. */
typedef struct glu_piece {
    float gate[VEC_CHUNK], arg[VEC_CHUNK], up[VEC_CHUNK];
} glu_piece;

static int64_t glu_length(const glu_job *job, int64_t at)
{
    return job->width - at < VEC_CHUNK ? job->width - at : VEC_CHUNK;
}

static const char *glu_at(const tn_tensor *t, int64_t row, int64_t at)
{
    return rows_at(t, row) + (size_t)at * tn_dtype_size(t->dtype);
}

static bool glu_broadcast(const glu_job *job)
{
    return job->gate->stride[job->gate->ndim - 1] == 0;
}

/* n values of a gate's row from feature at on. */
static void glu_gate(const glu_job *job, int64_t row, int64_t at, float *g, int64_t n)
{
    const tn_tensor *t = job->gate;
    if (!glu_broadcast(job)) {
        convert_to_f32(glu_at(t, row, at), t->dtype, g, n);
        return;
    }
    convert_to_f32(rows_at(t, row), t->dtype, g, 1);
    for (int64_t j = 1; j < n; j++)
        g[j] = g[0];
}

static glu_cut glu_statistics(const glu_job *job, int64_t row)
{
    float g[VEC_CHUNK];
    glu_cut c = {0};
    for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
        int64_t n = glu_length(job, at);
        glu_gate(job, row, at, g, n);
        c.mean += vec_sum_wide(g, n);
    }
    c.mean /= (double)job->width;
    for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
        int64_t n = glu_length(job, at);
        glu_gate(job, row, at, g, n);
        c.deviation += vec_spread_wide(g, c.mean, n);
    }
    c.deviation = sqrt(c.deviation / (double)job->width);
    float above = vec_round1(vec_round1((float)c.deviation, job->dtype) * job->z, job->dtype);
    c.cut = vec_round1(vec_round1((float)c.mean, job->dtype) + above, job->dtype);
    return c;
}

/* The comparison lets a NaN through. */
static void glu_load(const glu_job *job, const glu_cut *c, int64_t row, int64_t at, glu_piece *p, int64_t n)
{
    glu_gate(job, row, at, p->gate, n);
    convert_to_f32(glu_at(job->up, row, at), job->up->dtype, p->up, n);
    memcpy(p->arg, p->gate, (size_t)n * sizeof *p->arg);
    if (!job->sparse)
        return;
    for (int64_t i = 0; i < n; i++)
        p->arg[i] = p->arg[i] - c->cut;
    vec_round(p->arg, n, job->dtype);
    for (int64_t i = 0; i < n; i++)
        p->arg[i] = p->arg[i] < 0.0f ? 0.0f : p->arg[i];
}

static void glu_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const glu_job *job = ctx;
    (void)thread;
    glu_piece p;
    for (int64_t row = begin; row < end; row++) {
        glu_cut c = job->sparse ? glu_statistics(job, row) : (glu_cut){0};
        for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
            int64_t n = glu_length(job, at);
            glu_load(job, &c, row, at, &p, n);
            if (job->act == TN_ACT_CLAMPED_SWIGLU) {
                vec_clamped_swiglu(&job->clamp, job->dtype, p.arg, p.up, n);
            } else {
                vec_act_by(job->act, job->clamp.alpha, job->dtype, p.arg, n);
                vec_mul(p.arg, p.up, n);
            }
            convert_from_f32(p.arg, job->y->dtype, (char *)glu_at(job->y, row, at), n);
        }
    }
}

/* ---- gradients ---------------------------------------------------------------------------------- */

/* p->arg becomes the gradient of act's argument, p->up that of up. */
static void glu_grad_piece(const glu_job *job, const glu_cut *c, int64_t row, int64_t at, glu_piece *p, int64_t n)
{
    float dp[VEC_CHUNK], arg[VEC_CHUNK];
    glu_load(job, c, row, at, p, n);
    memcpy(arg, p->arg, (size_t)n * sizeof *arg);
    if (job->dp->data)
        convert_to_f32(glu_at(job->dp, row, at), job->dp->dtype, dp, n);
    else
        memset(dp, 0, (size_t)n * sizeof *dp);
    if (job->act == TN_ACT_CLAMPED_SWIGLU)
        vec_clamped_swiglu_grad(&job->clamp, job->dtype, p->arg, p->up, dp, n);
    else
        vec_glu_grad(job->act, job->clamp.alpha, job->dtype, p->arg, p->up, dp, n);
    for (int64_t i = 0; job->sparse && i < n; i++)
        p->arg[i] = arg[i] <= 0.0f ? 0.0f : p->arg[i];
}

/* h is the gradient of relu's argument: dgate = h - (sum h / width) (1 + z (gate - mean) / deviation). */
static void glu_grad_sparse(const glu_job *job, const glu_cut *c, double sum, glu_piece *p, int64_t n)
{
    float mean = (float)(sum / (double)job->width), center = (float)c->mean;
    float slope = c->deviation > 0.0 ? (float)(sum / (double)job->width * (double)job->z / c->deviation) : 0.0f;
    for (int64_t i = 0; i < n; i++)
        p->arg[i] = p->arg[i] - (mean + slope * (p->gate[i] - center));
}

/* Every piece is read before its gradients are written, so they may be the memory of what they are computed from. */
static void glu_grad_row(const glu_job *job, int64_t row)
{
    glu_piece p;
    glu_cut c = {0};
    double sum = 0.0;
    if (job->sparse) {
        c = glu_statistics(job, row);
        for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
            int64_t n = glu_length(job, at);
            glu_grad_piece(job, &c, row, at, &p, n);
            sum += vec_sum_wide(p.arg, n);
        }
    }
    for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
        int64_t n = glu_length(job, at);
        glu_grad_piece(job, &c, row, at, &p, n);
        if (job->sparse)
            glu_grad_sparse(job, &c, sum, &p, n);
        if (job->dgate->data)
            convert_from_f32(p.arg, job->dgate->dtype, (char *)glu_at(job->dgate, row, at), n);
        if (job->dup->data)
            convert_from_f32(p.up, job->dup->dtype, (char *)glu_at(job->dup, row, at), n);
    }
}

/* One gate for all features: its gradient is the sum over them, rounded before act's derivative comes in. */
static void glu_grad_broadcast(const glu_job *job, int64_t row)
{
    float x, a, s, dp[VEC_CHUNK], up[VEC_CHUNK];
    double sum = 0.0;
    convert_to_f32(rows_at(job->gate, row), job->gate->dtype, &x, 1);
    a = x;
    vec_act_by(job->act, job->clamp.alpha, job->dtype, &a, 1);
    for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
        int64_t n = glu_length(job, at);
        convert_to_f32(glu_at(job->up, row, at), job->up->dtype, up, n);
        if (job->dp->data)
            convert_to_f32(glu_at(job->dp, row, at), job->dp->dtype, dp, n);
        else
            memset(dp, 0, (size_t)n * sizeof *dp);
        vec_mul_rounded(up, dp, n, job->dtype);
        sum += vec_sum_wide(up, n);
        vec_scale(dp, n, a);
        if (job->dup->data)
            convert_from_f32(dp, job->dup->dtype, (char *)glu_at(job->dup, row, at), n);
    }
    s = vec_round1((float)sum, job->dtype);
    vec_act_grad_by(job->act, job->clamp.alpha, job->dtype, &x, &s, 1);
    if (job->dgate->data)
        convert_from_f32(&s, job->dgate->dtype, rows_at(job->dgate, row), 1);
}

static void glu_grad_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const glu_job *job = ctx;
    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        if (glu_broadcast(job))
            glu_grad_broadcast(job, row);
        else
            glu_grad_row(job, row);
    }
}

/* ---- both ------------------------------------------------------------------------------------------ */

static tn_status glu_make(const tn_call *call, glu_job *job, tn_error *err)
{
    const tn_site *site = call->site;
    *job = (glu_job){.gate = &call->in[0],
                     .up = &call->in[1],
                     .act = (tn_act)site->meaning[TN_AXIS_ACT],
                     .dtype = call->in[0].dtype,
                     .sparse = site->features & TN_HAS_SPARSITY,
                     .width = rows_width(&call->in[0])};
    job->clamp = (vec_clamp){(float)site->num[TN_NUM_LIMIT], (float)site->num[TN_NUM_ALPHA]};
    job->z = vec_round1((float)site->num[TN_NUM_SPARSITY], job->dtype);
    if (job->act < TN_ACT_SILU || job->act > TN_ACT_PRELU || job->act == TN_ACT_XIELU)
        return tn_fail(err, TN_E_INTERNAL, site->path, "activation %d is not known; report this defect", (int)job->act);
    return TN_OK;
}

static tn_status glu_forward(const tn_call *call, tn_error *err)
{
    glu_job job;
    tn_status status = glu_make(call, &job, err);
    job.y = &call->out[0];
    if (status == TN_OK)
        tn_parallel_for(rows_count(job.gate), rows_grain(job.width), glu_rows, &job);
    return status;
}

static tn_status glu_backward(const tn_call *call, tn_error *err)
{
    glu_job job;
    tn_status status = glu_make(call, &job, err);
    job.dp = &call->grads->out[0];
    job.dgate = &call->grads->in[0];
    job.dup = &call->grads->in[1];
    if (status == TN_OK)
        tn_parallel_for(rows_count(job.gate), rows_grain(job.width), glu_grad_rows, &job);
    return status;
}

const eager_op eager_glu = {.op = TN_OP_GLU, .forward = glu_forward, .backward = glu_backward};
