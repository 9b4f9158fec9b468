/* Nothing is wrong with this one. */
#include "honest.h"

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_rms_norm", impls)};

TN_PLUGIN("good", "1.0.0", .kernels = kernels, .kernel_count = 1);
