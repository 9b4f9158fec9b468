/* MOE_EXPERTS, gradients, given g = dL/dy and z = expert(x), what a slot's weight w multiplies:
 *
 *     dL/dw = g . z                       dz = rnd(w g)
 *     dL/ddown = dz^T p                   dp = rnd(dz down)       p = rnd(rnd(act(gate)) up)
 *     dgate, dup: as those of GLU         dL/dgate matrix = dgate^T x, dL/dup matrix = dup^T x
 *     dL/dx = sum over a token's slots, in their order, of rnd(dgate gate + dup up)
 *
 * Biases have the sums of what their outputs have. Where a weight is a factor of the input, x stands for rnd(w x), dz
 * = g, and its gradient d goes on as dL/dx += rnd(w d), dL/dw = d . x.
 *
 * Experts are computed again; every result is rounded as automatic differentiation in the model's dtype does, but the
 * sum of a token's slots is f32 and rounded once. */
#include "eager/experts_adapter.h"
#include "eager/moe_experts.h"
#include "eager/rows.h"
#include "eager/vec.h"

typedef struct grad_job {
    experts_job experts;
    const tn_grads *grads;
    const tn_tensor *g;
    char *upstream; /* [slots, hidden] dz in type, in the order of experts.order                   */
    double *dots;   /* [slots, tiles of hidden] parts of g . z                                    */
    int64_t dot_tiles;
} grad_job;

static bool grad_shape(const tn_call *call, grad_job *job)
{
    experts_job *e = &job->experts;
    if (!moe_experts_shape(call, e))
        return false;
    e->term_type = e->dtype;
    job->grads = call->grads;
    job->g = &call->grads->out[0];
    job->dot_tiles = (e->hidden + e->tile_hidden - 1) / e->tile_hidden;
    return true;
}

static size_t grad_layout(grad_job *job, char *base)
{
    experts_job *e = &job->experts;
    size_t slots = (size_t)e->slots, size = tn_dtype_size(e->type), used = 0;
    size_t hidden = slots * (size_t)e->hidden, inter = slots * (size_t)e->inter;
    moe_experts_tile(e, 2 * (e->tile_inter > e->tile_hidden ? e->tile_inter : e->tile_hidden));
    if (e->thread_bytes < grouped_grads_bytes())
        e->thread_bytes = grouped_grads_bytes();
    e->order = (int32_t *)(void *)rows_take(base, &used, slots * sizeof(int32_t));
    e->start = (int64_t *)(void *)rows_take(base, &used, ((size_t)e->expert_count + 1) * sizeof(int64_t));
    e->gathered = rows_take(base, &used, hidden * size);
    e->gate = rows_take(base, &used, (e->pairs ? 2 * inter : inter) * size);
    e->up = rows_take(base, &used, (e->pairs ? 0 : inter) * size);
    e->activated = rows_take(base, &used, inter * size);
    e->terms = rows_take(base, &used, hidden * tn_dtype_size(e->term_type));
    job->upstream = rows_take(base, &used, hidden * size);
    experts_adapter_layout(e, base, &used, true);
    job->dots = (double *)(void *)rows_take(base, &used, slots * (size_t)job->dot_tiles * sizeof(double));
    e->threads = rows_take(base, &used, e->thread_bytes * (size_t)tn_thread_count());
    return used;
}

static size_t moe_experts_backward_scratch(const tn_call *call)
{
    grad_job job;
    return grad_shape(call, &job) ? grad_layout(&job, NULL) : 0;
}

/* n values of token's upstream gradient from column i on. */
static void upstream_values(const grad_job *job, int64_t token, int64_t i, float *g, int64_t n)
{
    if (job->g->data)
        convert_to_f32(rows_at(job->g, token) + (size_t)i * tn_dtype_size(job->g->dtype), job->g->dtype, g, n);
    else
        memset(g, 0, (size_t)n * sizeof *g);
}

/* dz = rnd(w g), or g */
static void upstream_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grad_job *job = ctx;
    const experts_job *e = &job->experts;
    (void)thread;
    size_t size = tn_dtype_size(e->type);
    float g[VEC_CHUNK];
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < e->hidden; i += VEC_CHUNK) {
            int64_t n = e->hidden - i < VEC_CHUNK ? e->hidden - i : VEC_CHUNK, slot = e->order[row];
            upstream_values(job, slot / e->top_k, i, g, n);
            if (!e->scaled)
                vec_scale(g, n, moe_experts_slot_weight(e, slot));
            vec_round(g, n, e->dtype);
            convert_from_f32(g, e->type, job->upstream + (size_t)(row * e->hidden + i) * size, n);
        }
}

/* ---- of the routing weights ------------------------------------------------------------------------------------- */

/* The part of g . z that a tile of columns has. The products round as an operation of the weights' dtype. */
static void dots_item(const void *ctx, gemm_context *context, const grouped_item *item)
{
    const grad_job *job = ctx;
    const experts_job *e = &job->experts;
    float *c = (float *)(void *)item->mine, g[VEC_CHUNK];
    moe_experts_product(e, context, (experts_matrix){TN_ROLE_DOWN, 0}, false, item, e->inter, e->activated, c);
    for (int64_t i = 0; i < item->rows; i++) {
        int64_t slot = e->order[item->first + i];
        double sum = 0.0;
        for (int64_t j = 0; j < item->columns; j += VEC_CHUNK) {
            int64_t n = item->columns - j < VEC_CHUNK ? item->columns - j : VEC_CHUNK;
            float *z = c + i * item->columns + j;
            vec_round(z, n, e->dtype);
            moe_experts_bias(e, e->down_bias, item->group, item->column + j, 1, z, n);
            moe_experts_beside(e, moe_experts_beside_down(e, item->first + i, item->column + j), 1, z, n);
            upstream_values(job, slot / e->top_k, item->column + j, g, n);
            vec_mul_rounded(z, g, n, e->weights->dtype);
            for (int64_t k = 0; k < n; k++)
                sum += (double)z[k];
        }
        job->dots[slot * job->dot_tiles + item->column / e->tile_hidden] = sum;
    }
}

static void write_dots(const grad_job *job, const tn_tensor *dw)
{
    const experts_job *e = &job->experts;
    for (int64_t slot = 0; slot < e->slots; slot++) {
        double sum = 0.0;
        for (int64_t tile = 0; tile < job->dot_tiles; tile++)
            sum += job->dots[slot * job->dot_tiles + tile];
        float rounded = (float)sum;
        convert_from_f32(&rounded, dw->dtype,
                         rows_at(dw, slot / e->top_k) + (size_t)(slot % e->top_k) * tn_dtype_size(dw->dtype), 1);
    }
}

/* ---- of the products -------------------------------------------------------------------------------------------- */

/* gate and up become their gradients. */
static void glu_item(const void *ctx, gemm_context *context, const grouped_item *item)
{
    const grad_job *job = ctx;
    const experts_job *e = &job->experts;
    float *c = (float *)(void *)item->mine, gate[VEC_CHUNK], up[VEC_CHUNK];
    moe_experts_product(e, context, (experts_matrix){TN_ROLE_DOWN, 0}, true, item, e->hidden, job->upstream, c);
    for (int64_t i = 0; i < item->rows; i++)
        for (int64_t j = 0; j < item->columns; j += VEC_CHUNK) {
            int64_t n = item->columns - j < VEC_CHUNK ? item->columns - j : VEC_CHUNK;
            float *dp = c + i * item->columns + j;
            vec_round(dp, n, e->dtype);
            if (e->beside.there)
                moe_experts_beside(e, e->beside.gate_up + (item->first + i) * e->inter + item->column + j, 1, dp, n);
            moe_experts_kept(e, item->first + i, item->column + j, gate, up, n);
            if (e->act == TN_ACT_CLAMPED_SWIGLU)
                vec_clamped_swiglu_grad(&e->clamp, e->dtype, gate, up, dp, n);
            else
                vec_glu_grad(e->act, 0.0f, e->dtype, gate, up, dp, n);
            moe_experts_keep(e, item->first + i, item->column + j, gate, up, n);
        }
}

/* The gradient d of a slot's scaled input, some columns of it: its part of d . x, and then rnd(w d). */
static void unscale(const grad_job *job, int64_t slot, const grouped_item *item, float *d)
{
    const experts_job *e = &job->experts;
    float weight = moe_experts_slot_weight(e, slot), x[VEC_CHUNK];
    double sum = 0.0;
    for (int64_t j = 0; j < item->columns; j += VEC_CHUNK, d += VEC_CHUNK) {
        int64_t n = item->columns - j < VEC_CHUNK ? item->columns - j : VEC_CHUNK;
        const char *from = rows_at(e->x, slot / e->top_k) + (size_t)(item->column + j) * tn_dtype_size(e->dtype);
        convert_to_f32(from, e->dtype, x, n);
        vec_round(d, n, e->dtype);
        vec_mul_rounded(x, d, n, e->weights->dtype);
        sum += vec_sum_wide(x, n);
        vec_scale(d, n, weight);
    }
    job->dots[slot * job->dot_tiles + item->column / e->tile_hidden] = sum;
}

/* terms[slot] = rnd(dgate gate + dup up) */
static void input_item(const void *ctx, gemm_context *context, const grouped_item *item)
{
    const grad_job *job = ctx;
    const experts_job *e = &job->experts;
    int64_t n = item->columns;
    float *c = (float *)(void *)item->mine, *second = c + item->rows * n;
    moe_experts_product(e, context, moe_experts_gate(e), true, item, e->pairs ? 2 * e->inter : e->inter, e->gate, c);
    if (!e->pairs) {
        moe_experts_product(e, context, moe_experts_up(e), true, item, e->inter, e->up, second);
        vec_add(c, second, item->rows * n);
    }
    for (int64_t i = 0; i < item->rows; i++) {
        int64_t slot = e->order[item->first + i];
        moe_experts_beside(e, moe_experts_beside_down(e, item->first + i, item->column), 1, c + i * n, n);
        if (e->scaled)
            unscale(job, slot, item, c + i * n);
        convert_from_f32(c + i * n, e->term_type,
                         e->terms + (size_t)(slot * e->hidden + item->column) * tn_dtype_size(e->term_type), n);
    }
}

/* ---- of the parameters ------------------------------------------------------------------------------------------ */

/* Columns first .. of a bias's gradient: sums over each expert's rows of g [slots, width], in their order. */
typedef struct bias_job {
    const experts_job *experts;
    const tn_tensor *to; /* [experts, outputs]                                                     */
    const char *g;
    int64_t first, width;
} bias_job;

static void bias_experts(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const bias_job *job = ctx;
    const experts_job *e = job->experts;
    (void)thread;
    size_t size = tn_dtype_size(e->type), to_size = tn_dtype_size(job->to->dtype);
    double sum[VEC_CHUNK];
    float g[VEC_CHUNK];
    for (int64_t expert = begin; expert < end; expert++)
        for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
            int64_t n = job->width - at < VEC_CHUNK ? job->width - at : VEC_CHUNK;
            memset(sum, 0, sizeof sum);
            for (int64_t row = e->start[expert]; row < e->start[expert + 1]; row++) {
                convert_to_f32(job->g + (size_t)(row * job->width + at) * size, e->type, g, n);
                for (int64_t i = 0; i < n; i++)
                    sum[i] += (double)g[i];
            }
            for (int64_t i = 0; i < n; i++)
                g[i] = (float)sum[i];
            char *to = (char *)job->to->data + (size_t)(expert * job->to->stride[0] + job->first + at) * to_size;
            convert_from_f32(g, job->to->dtype, to, n);
        }
}

static void bias_grads(const grad_job *job, tn_role role, int64_t first, const char *g, int64_t width)
{
    const tn_param *to = &job->grads->param[role];
    bias_job bias = {&job->experts, to->tensors, g, first, width};
    if (to->count > 0)
        tn_parallel_for(job->experts.expert_count, 1, bias_experts, &bias);
}

static void matrix_grads(const grad_job *job, experts_matrix matrix, const char *g, int64_t out, const char *x,
                         int64_t in)
{
    const experts_job *e = &job->experts;
    const grouped_grads grads = {.param = &job->grads->param[matrix.role],
                                 .layout = e->layout,
                                 .first = matrix.first,
                                 .out = out,
                                 .in = in,
                                 .type = e->type,
                                 .g = g,
                                 .x = x,
                                 .ldg = out,
                                 .ldx = in,
                                 .start = e->start,
                                 .groups = e->expert_count,
                                 .threads = e->threads,
                                 .thread_bytes = e->thread_bytes};
    grouped_weight_grads(&grads);
}

/* Of everything, from gate and up's gradients and upstream. */
static void param_grads(const grad_job *job)
{
    const experts_job *e = &job->experts;
    int64_t inter = e->pairs ? 2 * e->inter : e->inter;
    matrix_grads(job, moe_experts_gate(e), e->gate, inter, e->gathered, e->hidden);
    bias_grads(job, TN_ROLE_GATE_UP_BIAS, 0, e->gate, inter);
    if (!e->pairs) {
        matrix_grads(job, moe_experts_up(e), e->up, inter, e->gathered, e->hidden);
        bias_grads(job, TN_ROLE_GATE_UP_BIAS, inter, e->up, inter);
    }
    matrix_grads(job, (experts_matrix){TN_ROLE_DOWN, 0}, job->upstream, e->hidden, e->activated, e->inter);
    bias_grads(job, TN_ROLE_DOWN_BIAS, 0, job->upstream, e->hidden);
}

static tn_status moe_experts_backward(const tn_call *call, tn_error *err)
{
    grad_job job;
    if (!grad_shape(call, &job))
        return moe_experts_unknown(call->site, err);
    grad_layout(&job, call->scratch);
    experts_job *e = &job.experts;
    const tn_grads *grads = call->grads;
    tn_status status = moe_experts_sort(e, err);
    if (status != TN_OK)
        return status;
    moe_experts_activate(e);
    if (grads->in[1].data && !e->scaled)
        moe_experts_pass(e, e->hidden, e->tile_hidden, e->inter, dots_item, &job);
    tn_parallel_for(e->slots, rows_grain(e->hidden), upstream_rows, &job);
    experts_adapter_down_grads(e, grads, job.upstream);
    moe_experts_pass(e, e->inter, e->tile_inter, e->hidden, glu_item, &job);
    experts_adapter_gate_up_grads(e, grads);
    if (grads->in[0].data || (grads->in[1].data && e->scaled))
        moe_experts_pass(e, e->hidden, e->tile_hidden, 2 * e->inter, input_item, &job);
    if (grads->in[0].data)
        moe_experts_combine(e, &grads->in[0]);
    if (grads->in[1].data)
        write_dots(&job, &grads->in[1]);
    param_grads(&job);
    return TN_OK;
}

const eager_op eager_moe_experts = {.op = TN_OP_MOE_EXPERTS,
                                    .scratch = moe_experts_scratch,
                                    .forward = moe_experts_forward,
                                    .backward_scratch = moe_experts_backward_scratch,
                                    .backward = moe_experts_backward};
