/* npu_fused_moe on an Ascend device: routers by aclnnSoftmax and aclnnTopk; experts by sorting tokens
 * (aclnnMoeTokenPermute), grouped products, aclnnSwiGlu, and adding up (aclnnMoeTokenUnpermute). The numbers of tokens
 * of each expert stay on the device. */
#include "moe_ascend.h"

/* y [S,N] = x [S,K], rows sorted by group, times each group's matrix; turned: those of the weights transposed. */
static void product(npu_run *r, tn_tensor x, const tn_param *weights, bool turned, tn_tensor counts, tn_tensor y)
{
    tn_tensor matrices[NPU_LIST_MOST], stack;
    bool stacked = npu_stack(weights->tensors, NULL, weights->count, &stack);
    const tn_tensor *from = stacked ? &stack : weights->tensors;
    int64_t count = stacked ? 1 : weights->count;
    for (int64_t i = 0; i < count; i++)
        matrices[i] = turned ? npu_transposed(from[i]) : from[i];
    npu_grouped_matmul(r, NPU_OF_ROWS, x, matrices, count, counts, y);
}

/* ---- experts -------------------------------------------------------------------------------------------- */

/* What forward leaves for backward, all of it in scratch. */
typedef struct sorted_tokens {
    tn_tensor weights, rows, places, counts, pair, p; /* rows [T k,H] of x by expert                    */
} sorted_tokens;

/* From x [T,H], weights and experts [T,k] to p [T k,I]. */
static sorted_tokens features(npu_run *r, const tn_site *site, tn_tensor x, tn_tensor weights, tn_tensor experts)
{
    const tn_param *param = site->param;
    tn_dtype dtype = moe_ascend_dtype(site);
    int64_t slots = tn_tensor_count(&experts), inter = site->dim[TN_DIM_INTER], count = site->dim[TN_DIM_EXPERTS];
    sorted_tokens t = {.weights = npu_dense(r, weights)};
    experts = npu_dense(r, experts);
    x = npu_dense(r, x);
    t.rows = npu_take_2d(r, dtype, slots, x.shape[1]);
    t.places = npu_take(r, TN_I32, 1, &slots);
    t.counts = npu_take(r, TN_I64, 1, &count);
    npu_permute(r, x, experts, t.rows, t.places);
    npu_count(r, experts, t.counts);
    t.pair = npu_take_2d(r, dtype, slots, 2 * inter);
    t.p = npu_take_2d(r, dtype, slots, inter);
    size_t before = r->used;
    tn_tensor both;
    if (moe_ascend_is_list(site) && npu_stack(param[TN_ROLE_GATE].tensors, param[TN_ROLE_UP].tensors, count, &both)) {
        product(r, t.rows, &(tn_param){&both, 1}, true, t.counts, t.pair);
    } else if (moe_ascend_is_list(site)) {
        tn_tensor gate = npu_take_like(r, dtype, t.p), up = npu_take_like(r, dtype, t.p);
        product(r, t.rows, &param[TN_ROLE_GATE], true, t.counts, gate);
        product(r, t.rows, &param[TN_ROLE_UP], true, t.counts, up);
        npu_join(r, gate, up, t.pair);
    } else {
        product(r, t.rows, &param[TN_ROLE_GATE_UP], moe_ascend_is_turned(site), t.counts, t.pair);
    }
    r->used = before;
    npu_swiglu(r, t.pair, t.p);
    return t;
}

/* y is dense. */
static void experts(npu_run *r, const tn_site *site, tn_tensor x, tn_tensor weights, tn_tensor ids, tn_tensor y)
{
    sorted_tokens t = features(r, site, x, weights, ids);
    tn_tensor results = t.rows; /* which are not needed any more                                         */
    product(r, t.p, &site->param[TN_ROLE_DOWN], moe_ascend_is_turned(site), t.counts, results);
    npu_unpermute(r, results, t.places, t.weights, y);
}

static tn_status experts_forward(const tn_call *call, tn_error *err)
{
    npu_run r = npu_run_of(call, err);
    tn_tensor y = call->out[0];
    if (r.status != TN_OK || y.shape[0] == 0)
        return r.status;
    tn_tensor to = npu_target(&r, y, NULL, 0);
    experts(&r, call->site, call->in[0], call->in[1], call->in[2], to);
    npu_settle(&r, to, y);
    return r.status;
}

/* The gradient of a stack of weights, [E,out,in] or [E,in,out], where it is wanted. */
static void grad_of_stack(npu_run *r, const tn_call *call, tn_role role, tn_tensor dout, tn_tensor in, tn_tensor counts)
{
    const tn_param *p = &call->grads->param[role];
    size_t before = r->used;
    if (!p->count || !p->tensors->data)
        return;
    tn_tensor to = npu_target(r, *p->tensors, NULL, 0);
    bool turned = moe_ascend_is_turned(call->site);
    tn_tensor a = turned ? dout : in, b = turned ? in : dout; /* a^T b                                      */
    npu_zero(r, to); /* what a group without rows leaves of its matrix is not documented             */
    npu_grouped_matmul(r, NPU_OF_SUMS, npu_transposed(a), &b, 1, counts, to);
    npu_settle(r, to, *p->tensors);
    r->used = before;
}

static tn_status experts_backward(const tn_call *call, tn_error *err)
{
    npu_run r = npu_run_of(call, err);
    const tn_site *site = call->site;
    const tn_grads *grads = call->grads;
    tn_tensor g = grads->out[0], dx = grads->in[0], dw = grads->in[1];
    bool turned = moe_ascend_is_turned(site);
    if (r.status != TN_OK)
        return r.status;
    if (call->in[0].shape[0] == 0 || !g.data) {
        npu_clear_all(&r, grads);
        return r.status;
    }
    sorted_tokens t = features(&r, site, call->in[0], call->in[1], call->in[2]);
    tn_tensor results = npu_take_like(&r, g.dtype, t.rows), dresults = npu_take_like(&r, g.dtype, t.rows);
    tn_tensor dp = npu_take_like(&r, g.dtype, t.p), dpair = npu_take_like(&r, g.dtype, t.pair);
    product(&r, t.p, &site->param[TN_ROLE_DOWN], turned, t.counts, results);
    tn_tensor dweights = dw.data ? npu_target(&r, dw, NULL, 0) : npu_take_like(&r, t.weights.dtype, t.weights);
    npu_unpermute_grad(&r, results, npu_dense(&r, g), t.places, t.weights, dresults, dweights);
    if (dw.data)
        npu_settle(&r, dweights, dw);
    grad_of_stack(&r, call, TN_ROLE_DOWN, dresults, t.p, t.counts);
    product(&r, dresults, &site->param[TN_ROLE_DOWN], !turned, t.counts, dp);
    npu_swiglu_grad(&r, dp, t.pair, dpair);
    grad_of_stack(&r, call, TN_ROLE_GATE_UP, dpair, t.rows, t.counts);
    if (!dx.data)
        return r.status;
    product(&r, dpair, &site->param[TN_ROLE_GATE_UP], !turned, t.counts, results);
    tn_tensor to = npu_target(&r, dx, NULL, 0);
    npu_permute_grad(&r, results, t.places, site->dim[TN_DIM_TOP_K], to);
    npu_settle(&r, to, dx);
    return r.status;
}

/* ---- grouped products ----------------------------------------------------------------------------------- */

static tn_status product_forward(const tn_call *call, tn_error *err)
{
    npu_run r = npu_run_of(call, err);
    tn_tensor y = call->out[0];
    if (r.status != TN_OK || y.shape[0] == 0)
        return r.status;
    tn_tensor to = npu_target(&r, y, NULL, 0);
    product(&r, npu_dense(&r, call->in[0]), &call->site->param[TN_ROLE_WEIGHT], moe_ascend_is_turned(call->site),
            call->in[1], to);
    npu_settle(&r, to, y);
    return r.status;
}

static tn_status product_backward(const tn_call *call, tn_error *err)
{
    npu_run r = npu_run_of(call, err);
    const tn_grads *grads = call->grads;
    tn_tensor dx = grads->in[0];
    if (r.status != TN_OK)
        return r.status;
    if (call->in[0].shape[0] == 0 || !grads->out[0].data) {
        npu_clear_all(&r, grads);
        return r.status;
    }
    tn_tensor g = npu_dense(&r, grads->out[0]), x = npu_dense(&r, call->in[0]);
    grad_of_stack(&r, call, TN_ROLE_WEIGHT, g, x, call->in[1]);
    if (!dx.data)
        return r.status;
    tn_tensor to = npu_target(&r, dx, NULL, 0);
    product(&r, g, &call->site->param[TN_ROLE_WEIGHT], !moe_ascend_is_turned(call->site), call->in[1], to);
    npu_settle(&r, to, dx);
    return r.status;
}

/* ---- routers -------------------------------------------------------------------------------------------- */

/* [T,E] in f32: rounded to the model's type, but where the router is one of f32. A bias is added before that: products
 * are then those of f32 copies, which are exact. */
static tn_tensor logits_of(npu_run *r, const tn_site *site, tn_tensor x)
{
    tn_tensor router = *site->param[TN_ROLE_ROUTER].tensors;
    const tn_param *bias = &site->param[TN_ROLE_ROUTER_BIAS];
    tn_dtype dtype = moe_ascend_dtype(site);
    bool keeps = site->features & TN_HAS_F32_ROUTER, wide = keeps || bias->count || router.dtype != dtype;
    int64_t tokens = x.shape[0], experts = router.shape[0];
    if (wide && dtype != TN_F32) {
        x = npu_wide_copy(r, x);
        router = router.dtype == TN_F32 ? router : npu_wide_copy(r, router);
    }
    tn_tensor logits = npu_take_2d(r, x.dtype, tokens, experts);
    npu_matmul(r, x, npu_transposed(router), logits);
    if (bias->count) {
        tn_tensor sum = npu_take_like(r, TN_F32, logits);
        npu_add(r, logits, npu_wide_copy(r, *bias->tensors), 1, sum);
        logits = sum;
    }
    if (logits.dtype == TN_F32 && dtype != TN_F32 && !keeps) {
        tn_tensor rounded = npu_take_2d(r, dtype, tokens, experts);
        npu_copy(r, logits, rounded);
        logits = rounded;
    }
    return logits.dtype == TN_F32 ? logits : npu_wide_copy(r, logits);
}

/* weights [T,k] of their own type, experts [T,k] i32, anywhere; or dense i64, as the operator gives them. */
static void route(npu_run *r, const tn_site *site, tn_tensor x, tn_tensor weights, tn_tensor experts)
{
    int64_t tokens = x.shape[0], k = site->dim[TN_DIM_TOP_K];
    bool late = site->meaning[TN_AXIS_SCORE] == TN_SCORE_TOPK_SOFTMAX;
    tn_tensor scores = logits_of(r, site, x), values = npu_take_2d(r, TN_F32, tokens, k);
    tn_tensor indices = experts.dtype == TN_I64 ? experts : npu_take_2d(r, TN_I64, tokens, k);
    if (!late) {
        tn_tensor logits = scores;
        scores = npu_take_like(r, TN_F32, logits);
        npu_softmax(r, logits, scores);
    }
    npu_largest(r, scores, k, values, indices);
    if (late) {
        tn_tensor best = values;
        values = npu_take_like(r, TN_F32, best);
        npu_softmax(r, best, values);
    }
    if (site->features & TN_HAS_RENORM) {
        tn_tensor sum = npu_take_2d(r, TN_F32, tokens, 1), ratio = npu_take_like(r, TN_F32, values);
        npu_sum(r, values, 1, true, sum);
        npu_divide(r, values, sum, ratio);
        values = ratio;
    }
    if (site->features & TN_HAS_ROUTE_SCALE) {
        tn_tensor scaled = npu_take_like(r, TN_F32, values);
        npu_multiply_number(r, values, (float)site->num[TN_NUM_SCALE], scaled);
        values = scaled;
    }
    npu_store(r, values, weights);
    if (experts.dtype != TN_I64)
        npu_store(r, indices, experts);
}

static tn_status route_forward(const tn_call *call, tn_error *err)
{
    npu_run r = npu_run_of(call, err);
    if (r.status == TN_OK && call->in[0].shape[0] > 0)
        route(&r, call->site, call->in[0], call->out[0], call->out[1]);
    return r.status;
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

static tn_tensor linear_of(npu_run *r, tn_tensor x, tn_tensor w)
{
    tn_tensor y = npu_take_2d(r, x.dtype, x.shape[0], w.shape[0]);
    npu_matmul(r, x, npu_transposed(w), y);
    return y;
}

static tn_tensor linear(npu_run *r, tn_tensor x, const tn_site *site, tn_role role)
{
    return linear_of(r, x, *site->param[role].tensors);
}

/* [T,2I]: gates, then ups; one product where their weights lie in a row. */
static tn_tensor shared_features(npu_run *r, const tn_site *site, tn_tensor x)
{
    const tn_param *param = site->param;
    tn_tensor both;
    if (npu_in_a_row(param[TN_ROLE_SHARED_GATE].tensors, param[TN_ROLE_SHARED_UP].tensors, &both))
        return linear_of(r, x, both);
    tn_tensor gate = linear(r, x, site, TN_ROLE_SHARED_GATE), up = linear(r, x, site, TN_ROLE_SHARED_UP);
    tn_tensor pair = npu_take_2d(r, x.dtype, x.shape[0], 2 * gate.shape[1]);
    npu_join(r, gate, up, pair);
    return pair;
}

static tn_tensor shared_expert(npu_run *r, const tn_site *site, tn_tensor x)
{
    tn_tensor pair = shared_features(r, site, x), p = npu_take_2d(r, x.dtype, x.shape[0], pair.shape[1] / 2);
    npu_swiglu(r, pair, p);
    tn_tensor y = linear(r, p, site, TN_ROLE_SHARED_DOWN);
    if (!(site->features & TN_HAS_SHARED_GATE))
        return y;
    tn_tensor z = linear(r, x, site, TN_ROLE_SHARED_EXPERT_GATE), share = npu_take_like(r, x.dtype, z);
    tn_tensor part = npu_take_like(r, x.dtype, y);
    npu_sigmoid(r, z, share);
    npu_multiply(r, y, share, part);
    return part;
}

static tn_status block_forward(const tn_call *call, tn_error *err)
{
    npu_run r = npu_run_of(call, err);
    const tn_site *site = call->site;
    tn_tensor x = call->in[0], y = call->out[0];
    int64_t tokens = x.shape[0], k = site->dim[TN_DIM_TOP_K];
    bool shared = site->features & TN_HAS_SHARED_EXPERT;
    if (r.status != TN_OK || tokens == 0)
        return r.status;
    tn_dtype dtype = site->features & TN_HAS_F32_ROUTING ? TN_F32 : moe_ascend_dtype(site);
    tn_tensor weights = npu_take_2d(&r, dtype, tokens, k), ids = npu_take_2d(&r, TN_I64, tokens, k);
    tn_tensor to = npu_target(&r, y, NULL, 0);
    tn_tensor routed = shared ? npu_take_2d(&r, y.dtype, tokens, y.shape[1]) : to;
    x = npu_dense(&r, x);
    size_t before = r.used;
    route(&r, site, x, weights, ids);
    r.used = before;
    experts(&r, site, x, weights, ids, routed);
    r.used = before;
    if (shared)
        npu_add(&r, routed, shared_expert(&r, site, x), 1, to);
    npu_settle(&r, to, y);
    return r.status;
}

/* ---- what is taken -------------------------------------------------------------------------------------- */

static const tn_dim_rule dims[] = {{.dim = TN_DIM_EXPERTS, .min = 2, .max = NPU_STACK_MOST},
                                   {.dim = TN_DIM_TOP_K, .max = 512}};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DTYPES (TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16))
#define NARROW (TN_TAKES(TN_BF16) | TN_TAKES(TN_F16))
#define STACKS (TN_TAKES(TN_LAYOUT_STACKED_OI) | TN_TAKES(TN_LAYOUT_STACKED_IO))
#define SCORES (TN_TAKES(TN_SCORE_SOFTMAX) | TN_TAKES(TN_SCORE_TOPK_SOFTMAX))
#define ROUTE_FEATURES (TN_HAS_RENORM | TN_HAS_ROUTE_SCALE | TN_HAS_F32_ROUTING | TN_HAS_F32_ROUTER)
#define MATCH(...)                                                                                                     \
    {                                                                                                                  \
        .size = sizeof(tn_match), .dims = dims, .dim_count = COUNT(dims), __VA_ARGS__                                  \
    }

/* README.md derives the tolerances. Lists of matrices have no gradients: the operator gives those of a stack. */
const tn_impl moe_ascend_impls[MOE_ASCEND_IMPLS] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_MOE_BLOCK,
     .match = MATCH(.takes = {[TN_AXIS_DTYPE] = DTYPES,
                              [TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU),
                              [TN_AXIS_SCORE] = SCORES,
                              [TN_AXIS_LAYOUT] = STACKS | TN_TAKES(TN_LAYOUT_EXPERT_LIST)},
                    .features = ROUTE_FEATURES | TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_GATE),
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 15.4, .ulps_f16 = 15.4},
     .plan = moe_ascend_block_plan,
     .forward = block_forward},
    {.size = sizeof(tn_impl),
     .op = TN_OP_MOE_EXPERTS,
     .match =
         MATCH(.takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU), [TN_AXIS_LAYOUT] = STACKS},
               .features = TN_HAS_F32_ROUTING),
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 12.3, .ulps_f16 = 12.3},
     .plan = moe_ascend_experts_plan,
     .forward = experts_forward,
     .backward = experts_backward,
     .gradient_tolerance = {.ulps_f32 = 1024, .ulps_bf16 = 64, .ulps_f16 = 128}},
    {.size = sizeof(tn_impl),
     .op = TN_OP_MOE_EXPERTS,
     .match = MATCH(.takes = {[TN_AXIS_DTYPE] = NARROW,
                              [TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU),
                              [TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_EXPERT_LIST)},
                    .features = TN_HAS_F32_ROUTING),
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 12.3, .ulps_f16 = 12.3},
     .plan = moe_ascend_experts_plan,
     .forward = experts_forward},
    {.size = sizeof(tn_impl),
     .op = TN_OP_MOE_ROUTE,
     .match = MATCH(.takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_WEIGHT] = DTYPES, [TN_AXIS_SCORE] = SCORES},
                    .features = ROUTE_FEATURES),
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 8, .ulps_f16 = 8},
     .plan = moe_ascend_route_plan,
     .forward = route_forward},
    {.size = sizeof(tn_impl),
     .op = TN_OP_GROUPED_MATMUL,
     .match = {.size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_LAYOUT] = STACKS}},
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 4, .ulps_f16 = 4},
     .plan = moe_ascend_product_plan,
     .forward = product_forward,
     .backward = product_backward},
    {.size = sizeof(tn_impl),
     .op = TN_OP_GROUPED_MATMUL,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = NARROW,
                         [TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_EXPERT_LIST) | TN_TAKES(TN_LAYOUT_LIST_IO)}},
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 4, .ulps_f16 = 4},
     .plan = moe_ascend_product_plan,
     .forward = product_forward},
};
