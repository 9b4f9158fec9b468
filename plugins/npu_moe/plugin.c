/* npu_fused_moe: which routers, experts, blocks and grouped products it takes on the CPU, and its list of devices. */
#define TN_ABI_NEEDED 3 /* TN_SAME_BITS */
#include "moe_ascend.h"
#include "moe_route.h"
#include "site.h"

/* plan->user[0] of every contract: the instruction sets that scratch was sized for. */
static tn_status moe_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    const tn_param *router = &site->param[TN_ROLE_ROUTER];
    if (router->count && router->tensors->dtype != TN_F32 &&
        (int32_t)router->tensors->dtype != site->meaning[TN_AXIS_DTYPE])
        return tn_fail(err, TN_DECLINED, site->path, "router is %s, kernel takes f32 and that of the activations",
                       tn_dtype_name(router->tensors->dtype));
    moe_site s;
    plan->user[0] = tn_cpu_flags();
    site_open(&s, site, plan->user[0]);
    if (site->op == TN_OP_MOE_ROUTE) {
        plan->scratch_bytes = moe_route_scratch_size(&s.layer.router, plan->max_tokens, plan->threads);
        plan->backward_scratch_bytes =
            moe_route_backward_scratch_size(&s.layer.router, plan->max_tokens, plan->threads);
    } else {
        plan->scratch_bytes = moe_scratch_size(&s.layer, plan->max_tokens, plan->threads);
        plan->backward_scratch_bytes = moe_backward_scratch_size(&s.layer, plan->max_tokens, plan->threads);
    }
    return TN_OK;
}

static moe_input input_of(const tn_call *call)
{
    moe_input in = {.x = &call->in[0],
                    .max_tokens = call->plan->max_tokens,
                    .threads = call->plan->threads,
                    .where = call->site->path};
    if (call->op == TN_OP_MOE_EXPERTS) {
        in.weights = &call->in[1];
        in.experts = &call->in[2];
    }
    return in;
}

static tn_status moe_call(const tn_call *call, tn_error *err)
{
    moe_site s;
    site_open(&s, call->site, call->plan->user[0]);
    moe_input in = input_of(call);
    return moe_forward(&s.layer, &in, &call->out[0], call->scratch, err);
}

static tn_status moe_call_back(const tn_call *call, tn_error *err)
{
    moe_site s;
    site_open(&s, call->site, call->plan->user[0]);
    moe_input in = input_of(call);
    return moe_backward(&s.layer, &in, call->grads, call->scratch, err);
}

static tn_status route_call_back(const tn_call *call, tn_error *err)
{
    moe_site s;
    site_open(&s, call->site, call->plan->user[0]);
    return moe_route_backward(&s.layer.router, &call->in[0], call->grads, call->plan->max_tokens, call->plan->threads,
                              call->scratch, call->site->path, err);
}

static tn_status route_call(const tn_call *call, tn_error *err)
{
    moe_site s;
    site_open(&s, call->site, call->plan->user[0]);
    return moe_route_forward(&s.layer.router, &call->in[0], &call->out[0], &call->out[1], call->plan->max_tokens,
                             call->plan->threads, call->scratch, call->site->path, err);
}

static tn_status gmm_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    product_kernels kernels;
    plan->user[0] = tn_cpu_flags();
    product_kernels_init(&kernels, (tn_dtype)site->meaning[TN_AXIS_DTYPE], plan->user[0]);
    gmm_layer layer = site_gmm(&kernels, site);
    plan->scratch_bytes = gmm_scratch_size(&layer, plan->max_tokens, plan->threads);
    plan->backward_scratch_bytes = gmm_backward_scratch_size(&layer, plan->max_tokens, plan->threads);
    return TN_OK;
}

static tn_status gmm_call(const tn_call *call, tn_error *err)
{
    product_kernels kernels;
    product_kernels_init(&kernels, (tn_dtype)call->site->meaning[TN_AXIS_DTYPE], call->plan->user[0]);
    gmm_layer layer = site_gmm(&kernels, call->site);
    return gmm_forward(&layer, &call->in[0], &call->in[1], &call->out[0], call->plan->max_tokens, call->plan->threads,
                       call->scratch, call->site->path, err);
}

static tn_status gmm_call_back(const tn_call *call, tn_error *err)
{
    product_kernels kernels;
    product_kernels_init(&kernels, (tn_dtype)call->site->meaning[TN_AXIS_DTYPE], call->plan->user[0]);
    gmm_layer layer = site_gmm(&kernels, call->site);
    return gmm_backward(&layer, &call->in[0], &call->in[1], &call->grads->out[0], &call->grads->in[0],
                        &call->grads->param[TN_ROLE_WEIGHT], call->plan->max_tokens, call->plan->threads, call->scratch,
                        call->site->path, err);
}

/* What fits the tables of scratch; the last one where experts are grouped. */
static const tn_dim_rule dims[] = {
    {.dim = TN_DIM_EXPERTS, .max = 65536}, {.dim = TN_DIM_TOP_K, .max = 256}, {.dim = TN_DIM_GROUPS, .max = 256}};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define TAKES_DTYPES (TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16))
#define TAKES_ACTS                                                                                                     \
    (TN_TAKES(TN_ACT_SILU) | TN_TAKES(TN_ACT_GELU_TANH) | TN_TAKES(TN_ACT_GELU) | TN_TAKES(TN_ACT_CLAMPED_SWIGLU))
#define TAKES_EXPERTS (TAKES_LAYOUTS | TN_TAKES(TN_LAYOUT_PAIRS_IO))
#define TAKES_SCORES                                                                                                   \
    (TN_TAKES(TN_SCORE_SOFTMAX) | TN_TAKES(TN_SCORE_SIGMOID) | TN_TAKES(TN_SCORE_TOPK_SOFTMAX) |                       \
     TN_TAKES(TN_SCORE_TOPK_SIGMOID))
#define TAKES_LAYOUTS                                                                                                  \
    (TN_TAKES(TN_LAYOUT_EXPERT_LIST) | TN_TAKES(TN_LAYOUT_STACKED_OI) | TN_TAKES(TN_LAYOUT_STACKED_IO))
#define ROUTE_FEATURES                                                                                                 \
    (TN_HAS_RENORM | TN_HAS_CORRECTION_BIAS | TN_HAS_GROUPS | TN_HAS_ROUTE_SCALE | TN_HAS_EXPERT_SCALE |               \
     TN_HAS_F32_ROUTING | TN_HAS_F32_ROUTER)

/* README.md derives the tolerances. */
#define IMPL(number)                                                                                                   \
    .size = sizeof(tn_impl), .op = (number), .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 8, .ulps_f16 = 8},            \
    .traits = TN_SAME_BITS
#define ROUTED_IMPL(number)                                                                                            \
    IMPL(number), .plan = moe_plan, .gradient_tolerance = {.ulps_f32 = 1024, .ulps_bf16 = 64, .ulps_f16 = 128}

static const tn_impl impls[] = {
    {ROUTED_IMPL(TN_OP_MOE_BLOCK),
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = TAKES_DTYPES,
                         [TN_AXIS_ACT] = TAKES_ACTS,
                         [TN_AXIS_SCORE] = TAKES_SCORES,
                         [TN_AXIS_LAYOUT] = TAKES_EXPERTS},
               .features =
                   ROUTE_FEATURES | TN_HAS_BIAS | TN_HAS_INPUT_SCALE | TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_GATE,
               .dims = dims,
               .dim_count = COUNT(dims)},
     .forward = moe_call, .backward = moe_call_back},
    {ROUTED_IMPL(TN_OP_MOE_EXPERTS),
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = TAKES_DTYPES, [TN_AXIS_ACT] = TAKES_ACTS, [TN_AXIS_LAYOUT] = TAKES_EXPERTS},
               .features = TN_HAS_BIAS | TN_HAS_INPUT_SCALE | TN_HAS_F32_ROUTING,
               .dims = dims,
               .dim_count = COUNT(dims) - 1},
     .forward = moe_call, .backward = moe_call_back},
    {ROUTED_IMPL(TN_OP_MOE_ROUTE),
     .match =
         {.size = sizeof(tn_match),
          .takes = {[TN_AXIS_DTYPE] = TAKES_DTYPES, [TN_AXIS_WEIGHT] = TAKES_DTYPES, [TN_AXIS_SCORE] = TAKES_SCORES},
          .features = ROUTE_FEATURES,
          .dims = dims,
          .dim_count = COUNT(dims)},
     .forward = route_call, .backward = route_call_back},
    {IMPL(TN_OP_GROUPED_MATMUL),
     .match =
         {.size = sizeof(tn_match),
          .takes = {[TN_AXIS_DTYPE] = TAKES_DTYPES, [TN_AXIS_LAYOUT] = TAKES_LAYOUTS | TN_TAKES(TN_LAYOUT_LIST_IO)}},
     .plan = gmm_plan, .forward = gmm_call, .backward = gmm_call_back},
};

static const tn_kernel kernels[] = {
    {
        .size = sizeof(tn_kernel),
        .id = "npu_fused_moe",
        .version = "1.0.0",
        .summary = "mixture of experts: tokens grouped by expert, all experts in one parallel section",
        .device = "cpu",
        .impls = impls,
        .impl_count = COUNT(impls),
    },
    {
        .size = sizeof(tn_kernel),
        .id = "npu_fused_moe",
        .version = "1.0.0",
        .summary = "mixture of experts by sorting tokens, aclnnGroupedMatmul and aclnnSwiGlu",
        .device = "npu",
        .impls = moe_ascend_impls,
        .impl_count = MOE_ASCEND_IMPLS,
    },
};

TN_PLUGIN("npu_moe", "1.0.0", .kernels = kernels, .kernel_count = COUNT(kernels));
