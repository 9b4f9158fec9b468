/* Right, and linked with dependency.so. Tests edit where it looks for that: its run path is long enough to hold others.
 */
#include "honest.h"

int test_dependency(void);

static tn_status available(tn_error *err)
{
    return test_dependency() == 1 ? TN_OK : tn_fail(err, TN_DECLINED, NULL, "another library than the tests' own");
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {{.size = sizeof(tn_kernel),
                                     .id = "test_needs_library",
                                     .version = "1.0.0",
                                     .summary = "RMS norm",
                                     .device = "cpu",
                                     .available = available,
                                     .impls = impls,
                                     .impl_count = 1}};

TN_PLUGIN("needs_library", "1.0.0", .kernels = kernels, .kernel_count = 1);
