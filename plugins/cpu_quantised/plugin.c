/* cpu_quantised: which linear layers and experts with quantised weights it takes. */
#define TN_ABI_NEEDED 4 /* TN_ROUNDS_INPUTS */
#include "experts.h"
#include "linear.h"

#define ROUGH_DTYPES (INTS_DTYPES & ~INTS_FINE_DTYPES)

enum { MANY_INTS = 4 };

/* AMX multiplies bf16 as fast as others integers. */
static bool has_tiles(const tn_site *site)
{
    return product_choose((tn_dtype)site->meaning[TN_AXIS_DTYPE], 1, tn_cpu_flags()).variant->processor &
           TN_CPU_AMX_BF16;
}

/* Of many tokens two terms take as long as their products in floating point do, or longer. */
static bool two_are_slow(const tn_site *site)
{
    return has_tiles(site) || !(tn_cpu_flags() & (TN_CPU_AVX512_VNNI | TN_CPU_AVX_VNNI));
}

static const char by_tiles[] = "many tokens go by AMX's tiles of bf16 here",
                  by_integers[] = "many tokens go by products of integers here";

/* plan->user[0]: the instruction sets that scratch was sized for. */
static tn_status layer_of(linear_layer *layer, const tn_site *site, const tn_plan *plan, tn_error *err)
{
    const tn_param *bias = &site->param[TN_ROLE_BIAS];
    *layer = (linear_layer){.weight.bias = bias->count == 1 ? bias->tensors->data : NULL,
                            .in = site->dim[TN_DIM_HIDDEN],
                            .out = site->dim[TN_DIM_OUT],
                            .max_tokens = plan->max_tokens,
                            .threads = plan->threads,
                            .terms = (int32_t)plan->user[1] & 3,
                            .many_ints = plan->user[1] & MANY_INTS};
    product_kernels_init(&layer->kernels, (tn_dtype)site->meaning[TN_AXIS_DTYPE], plan->user[0]);
    codes_kernels_init(&layer->unpacks, plan->user[0]);
    return codes_open(&layer->codes, site, TN_ROLE_WEIGHT, 0, err);
}

/* plan->user[1]: the terms that few tokens are rounded to, with MANY_INTS where many are. */
static tn_status plan_linear(const tn_site *site, tn_plan *plan, int terms, tn_error *err)
{
    linear_layer layer;
    plan->user[0] = tn_cpu_flags();
    plan->user[1] = (uint64_t)terms;
    tn_status status = layer_of(&layer, site, plan, err);
    if (status == TN_OK)
        plan->scratch_bytes = linear_scratch_size(&layer);
    return status;
}

static tn_status plan_exact(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return plan_linear(site, plan, 0, err);
}

static tn_status plan_fine(const tn_site *site, tn_plan *plan, tn_error *err)
{
    if (!two_are_slow(site))
        return tn_fail(err, TN_DECLINED, site->path, by_integers);
    return plan_linear(site, plan, 2, err);
}

static tn_status plan_fine_same(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return plan_linear(site, plan, 2 | MANY_INTS, err);
}

static tn_status plan_same(const tn_site *site, tn_plan *plan, tn_error *err)
{
    if (has_tiles(site))
        return tn_fail(err, TN_DECLINED, site->path, by_tiles);
    return plan_linear(site, plan, 1 | MANY_INTS, err);
}

static tn_status plan_rounded(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return plan_linear(site, plan, 1, err);
}

static tn_status linear_call(const tn_call *call, tn_error *err)
{
    linear_layer layer;
    tn_status status = layer_of(&layer, call->site, call->plan, err);
    if (status == TN_OK)
        linear_forward(&layer, &call->in[0], &call->out[0], call->scratch);
    return status;
}

/* ---- experts --------------------------------------------------------------------------------------------- */

static experts_layer experts_of(const tn_site *site, const tn_plan *plan)
{
    experts_layer layer;
    experts_open(&layer, site, plan->user[0], (int32_t)plan->user[1] & 3, plan->user[1] & MANY_INTS);
    return layer;
}

/* plan->user[1]: the terms that activations are rounded to, with MANY_INTS where those of many tokens are. */
static tn_status plan_experts(const tn_site *site, tn_plan *plan, uint64_t how, uint64_t dtypes, tn_error *err)
{
    plan->user[0] = tn_cpu_flags();
    plan->user[1] = how;
    const experts_layer layer = experts_of(site, plan);
    tn_status status = experts_check(&layer, dtypes, err);
    if (status == TN_OK)
        plan->scratch_bytes = experts_scratch_size(&layer, plan->max_tokens, plan->threads);
    return status;
}

static tn_status plan_experts_same(const tn_site *site, tn_plan *plan, tn_error *err)
{
    if (has_tiles(site))
        return tn_fail(err, TN_DECLINED, site->path, by_tiles);
    return plan_experts(site, plan, 1 | MANY_INTS, ROUGH_DTYPES, err);
}

static tn_status plan_experts_rounded(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return plan_experts(site, plan, 1, ROUGH_DTYPES, err);
}

static tn_status plan_experts_strips(const tn_site *site, tn_plan *plan, tn_error *err)
{
    if (!two_are_slow(site))
        return tn_fail(err, TN_DECLINED, site->path, by_integers);
    return plan_experts(site, plan, 2, INTS_DTYPES, err);
}

static tn_status plan_experts_fine(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return plan_experts(site, plan, 2 | MANY_INTS, INTS_DTYPES, err);
}

static tn_status experts_call(const tn_call *call, tn_error *err)
{
    const experts_layer layer = experts_of(call->site, call->plan);
    return experts_forward(&layer, call, err);
}

/* ---- what is taken --------------------------------------------------------------------------------------- */

enum { DTYPES = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16) };

/* Errors are told by a row's largest element: of fewer all may have cancelled. */
static const tn_dim_rule dims[] = {{.dim = TN_DIM_HIDDEN, .multiple = CODES_GROUP}, {.dim = TN_DIM_OUT, .min = 4}},
                         rounded_dims[] = {{.dim = TN_DIM_HIDDEN, .multiple = CODES_GROUP},
                                           {.dim = TN_DIM_OUT, .min = 32}};

#define MATCH(dtypes, weights, rules)                                                                                  \
    {                                                                                                                  \
        .size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = (dtypes), [TN_AXIS_WEIGHT] = (weights)},                 \
        .features = TN_HAS_BIAS | TN_HAS_SCALES | TN_HAS_ZERO_POINTS, .dims = (rules), .dim_count = 2                  \
    }

static const tn_dim_rule expert_dims[] = {{.dim = TN_DIM_HIDDEN, .multiple = CODES_GROUP},
                                          {.dim = TN_DIM_INTER, .multiple = CODES_GROUP},
                                          {.dim = TN_DIM_TOP_K, .max = 256}},
                         /* What is large in a row coarsens its own group, and a gate may cut it off. */
    rounded_expert_dims[] = {{.dim = TN_DIM_HIDDEN, .min = 256, .multiple = CODES_GROUP},
                             {.dim = TN_DIM_INTER, .min = 256, .multiple = CODES_GROUP},
                             {.dim = TN_DIM_TOP_K, .max = 256}};

#define GATED (TN_TAKES(TN_ACT_SILU) | TN_TAKES(TN_ACT_GELU_TANH) | TN_TAKES(TN_ACT_GELU))

#define EXPERTS_MATCH(weights, acts, rules)                                                                            \
    {                                                                                                                  \
        .size = sizeof(tn_match),                                                                                      \
        .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_BF16) | TN_TAKES(TN_F16),                                              \
                  [TN_AXIS_WEIGHT] = (weights),                                                                        \
                  [TN_AXIS_ACT] = (acts),                                                                              \
                  [TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_EXPERT_LIST)},                                                 \
        .features = TN_HAS_BIAS | TN_HAS_SCALES | TN_HAS_ZERO_POINTS | TN_HAS_MIXED | TN_HAS_F32_ROUTING,              \
        .dims = (rules), .dim_count = 3                                                                                \
    }

/* README.md derives the tolerances. The first that takes a site has it. */
static const tn_impl impls[] = {
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_LINEAR,
        .match = MATCH(TN_TAKES(TN_BF16) | TN_TAKES(TN_F16), ROUGH_DTYPES, rounded_dims),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 8, .ulps_f16 = 64},
        .plan = plan_same,
        .forward = linear_call,
        .traits = TN_ROUNDS_INPUTS | TN_SAME_BITS,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_LINEAR,
        .match = MATCH(TN_TAKES(TN_BF16) | TN_TAKES(TN_F16), ROUGH_DTYPES, rounded_dims),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 8, .ulps_f16 = 64},
        .plan = plan_rounded,
        .forward = linear_call,
        .traits = TN_ROUNDS_INPUTS,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_LINEAR,
        .match = MATCH(TN_TAKES(TN_BF16) | TN_TAKES(TN_F16), INTS_DTYPES, dims),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 6, .ulps_f16 = 6},
        .plan = plan_fine,
        .forward = linear_call,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_LINEAR,
        .match = MATCH(TN_TAKES(TN_BF16) | TN_TAKES(TN_F16), INTS_DTYPES, dims),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 6, .ulps_f16 = 6},
        .plan = plan_fine_same,
        .forward = linear_call,
        .traits = TN_SAME_BITS,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_LINEAR,
        .match = MATCH(DTYPES, CODES_DTYPES, dims),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 3, .ulps_f16 = 3},
        .plan = plan_exact,
        .forward = linear_call,
        .traits = TN_SAME_BITS,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_MOE_EXPERTS,
        .match = EXPERTS_MATCH(ROUGH_DTYPES, GATED, rounded_expert_dims),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 12, .ulps_f16 = 96},
        .plan = plan_experts_same,
        .forward = experts_call,
        .traits = TN_ROUNDS_INPUTS | TN_SAME_BITS,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_MOE_EXPERTS,
        .match = EXPERTS_MATCH(ROUGH_DTYPES, GATED, rounded_expert_dims),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 12, .ulps_f16 = 96},
        .plan = plan_experts_rounded,
        .forward = experts_call,
        .traits = TN_ROUNDS_INPUTS,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_MOE_EXPERTS,
        .match = EXPERTS_MATCH(INTS_DTYPES, GATED | TN_TAKES(TN_ACT_CLAMPED_SWIGLU), expert_dims),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 8, .ulps_f16 = 8},
        .plan = plan_experts_strips,
        .forward = experts_call,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_MOE_EXPERTS,
        .match = EXPERTS_MATCH(INTS_DTYPES, GATED | TN_TAKES(TN_ACT_CLAMPED_SWIGLU), expert_dims),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 8, .ulps_f16 = 8},
        .plan = plan_experts_fine,
        .forward = experts_call,
        .traits = TN_SAME_BITS,
    },
};

static const tn_kernel kernels[] = {{
    .size = sizeof(tn_kernel),
    .id = "cpu_quantised",
    .version = "1.0.0",
    .summary = "linear layers and experts on quantised weights as they lie",
    .device = "cpu",
    .impls = impls,
    .impl_count = sizeof(impls) / sizeof(impls[0]),
}};

TN_PLUGIN("cpu_quantised", "1.0.0", .kernels = kernels, .kernel_count = 1);
