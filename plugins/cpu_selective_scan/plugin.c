/* cpu_selective_scan: which scans it takes. */
#include "selective_scan.h"

/* plan->user[0]: the instruction sets of the processor. */
static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    plan->user[0] = tn_cpu_flags();
    plan->scratch_bytes = selective_scan_scratch_size(site, plan->threads);
    return TN_OK;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    (void)err;
    selective_scan_forward(call, call->plan->user[0]);
    return TN_OK;
}

enum { FLOATS = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16) };

/* README.md derives the tolerances. */
static const tn_impl impls[] = {{.size = sizeof(tn_impl),
                                 .op = TN_OP_SELECTIVE_SCAN,
                                 .match = {.size = sizeof(tn_match),
                                           .takes = {[TN_AXIS_DTYPE] = FLOATS, [TN_AXIS_WEIGHT] = FLOATS},
                                           .features = TN_HAS_STEP_LIMITS | TN_HAS_F32_RESULT},
                                 .tolerance = {.ulps_f32 = 1024, .ulps_bf16 = 8, .ulps_f16 = 8},
                                 .traits = TN_SAME_BITS,
                                 .plan = plan,
                                 .forward = forward}};

static const tn_kernel kernels[] = {{
    .size = sizeof(tn_kernel),
    .id = "cpu_selective_scan",
    .version = "1.0.0",
    .summary = "the scan of Mamba-2: states in registers from token to token",
    .device = "cpu",
    .impls = impls,
    .impl_count = sizeof impls / sizeof *impls,
}};

TN_PLUGIN("cpu_selective_scan", "1.0.0", .kernels = kernels, .kernel_count = 1);
