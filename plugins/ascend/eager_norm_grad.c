/* Gradients of RMS_NORM, ADD_RMS_NORM and LAYER_NORM. With n = x r, r = 1 / sqrt(mean(x^2) + eps), h = dL/dn:
 *
 *     dx = r (h - n mean(h n)),  dweight = the sum over rows of g n,
 *
 * h = g w, g (1 + w) or g by variant; the gated norm y = t s, t = n w, s = silu(gate) has h = (g s) w, dweight = sum (g
 * s) n and dgate = g t silu'(gate). A layer norm is that of x less its mean, whose gradient has no mean either. Rounded
 * as core/eager does: products with a weight in TN_NORM_W and TN_NORM_W_GATED. aclnnRmsNormGrad would add its rows up
 * in any order; here the order of sums depends on shapes alone. */
#include "eager_grad.h"
#include "operators.h"

typedef struct norm_job {
    const tn_tensor *x, *w, *g, *dx, *dw;
    tn_norm variant;
    tn_dtype dtype;
    int64_t width;
    double eps;
} norm_job;

/* What a norm is made of, f32: n [.., W], r [.., 1]. */
typedef struct norm_parts {
    tn_tensor n, r;
} norm_parts;

static norm_job norm_job_of(const npu_run *r, int out)
{
    const tn_call *call = r->call;
    return (norm_job){.x = &call->in[0],
                      .w = npu_param(call->site, TN_ROLE_WEIGHT),
                      .g = &call->grads->out[out],
                      .dx = &call->grads->in[0],
                      .dw = grad_param(r, TN_ROLE_WEIGHT),
                      .variant = (tn_norm)call->site->meaning[TN_AXIS_NORM],
                      .dtype = call->in[0].dtype,
                      .width = call->in[0].shape[call->in[0].ndim - 1],
                      .eps = call->site->num[TN_NUM_EPS]};
}

/* Of x, f32. The operator for the norm would do; sums of squares apart from it are as exact as those of gradients. */
static norm_parts parts_of(npu_run *r, const tn_tensor *x, double eps)
{
    norm_parts parts = {.n = npu_take_like(r, TN_F32, *x), .r = npu_take_column(r, *x)};
    npu_multiply(r, *x, *x, parts.n);
    grad_sums(r, &parts.n, &parts.r);
    npu_multiply_number(r, parts.r, 1 / (float)x->shape[x->ndim - 1], parts.r);
    npu_add_number(r, parts.r, (float)eps, parts.r);
    npu_rsqrt(r, parts.r, parts.r);
    npu_multiply(r, *x, parts.r, parts.n);
    return parts;
}

/* h becomes r (h - n mean(h n)). The difference cancels where a row has one element: eps r^3 h is left of it then. */
static void through_norm(npu_run *r, const norm_parts *parts, double eps, const tn_tensor *h)
{
    int64_t width = h->shape[h->ndim - 1];
    tn_tensor product = npu_take_like(r, TN_F32, *h), mean = npu_take_column(r, *h);
    if (width == 1) {
        npu_multiply(r, parts->r, parts->r, mean);
        npu_multiply_number(r, mean, (float)eps, mean);
        npu_multiply(r, *h, mean, *h);
    } else {
        npu_multiply(r, *h, parts->n, product);
        grad_sums(r, &product, &mean);
        npu_multiply_number(r, mean, 1 / (float)width, mean);
        npu_multiply(r, parts->n, mean, product);
        npu_add(r, *h, product, -1, *h);
    }
    npu_multiply(r, *h, parts->r, *h);
}

/* ---- RMS_NORM --------------------------------------------------------------------------------------------- */

/* silu(gate) in place of gate, f32, and its derivative s (1 + gate (1 - s)), s = sigmoid(gate). */
static tn_tensor gate_slope(npu_run *r, const tn_tensor *gate)
{
    tn_tensor s = npu_take_like(r, TN_F32, *gate), slope = npu_take_like(r, TN_F32, *gate);
    npu_sigmoid(r, *gate, s);
    npu_multiply_number(r, s, -1, slope);
    npu_add_number(r, slope, 1, slope);
    npu_multiply(r, *gate, s, *gate);
    npu_multiply(r, *gate, slope, slope);
    npu_add(r, slope, s, 1, slope);
    return slope;
}

/* dL/dt in place of g, and dgate. n: as forward rounds it; w f32. */
static void through_gate(npu_run *r, const norm_job *job, const tn_tensor *n, const tn_tensor *w, const tn_tensor *g)
{
    const tn_tensor *to = &r->call->grads->in[1];
    tn_tensor gate = grad_wide(r, &r->call->in[1], job->x), slope = gate_slope(r, &gate);
    tn_tensor t = npu_take_like(r, TN_F32, *g);
    npu_multiply(r, *n, *w, t);
    grad_round(r, &t, job->dtype);
    npu_multiply(r, t, *g, t);
    npu_multiply(r, t, slope, t);
    npu_multiply(r, *g, gate, *g);
    grad_round(r, g, job->dtype);
    grad_store(r, &t, to);
}

/* h in place of g, f32; and the weight's gradient. */
static void through_weight(npu_run *r, const norm_job *job, const tn_tensor *n, const tn_tensor *g)
{
    bool rounds = job->variant == TN_NORM_W || job->variant == TN_NORM_W_GATED;
    if (job->variant == TN_NORM_NO_WEIGHT || !job->w)
        return;
    tn_tensor w = grad_wide(r, job->w, job->w), rounded = npu_take_like(r, TN_F32, *n);
    tn_tensor product = npu_take_like(r, TN_F32, *n);
    npu_copy(r, *n, rounded);
    if (rounds)
        grad_round(r, &rounded, job->dtype);
    if (job->variant == TN_NORM_1_PLUS_W)
        npu_add_number(r, w, 1, w);
    if (job->variant == TN_NORM_W_GATED)
        through_gate(r, job, &rounded, &w, g);
    npu_multiply(r, *g, rounded, product);
    if (rounds)
        grad_round(r, &product, job->dtype);
    grad_sum_rows(r, &product, job->dw);
    npu_multiply(r, *g, w, *g);
    if (rounds)
        grad_round(r, g, job->dtype);
}

static void rms_norm(npu_run *r)
{
    norm_job job = norm_job_of(r, 0);
    tn_tensor x = grad_wide(r, job.x, job.x), g = grad_wide(r, job.g, job.x);
    norm_parts parts = parts_of(r, &x, job.eps);
    through_weight(r, &job, &parts.n, &g);
    through_norm(r, &parts, job.eps, &g);
    grad_store(r, &g, job.dx);
}

/* Of h + r, rounded, and its norm: both have the gradient of that sum. */
static void add_rms_norm(npu_run *r)
{
    const tn_call *call = r->call;
    norm_job job = norm_job_of(r, 1);
    tn_tensor sum = npu_take_like(r, job.dtype, *job.x);
    npu_add(r, call->in[0], call->in[1], 1, sum);
    tn_tensor x = grad_wide(r, r->measuring ? job.x : &sum, job.x), g = grad_wide(r, job.g, job.x);
    tn_tensor other = grad_wide(r, &call->grads->out[0], job.x);
    norm_parts parts = parts_of(r, &x, job.eps);
    through_weight(r, &job, &parts.n, &g);
    through_norm(r, &parts, job.eps, &g);
    grad_round(r, &g, job.dtype);
    npu_add(r, g, other, 1, g);
    grad_store(r, &g, &call->grads->in[0]);
    grad_store(r, &g, &call->grads->in[1]);
}

static tn_status norm_declines(const tn_call *call, tn_error *err)
{
    int32_t variant = call->site->meaning[TN_AXIS_NORM];
    if (variant > TN_NORM_NO_WEIGHT)
        return tn_fail(err, TN_DECLINED, "npu", "norm: the gradients of %s are not there yet",
                       tn_axis_value_name(TN_AXIS_NORM, variant));
    if (call->site->features & TN_HAS_GROUPS)
        return tn_fail(err, TN_DECLINED, "npu", "the gradients of norms by groups of a row are not there yet");
    return TN_OK;
}

const ascend_gradient ascend_rms_norm_grad = {
    .op = TN_OP_RMS_NORM, .body = rms_norm, .needs = "aclnnRsqrt", .declines = norm_declines};
const ascend_gradient ascend_add_rms_norm_grad = {
    .op = TN_OP_ADD_RMS_NORM, .body = add_rms_norm, .needs = "aclnnRsqrt", .declines = norm_declines};

/* ---- LAYER_NORM ------------------------------------------------------------------------------------------- */

/* x, f32, less the mean of its row, in place. */
static void centre(npu_run *r, const tn_tensor *x)
{
    tn_tensor mean = npu_take_column(r, *x);
    grad_sums(r, x, &mean);
    npu_multiply_number(r, mean, -1 / (float)x->shape[x->ndim - 1], mean);
    npu_add(r, *x, mean, 1, *x);
}

/* x is centred twice, since a mean far from zero is not exact. */
static void layer_norm(npu_run *r)
{
    norm_job job = norm_job_of(r, 0);
    tn_tensor x = grad_wide(r, job.x, job.x), g = grad_wide(r, job.g, job.x), w = grad_wide(r, job.w, job.w);
    tn_tensor product = npu_take_like(r, TN_F32, *job.x);
    centre(r, &x);
    centre(r, &x);
    norm_parts parts = parts_of(r, &x, job.eps);
    grad_sum_rows(r, &g, grad_param(r, TN_ROLE_BIAS));
    npu_multiply(r, g, parts.n, product);
    grad_sum_rows(r, &product, job.dw);
    npu_multiply(r, g, w, g);
    centre(r, &g);
    through_norm(r, &parts, job.eps, &g);
    grad_store(r, &g, job.dx);
}

const ascend_gradient ascend_layer_norm_grad = {.op = TN_OP_LAYER_NORM, .body = layer_norm, .needs = "aclnnRsqrt"};
