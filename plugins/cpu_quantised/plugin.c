/* cpu_quantised: which linear layers with quantised weights it takes. */
#define TN_ABI_NEEDED 4 /* TN_ROUNDS_INPUTS */
#include "linear.h"

/* plan->user[0]: the instruction sets that scratch was sized for. */
static tn_status layer_of(linear_layer *layer, const tn_site *site, const tn_plan *plan, tn_error *err)
{
    const tn_param *bias = &site->param[TN_ROLE_BIAS];
    *layer = (linear_layer){.weight.bias = bias->count == 1 ? bias->tensors->data : NULL,
                            .in = site->dim[TN_DIM_HIDDEN],
                            .out = site->dim[TN_DIM_OUT],
                            .max_tokens = plan->max_tokens,
                            .threads = plan->threads,
                            .terms = (int32_t)plan->user[1]};
    product_kernels_init(&layer->kernels, (tn_dtype)site->meaning[TN_AXIS_DTYPE], plan->user[0]);
    codes_kernels_init(&layer->unpacks, plan->user[0]);
    return codes_open(&layer->codes, site, TN_ROLE_WEIGHT, 0, err);
}

/* plan->user[1]: the terms that few tokens are rounded to. */
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
    return plan_linear(site, plan, 2, err);
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

enum { DTYPES = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16) };

/* Errors are told by a row's largest element: of fewer all may have cancelled. */
static const tn_dim_rule dims[] = {{.dim = TN_DIM_HIDDEN, .multiple = CODES_GROUP}, {.dim = TN_DIM_OUT, .min = 4}};

#define MATCH(dtypes, weights)                                                                                         \
    {                                                                                                                  \
        .size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = (dtypes), [TN_AXIS_WEIGHT] = (weights)},                 \
        .features = TN_HAS_BIAS | TN_HAS_SCALES | TN_HAS_ZERO_POINTS, .dims = dims,                                    \
        .dim_count = sizeof dims / sizeof *dims                                                                        \
    }

/* README.md derives the tolerances. The first that takes a site has it. */
static const tn_impl impls[] = {
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_LINEAR,
        .match = MATCH(TN_TAKES(TN_BF16) | TN_TAKES(TN_F16), INTS_DTYPES & ~INTS_FINE_DTYPES),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 8, .ulps_f16 = 64},
        .plan = plan_rounded,
        .forward = linear_call,
        .traits = TN_ROUNDS_INPUTS,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_LINEAR,
        .match = MATCH(TN_TAKES(TN_BF16) | TN_TAKES(TN_F16), INTS_FINE_DTYPES),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 3, .ulps_f16 = 3},
        .plan = plan_fine,
        .forward = linear_call,
    },
    {
        .size = sizeof(tn_impl),
        .op = TN_OP_LINEAR,
        .match = MATCH(DTYPES, CODES_DTYPES),
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 3, .ulps_f16 = 3},
        .plan = plan_exact,
        .forward = linear_call,
        .traits = TN_SAME_BITS,
    },
};

static const tn_kernel kernels[] = {{
    .size = sizeof(tn_kernel),
    .id = "cpu_quantised",
    .version = "1.0.0",
    .summary = "linear layers on quantised weights as they lie",
    .device = "cpu",
    .impls = impls,
    .impl_count = sizeof(impls) / sizeof(impls[0]),
}};

TN_PLUGIN("cpu_quantised", "1.0.0", .kernels = kernels, .kernel_count = 1);
