/* Gradients of RMS_NORM and ADD_RMS_NORM. With n = x r, r = 1 / sqrt(mean(x^2) + eps), h = dL/dn and g = dL/dy:
 *
 *     dx = r (h - n mean(h n)),  dweight = the sum over rows of g n,
 *
 * h = g w, g (1 + w) or g by variant. The gated norm y = t s, t = n w, s = silu(gate) has h = (g s) w,
 * dweight = sum (g s) n and dgate = g t silu'(gate). Where the gate comes first, u = x s takes the place of x,
 * dx = du s and dgate = du x silu'(gate). What automatic differentiation rounds is rounded: products with a
 * weight in TN_NORM_W and TN_NORM_W_GATED, which happen in the model's type. The difference in dx cancels (all of it
 * where a row has one element) and is therefore formed in double, like the sums. */
#include "eager/rms_norm.h"
#include "eager/sums.h"

#include <math.h>

typedef struct grad_job {
    norm_job norm;
    const tn_tensor *g, *g_sum;       /* upstream; data NULL: zeros; g_sum NULL: no such output       */
    const tn_tensor *dx, *dr, *dgate; /* data NULL: not wanted; dr and dgate may be NULL              */
    sums dw;
} grad_job;

/* A piece of a row. */
typedef struct grad_piece {
    float x[VEC_CHUNK]; /* what is normalised                                                     */
    float g[VEC_CHUNK]; /* dL/dy; gated: dL/dt, and dL/ds in gate                                 */
    float h[VEC_CHUNK];
    float w[VEC_CHUNK], gate[VEC_CHUNK];
} grad_piece;

static bool wanted(const tn_tensor *t)
{
    return t && t->data;
}

static void grad_load(const tn_tensor *t, int64_t row, int64_t at, float *out, int64_t n)
{
    if (wanted(t))
        norm_load(t, row, at, out, n);
    else
        memset(out, 0, (size_t)n * sizeof *out);
}

CLONES static void times_1_plus(float *h, const float *g, const float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        h[i] = g[i] * (1.0f + w[i]);
}

/* out = r h - c x */
CLONES static void combine(const float *h, const float *x, double r, double c, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(r * (double)h[i] - c * (double)x[i]);
}

/* x, g, w, gate and h of n elements. */
static void piece_load(const grad_job *job, int64_t row, int64_t at, grad_piece *p, int64_t n)
{
    const norm_job *norm = &job->norm;
    tn_dtype dtype = norm->x->dtype;
    rms_norm_load(norm, norm->x, row, at, p->x, n);
    if (norm->add) {
        norm_load(norm->add, row, at, p->h, n);
        vec_add(p->x, p->h, n);
        vec_round(p->x, n, dtype);
    }
    grad_load(job->g, row, at, p->g, n);
    memcpy(p->h, p->g, (size_t)n * sizeof *p->h);
    if (norm->variant == TN_NORM_NO_WEIGHT)
        return;
    norm_load_weight(norm->weight, at, p->w, n);
    if (norm->variant == TN_NORM_1_PLUS_W) {
        times_1_plus(p->h, p->g, p->w, n);
        return;
    }
    if (norm->variant == TN_NORM_W_GATED || norm->variant == TN_NORM_W_GATED_F32) {
        norm_load(norm->gate, row, at, p->gate, n);
        vec_act(TN_ACT_SILU, TN_F32, p->gate, n);
        vec_mul(p->h, p->gate, n);
        if (norm->variant == TN_NORM_W_GATED)
            vec_round(p->h, n, dtype);
        memcpy(p->gate, p->g, (size_t)n * sizeof *p->g);
        memcpy(p->g, p->h, (size_t)n * sizeof *p->g);
    }
    vec_mul(p->h, p->w, n);
    if (rms_norm_rounds(norm->variant))
        vec_round(p->h, n, dtype);
}

/* The gradients that are not dx's: of the weight, of the gate. scale: r in f32, as forward has it. */
static void piece_others(const grad_job *job, int64_t block, int64_t row, int64_t at, float scale, grad_piece *p,
                         int64_t n)
{
    const norm_job *norm = &job->norm;
    float t[VEC_CHUNK];
    bool rounds = rms_norm_rounds(norm->variant);
    if (norm->variant == TN_NORM_NO_WEIGHT)
        return;
    memcpy(t, p->x, (size_t)n * sizeof *t);
    vec_scale(t, n, scale);
    if (rounds)
        vec_round(t, n, norm->x->dtype);
    vec_mul(p->g, t, n);
    if (rounds)
        vec_round(p->g, n, norm->x->dtype);
    sums_add(&job->dw, block, at, p->g, n);
    if (!wanted(job->dgate) || norm->variant == TN_NORM_GATED_W)
        return;
    vec_mul(t, p->w, n);
    if (rounds)
        vec_round(t, n, norm->x->dtype);
    vec_mul(t, p->gate, n);
    norm_load(norm->gate, row, at, p->gate, n);
    vec_act_grad(TN_ACT_SILU, TN_F32, p->gate, t, n);
    norm_store(job->dgate, row, at, t, n);
}

/* The gate came first: dx holds du, and becomes du s; dgate = du x silu'(gate). */
static void gate_back(const grad_job *job, int64_t row, int64_t at, float *dx, int64_t n)
{
    const norm_job *norm = &job->norm;
    float gate[VEC_CHUNK], t[VEC_CHUNK];
    norm_load(norm->gate, row, at, gate, n);
    norm_load(norm->x, row, at, t, n);
    vec_mul(t, dx, n);
    vec_act_grad(TN_ACT_SILU, TN_F32, gate, t, n);
    vec_act(TN_ACT_SILU, TN_F32, gate, n);
    vec_mul(dx, gate, n);
    if (wanted(job->dgate))
        norm_store(job->dgate, row, at, t, n);
}

/* A row or a group of it. Each piece is read before its gradients are written, so they may be the memory of the
 * upstream ones. */
static void grad_span(const grad_job *job, int64_t block, int64_t row, int64_t first)
{
    const norm_job *norm = &job->norm;
    grad_piece p;
    float dx[VEC_CHUNK];
    double squares = 0.0, product = 0.0, width = (double)norm->span;
    int64_t end = first + norm->span;
    for (int64_t at = first; at < end; at += VEC_CHUNK) {
        int64_t n = norm_length(at, end);
        piece_load(job, row, at, &p, n);
        squares += vec_dot_wide(p.x, p.x, n);
        product += vec_dot_wide(p.h, p.x, n);
    }
    float scale = rms_norm_scale(norm, squares);
    double r = 1.0 / sqrt(squares / width + (double)norm->eps), c = r * r * r * (product / width);
    for (int64_t at = first; at < end; at += VEC_CHUNK) {
        int64_t n = norm_length(at, end);
        piece_load(job, row, at, &p, n);
        combine(p.h, p.x, r, c, dx, n);
        if (norm->add) {
            vec_round(dx, n, norm->x->dtype);
            grad_load(job->g_sum, row, at, p.h, n);
            vec_add(dx, p.h, n);
        }
        piece_others(job, block, row, at, scale, &p, n);
        if (norm->variant == TN_NORM_GATED_W)
            gate_back(job, row, at, dx, n);
        if (wanted(job->dx))
            norm_store(job->dx, row, at, dx, n);
        if (wanted(job->dr))
            norm_store(job->dr, row, at, dx, n);
    }
}

static void grad_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grad_job *job = ctx;
    (void)thread;
    for (int64_t block = begin; block < end; block++) {
        sums_clear(&job->dw, block);
        for (int64_t row = block * job->dw.block_rows; row < sums_end(&job->dw, block); row++)
            for (int64_t first = 0; first < job->norm.width; first += job->norm.span)
                grad_span(job, block, row, first);
    }
}

static size_t rms_norm_backward_scratch(const tn_call *call)
{
    sums s = sums_shape(rows_count(&call->in[0]), rows_width(&call->in[0]));
    return rows_param(call->site, TN_ROLE_WEIGHT) ? sums_bytes(&s) : 0;
}

static tn_status rms_norm_backward(const tn_call *call, tn_error *err)
{
    const tn_grads *grads = call->grads;
    grad_job job;
    tn_status status = rms_norm_make(call, &job.norm, err);
    if (status != TN_OK)
        return status;
    bool adds = job.norm.add != NULL, gated = rms_norm_is_gated(job.norm.variant);
    const tn_param *weight = &grads->param[TN_ROLE_WEIGHT];
    job.g = &grads->out[adds ? 1 : 0];
    job.g_sum = adds ? &grads->out[0] : NULL;
    job.dx = &grads->in[0];
    job.dr = adds ? &grads->in[1] : NULL;
    job.dgate = gated ? &grads->in[1] : NULL;
    job.dw = sums_shape(rows_count(job.norm.x), job.norm.width);
    bool wants_weight = weight->count > 0 && job.norm.variant != TN_NORM_NO_WEIGHT;
    job.dw.partial = wants_weight ? call->scratch : NULL;
    tn_parallel_for(job.dw.blocks, 1, grad_blocks, &job);
    if (wants_weight)
        sums_store(&job.dw, weight->tensors);
    return TN_OK;
}

const eager_op eager_rms_norm = {.op = TN_OP_RMS_NORM,
                                 .forward = rms_norm_forward,
                                 .backward_scratch = rms_norm_backward_scratch,
                                 .backward = rms_norm_backward};
const eager_op eager_add_rms_norm = {.op = TN_OP_ADD_RMS_NORM,
                                     .forward = rms_norm_forward,
                                     .backward_scratch = rms_norm_backward_scratch,
                                     .backward = rms_norm_backward};
