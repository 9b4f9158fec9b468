/* cpu_delta_rule: which gated delta rules it takes. */
#include "delta_rule.h"

/* plan->user[0]: the instruction sets of the processor. */
static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    plan->user[0] = tn_cpu_flags();
    plan->scratch_bytes = delta_rule_scratch_size(site, plan->threads);
    return TN_OK;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    (void)err;
    delta_job job = delta_rule_job(call->site, call, call->plan->user[0]);
    delta_rule_forward(&job, &call->out[0], &call->out[1], call->scratch);
    return TN_OK;
}

enum {
    FLOATS = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16),
};

/* README.md derives the tolerances. */
static const tn_impl impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_GATED_DELTA_RULE,
     .match = {.size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = FLOATS, [TN_AXIS_WEIGHT] = FLOATS}},
     .tolerance = {.ulps_f32 = 1024, .ulps_bf16 = 8, .ulps_f16 = 8},
     .plan = plan,
     .forward = forward},
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
