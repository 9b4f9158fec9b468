/* MOE_ROUTE, gradients. No gradient passes through the choice: only the weights of the chosen experts have one. With g
 * the gradient of the weights (times the factor, where there is one), v the chosen scores and s = sum over them of g w:
 *
 *     softmax                   dl = p (g - sum g p), for experts not chosen g = 0
 *     softmax, renormalised     dl = w (g - s), w = v / sum v; 0 for experts not chosen
 *     top-k, then softmax       the same, w = softmax(v)
 *     sigmoid, also of top-k    dl = g v (1 - v)
 *     sigmoid, renormalised     dl = (g - s) / D v (1 - v), D = sum v + eps, w = v / D
 *
 * eps is TN_NUM_EPS, or 1e-20 where that is 0. Of other scores D is no sum where that is less than TN_NUM_EPS: then s =
 * 0. Where experts have factors f, g stands for g f, and dL/df is the sum over its tokens of g (times the factor) and
 * the weight without f.
 *
 * Logits and scores are computed again; all of this is f32. dl is rounded to the model's dtype as the logits were, then
 * dL/dx = dl router, dL/drouter = dl^T x, dL/dbias = sum of dl. */
#include "eager/moe_route.h"
#include "eager/product.h"
#include "eager/rows.h"
#include "eager/sums.h"
#include "eager/vec.h"

typedef struct route_grad_job {
    route_job route;
    const tn_tensor *g;
} route_grad_job;

static bool route_grad_shape(const tn_call *call, route_grad_job *job)
{
    job->g = &call->grads->out[0];
    return moe_route_shape(call, job->g->ndim == 2 ? job->g->shape[1] : call->site->dim[TN_DIM_TOP_K], &job->route);
}

/* dL/dlogits [tokens, experts] lies where the choice was made. */
static tn_tensor route_logit_grads(const route_job *job)
{
    return tn_tensor_dense(job->choice, TN_F32, 2, (int64_t[]){job->tokens, job->expert_count});
}

static product route_input_product(const route_job *job, const tn_tensor *dl, const tn_tensor *dx)
{
    return (product){.form = GEMM_NN, .a = dl, .w = job->router, .y = dx};
}

static product route_router_product(const route_job *job, const tn_tensor *dl, const tn_tensor *drouter)
{
    return (product){.form = GEMM_TN, .a = dl, .w = job->x, .y = drouter};
}

/* What comes after the scores uses the memory behind them again. */
static size_t route_grad_layout(route_grad_job *job, char *base, char **rest)
{
    route_job *route = &job->route;
    tn_tensor dl = route_logit_grads(route);
    product dx = route_input_product(route, &dl, NULL), drouter = route_router_product(route, &dl, NULL);
    sums dbias = sums_shape(route->tokens, route->expert_count);
    const size_t sizes[] = {product_scratch(&dx), product_scratch(&drouter), sums_bytes(&dbias)};
    size_t all = moe_route_layout(route, base), kept = 0;
    size_t scores = (size_t)route->tokens * (size_t)route->expert_count * sizeof(float);
    rows_take(base, &kept, scores);
    rows_take(base, &kept, scores);
    *rest = base ? base + kept : NULL;
    for (int i = 0; i < 3; i++)
        all = kept + sizes[i] > all ? kept + sizes[i] : all;
    return all;
}

static size_t moe_route_backward_scratch(const tn_call *call)
{
    route_grad_job job;
    char *rest;
    return route_grad_shape(call, &job) ? route_grad_layout(&job, NULL, &rest) : 0;
}

/* s = sum of g w, w = v / divisor. Each is divided on its own: a single one of them is exactly 1. */
static float route_share(const float *g, const float *v, float divisor, int64_t k)
{
    float s = 0.0f;
    for (int64_t j = 0; j < k; j++)
        s += g[j] * (v[j] / divisor);
    return s;
}

/* The scores of the k chosen experts become what is divided where weights are; are they divided by their sum? */
static bool route_divide(const route_job *job, float *v, float *divisor)
{
    int64_t k = job->top_k;
    bool is_sum = false;
    *divisor = 1.0f;
    if (job->score == TN_SCORE_TOPK_SOFTMAX)
        vec_div(v, k, vec_exp_sum(v, k, vec_max(v, k)));
    if (job->score == TN_SCORE_TOPK_SIGMOID)
        vec_act(TN_ACT_SIGMOID, TN_F32, v, k);
    if (job->site->features & TN_HAS_RENORM)
        *divisor = moe_route_divisor(job, v, &is_sum);
    return is_sum;
}

/* The gradient of the k chosen logits from g, that of their weights, and the scores v, which become the gradients of
 * the experts' factors. Of a softmax that is not renormalised also that of the others: returns s. */
static float route_logits(const route_job *job, const int32_t *experts, float *g, float *v)
{
    int64_t k = job->top_k;
    float divisor, factor[VEC_CHUNK], s;
    bool is_sum = route_divide(job, v, &divisor);
    for (int64_t j = 0; job->expert_scale && j < k; j++) {
        factor[j] = g[j] * (v[j] / divisor);
        g[j] *= moe_route_expert_scale(job, experts[j]);
    }
    s = is_sum ? route_share(g, v, divisor, k) : 0.0f;
    for (int64_t j = 0; j < k; j++)
        g[j] = (g[j] - s) / divisor;
    /* Divided by their sum, the chosen scores' gradients are orthogonal to them: nothing goes to the other experts. */
    s = is_sum && job->score == TN_SCORE_SOFTMAX ? 0.0f : route_share(g, v, 1.0f, k);
    if (job->score == TN_SCORE_SIGMOID || job->score == TN_SCORE_TOPK_SIGMOID)
        for (int64_t j = 0; j < k; j++)
            g[j] *= v[j] * (1.0f - v[j]);
    else
        for (int64_t j = 0; j < k; j++)
            g[j] = v[j] * (g[j] - s);
    if (job->expert_scale)
        memcpy(v, factor, (size_t)k * sizeof *v);
    return s;
}

/* Into row, one value for each expert: zeros but for the chosen ones. */
static void route_scatter(const route_job *job, const int32_t *experts, const float *values, float *row)
{
    memset(row, 0, (size_t)job->expert_count * sizeof *row);
    for (int64_t j = 0; j < job->top_k; j++)
        row[experts[j]] = values[j];
}

static void route_grad_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const route_grad_job *grad = ctx;
    const route_job *job = &grad->route;
    (void)thread;
    int64_t n = job->expert_count;
    float v[VEC_CHUNK], g[VEC_CHUNK];
    int32_t experts[VEC_CHUNK];
    for (int64_t token = begin; token < end; token++) {
        float *dl = job->choice + token * n, *scores = job->scores + token * n;
        moe_route_choose(job, token, experts, v);
        if (grad->g->data)
            convert_to_f32(rows_at(grad->g, token), grad->g->dtype, g, job->top_k);
        else
            memset(g, 0, (size_t)job->top_k * sizeof *g);
        vec_scale(g, job->top_k, job->scale);
        float s = 0.0f;
        if (job->score == TN_SCORE_SPARSEMIXER) {
            moe_route_sparse_grad(job, token, experts, g, dl);
        } else {
            s = route_logits(job, experts, g, v);
            route_scatter(job, experts, g, dl);
        }
        if (job->score == TN_SCORE_SOFTMAX && s != 0.0f) {
            vec_add_scaled(dl, scores, -s, n);
            for (int64_t j = 0; j < job->top_k; j++)
                dl[experts[j]] = g[j];
        }
        if (!(job->site->features & TN_HAS_F32_ROUTER))
            vec_round(dl, n, job->x->dtype);
        if (job->expert_scale)
            route_scatter(job, experts, v, scores);
    }
}

/* The choice has no gradient, and so has what only takes part in it. */
static void route_zero_correction(const tn_param *param)
{
    for (int64_t i = 0; i < param->count; i++)
        memset(param->tensors[i].data, 0,
               (size_t)tn_tensor_count(&param->tensors[i]) * tn_dtype_size(param->tensors[i].dtype));
}

static tn_status moe_route_backward(const tn_call *call, tn_error *err)
{
    const tn_param *param = call->grads->param;
    route_grad_job job;
    char *rest;
    if (!route_grad_shape(call, &job))
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "a router without its weight; report this defect");
    route_grad_layout(&job, call->scratch, &rest);
    route_job *route = &job.route;
    tn_status status = moe_route_scores(route, err);
    if (status != TN_OK)
        return status;
    tn_parallel_for(route->tokens, rows_grain(route->expert_count * route->top_k), route_grad_tokens, &job);
    tn_tensor dl = route_logit_grads(route);
    if (call->grads->in[0].data) {
        product dx = route_input_product(route, &dl, &call->grads->in[0]);
        status = product_run(&dx, rest, call->site->path, err);
    }
    if (status == TN_OK && param[TN_ROLE_ROUTER].count > 0) {
        product drouter = route_router_product(route, &dl, param[TN_ROLE_ROUTER].tensors);
        status = product_run(&drouter, rest, call->site->path, err);
    }
    if (param[TN_ROLE_ROUTER_BIAS].count > 0)
        sums_of_rows(&dl, rest, param[TN_ROLE_ROUTER_BIAS].tensors);
    if (param[TN_ROLE_EXPERT_SCALE].count > 0) {
        tn_tensor factors = dl; /* they lie where the scores were                                 */
        factors.data = route->scores;
        sums_of_rows(&factors, rest, param[TN_ROLE_EXPERT_SCALE].tensors);
    }
    route_zero_correction(&param[TN_ROLE_CORRECTION_BIAS]);
    return status;
}

const eager_op eager_moe_route = {.op = TN_OP_MOE_ROUTE,
                                  .scratch = moe_route_scratch,
                                  .forward = moe_route_forward,
                                  .backward_scratch = moe_route_backward_scratch,
                                  .backward = moe_route_backward};
