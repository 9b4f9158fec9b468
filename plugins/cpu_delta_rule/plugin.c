/* cpu_delta_rule: which gated delta rules it takes. */
#include "delta_rule.h"

/* plan->user[0]: the instruction sets of the processor. */
static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    plan->user[0] = tn_cpu_flags();
    plan->scratch_bytes = delta_rule_scratch_size(site, plan->threads);
    plan->backward_scratch_bytes = delta_rule_backward_scratch_size(site, plan->max_tokens, plan->threads);
    return TN_OK;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    (void)err;
    delta_job job = delta_rule_job(call->site, call, call->plan->user[0]);
    delta_rule_forward(&job, &call->out[0], &call->out[1], call->scratch);
    return TN_OK;
}

static tn_status backward(const tn_call *call, tn_error *err)
{
    (void)err;
    delta_job job = delta_rule_job(call->site, call, call->plan->user[0]);
    delta_rule_backward(&job, call->grads, call->scratch);
    return TN_OK;
}

enum {
    NARROW = TN_TAKES(TN_BF16) | TN_TAKES(TN_F16),
    FLOATS = NARROW | TN_TAKES(TN_F32),
};

/* The gradients of narrow parameters are rounded by more than f32 models are allowed: those have f32 parameters.
 * README.md derives the tolerances. */
static const tn_impl impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_GATED_DELTA_RULE,
     .match = {.size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32)}},
     .tolerance = {.ulps_f32 = 1024},
     .plan = plan,
     .forward = forward,
     .backward = backward,
     .gradient_tolerance = {.ulps_f32 = 1024}},
    {.size = sizeof(tn_impl),
     .op = TN_OP_GATED_DELTA_RULE,
     .match = {.size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = NARROW, [TN_AXIS_WEIGHT] = FLOATS}},
     .tolerance = {.ulps_bf16 = 8, .ulps_f16 = 8},
     .plan = plan,
     .forward = forward,
     .backward = backward,
     .gradient_tolerance = {.ulps_bf16 = 16, .ulps_f16 = 16}},
};

static const tn_kernel kernels[] = {{
    .size = sizeof(tn_kernel),
    .id = "cpu_delta_rule",
    .version = "1.0.0",
    .summary = "gated delta rule: in chunks for prompts, one pass over the state for a token",
    .device = "cpu",
    .impls = impls,
    .impl_count = sizeof impls / sizeof *impls,
}};

TN_PLUGIN("cpu_delta_rule", "1.0.0", .kernels = kernels, .kernel_count = 1);
