/* An RMS norm in float32 that is right, but for the fault that BAD_KERNEL names: `tenon check` must find each
 * (tests/verify/test_verify_plugin.c), and check_kernels those that show at its shapes
 * (tests/check_kernels/test_check_kernels.sh).
 */
#include "bad_norm.h"

static const tn_kernel kernels[] = {
    {.size = sizeof(tn_kernel),
     .id = "npu_fused_rmsnorm",
     .version = "1.0.0",
     .summary = "RMS norm with a fault",
     .device = "cpu",
     .impls = norm_impls,
     .impl_count = 1},
};

TN_PLUGIN("bad_kernel", "1.0.0", .kernels = kernels, .kernel_count = 1);
