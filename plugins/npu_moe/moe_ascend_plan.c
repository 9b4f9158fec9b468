/* What npu_fused_moe takes on an Ascend device beyond its matches, and the scratch of its calls. */
#include "moe_ascend.h"

static const tn_role weight_roles[] = {TN_ROLE_GATE, TN_ROLE_UP, TN_ROLE_GATE_UP, TN_ROLE_DOWN, TN_ROLE_WEIGHT};
enum { WEIGHT_ROLES = sizeof weight_roles / sizeof *weight_roles };

/* Do matrices of lists lie like stacks, those of gate and up by themselves or in turn? */
static bool are_stacks(const tn_site *site)
{
    const tn_param *gate = &site->param[TN_ROLE_GATE], *up = &site->param[TN_ROLE_UP];
    tn_tensor stack;
    bool pairs = gate->count > 0 && npu_stack(gate->tensors, up->tensors, gate->count, &stack), stacks = true;
    for (size_t i = 0; i < WEIGHT_ROLES && stacks; i++) {
        const tn_param *p = &site->param[weight_roles[i]];
        stacks = p->count == 0 || (pairs && (p == gate || p == up)) || npu_stack(p->tensors, NULL, p->count, &stack);
    }
    return stacks;
}

/* What a list of matrices, or their stack, must be for grouped products. */
static tn_status check_weights(const tn_site *site, tn_error *err)
{
    bool list = moe_ascend_is_list(site) && !are_stacks(site);
    int64_t experts = site->dim[TN_DIM_EXPERTS];
    if (experts < 2)
        return tn_fail(err, TN_DECLINED, site->path, "experts: site has %lld, kernel takes 2 and more",
                       (long long)experts);
    if (list && moe_ascend_dtype(site) == TN_F32)
        return tn_fail(err, TN_DECLINED, site->path, "a matrix per expert in f32; kernel takes one tensor of all");
    tn_status status = npu_limit(site, "experts", experts, list ? NPU_LIST_MOST : NPU_STACK_MOST, err);
    for (size_t i = 0; i < WEIGHT_ROLES && status == TN_OK; i++)
        for (int64_t e = 0; e < site->param[weight_roles[i]].count && status == TN_OK; e++)
            if (!ascend_is_dense(&site->param[weight_roles[i]].tensors[e]))
                status = tn_fail(err, TN_DECLINED, site->path, "%s has gaps between rows, kernel takes dense weights",
                                 tn_role_name(weight_roles[i]));
    return status;
}

static tn_status check_widths(const tn_site *site, int64_t in, int64_t out, tn_error *err)
{
    tn_status status = npu_limit(site, "width", in, NPU_WIDTH_MOST, err);
    return status == TN_OK ? npu_limit(site, "width", out, NPU_WIDTH_MOST, err) : status;
}

/* Slots of a call: the operator that sorts takes fewer than these. */
enum { MOST_SLOTS = 16777214 };

static size_t experts_scratch(const tn_site *site, int64_t tokens)
{
    tn_dtype dtype = moe_ascend_dtype(site);
    int64_t slots = tokens * site->dim[TN_DIM_TOP_K], hidden = site->dim[TN_DIM_HIDDEN],
            inter = site->dim[TN_DIM_INTER];
    /* x, y, weights, ids without gaps; sorted rows; gates, ups, the pair, its product; places and counts, those as f32
     * and i64, of ids as f32. */
    return 2 * npu_bytes(dtype, tokens * hidden) + 4 * npu_bytes(TN_F32, slots) + npu_bytes(dtype, slots * hidden) +
           5 * npu_bytes(dtype, slots * inter) + npu_bytes(TN_I64, site->dim[TN_DIM_EXPERTS]) +
           npu_bytes(TN_F32, site->dim[TN_DIM_EXPERTS]) + 1024;
}

static size_t experts_backward_scratch(const tn_site *site, int64_t tokens)
{
    tn_dtype dtype = moe_ascend_dtype(site);
    int64_t slots = tokens * site->dim[TN_DIM_TOP_K], hidden = site->dim[TN_DIM_HIDDEN],
            inter = site->dim[TN_DIM_INTER];
    int64_t weights = 2 * inter * hidden * site->dim[TN_DIM_EXPERTS];
    /* Weights of f32 beside narrow rows: all of what aclnnMoeTokenUnpermuteGrad sees in f32. */
    size_t wide = dtype == TN_F32 || !(site->features & TN_HAS_F32_ROUTING)
                      ? 0
                      : 2 * npu_bytes(TN_F32, slots * hidden) + npu_bytes(TN_F32, tokens * hidden);
    return wide + experts_scratch(site, tokens) + 2 * npu_bytes(dtype, tokens * hidden) + 2 * npu_bytes(TN_F32, slots) +
           3 * npu_bytes(dtype, slots * hidden) + 3 * npu_bytes(dtype, slots * inter) + npu_bytes(dtype, weights) +
           1024;
}

tn_status moe_ascend_experts_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    tn_status status = npu_here(site, err) ? check_weights(site, err) : TN_DECLINED;
    if (status == TN_OK)
        status = check_widths(site, site->dim[TN_DIM_HIDDEN], 2 * site->dim[TN_DIM_INTER], err);
    if (status == TN_OK)
        status = npu_limit(site, "slots of a call", plan->max_tokens * site->dim[TN_DIM_TOP_K], MOST_SLOTS, err);
    plan->scratch_bytes = experts_scratch(site, plan->max_tokens);
    plan->backward_scratch_bytes = moe_ascend_is_list(site) ? 0 : experts_backward_scratch(site, plan->max_tokens);
    return status;
}

static size_t router_scratch(const tn_site *site, int64_t tokens)
{
    int64_t experts = site->dim[TN_DIM_EXPERTS], hidden = site->dim[TN_DIM_HIDDEN];
    /* x, the router and its bias in f32; logits of both types, scores; values, sums, ratios, indices. */
    return npu_bytes(TN_F32, tokens * hidden) + npu_bytes(TN_F32, experts * hidden) + npu_bytes(TN_F32, experts) +
           5 * npu_bytes(TN_F32, tokens * experts) + 9 * npu_bytes(TN_F32, tokens * site->dim[TN_DIM_TOP_K]) + 1024;
}

static tn_status check_router(const tn_site *site, tn_error *err)
{
    const tn_tensor *router = site->param[TN_ROLE_ROUTER].tensors;
    double least = (double)site->dim[TN_DIM_TOP_K] / (double)site->dim[TN_DIM_EXPERTS];
    if (router->dtype != TN_F32 && router->dtype != moe_ascend_dtype(site))
        return tn_fail(err, TN_DECLINED, site->path, "router is %s, kernel takes f32 and that of the activations",
                       tn_dtype_name(router->dtype));
    /* The k best of E numbers that add up to 1 are k / E of it at least. */
    if ((site->features & TN_HAS_RENORM) && site->num[TN_NUM_EPS] > least)
        return tn_fail(err, TN_DECLINED, site->path, "eps: site has %g, kernel takes up to %g", site->num[TN_NUM_EPS],
                       least);
    return TN_OK;
}

tn_status moe_ascend_route_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    plan->scratch_bytes = router_scratch(site, plan->max_tokens);
    return npu_here(site, err) ? check_router(site, err) : TN_DECLINED;
}

/* The shared expert: the pair and what it is made of, p, y twice, the gate; and y of the others. */
static size_t shared_scratch(const tn_site *site, int64_t tokens)
{
    tn_dtype dtype = moe_ascend_dtype(site);
    return 5 * npu_bytes(dtype, tokens * site->dim[TN_DIM_SHARED_INTER]) +
           6 * npu_bytes(dtype, tokens * site->dim[TN_DIM_HIDDEN]) + 2 * npu_bytes(dtype, tokens) + 1024;
}

tn_status moe_ascend_block_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    tn_plan route = *plan;
    tn_status status = moe_ascend_experts_plan(site, plan, err);
    if (status == TN_OK)
        status = moe_ascend_route_plan(site, &route, err);
    plan->backward_scratch_bytes = 0;
    int64_t slots = plan->max_tokens * site->dim[TN_DIM_TOP_K];
    plan->scratch_bytes += route.scratch_bytes + shared_scratch(site, plan->max_tokens) + npu_bytes(TN_F32, slots) +
                           npu_bytes(TN_I64, slots);
    return status;
}

tn_status moe_ascend_product_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    if (!npu_here(site, err))
        return TN_DECLINED;
    tn_status status = check_weights(site, err);
    int64_t in = site->dim[TN_DIM_HIDDEN], out = site->dim[TN_DIM_OUT], tokens = plan->max_tokens;
    tn_dtype dtype = moe_ascend_dtype(site);
    plan->scratch_bytes =
        npu_bytes(dtype, tokens * in) + npu_bytes(dtype, tokens * out) + npu_bytes(TN_I64, site->dim[TN_DIM_EXPERTS]);
    plan->backward_scratch_bytes = 2 * plan->scratch_bytes + npu_bytes(dtype, in * out * site->dim[TN_DIM_EXPERTS]);
    return status == TN_OK ? check_widths(site, in, out, err) : status;
}
