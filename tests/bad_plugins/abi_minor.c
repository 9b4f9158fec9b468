/* Needs a minor version that is to come. */
#define TN_ABI_NEEDED 99
#include "honest.h"

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_abi_minor", impls)};

TN_PLUGIN("abi_minor", "1.0.0", .kernels = kernels, .kernel_count = 1);
