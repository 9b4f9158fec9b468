/* Built for another major version of the interface. */
#include "honest.h"

#undef TN_ABI_MAJOR
#define TN_ABI_MAJOR 99

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_abi_major", impls)};

TN_PLUGIN("abi_major", "1.0.0", .kernels = kernels, .kernel_count = 1);
