/* A kernel without a name. */
#include "honest.h"

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("", impls)};

TN_PLUGIN("empty_id", "1.0.0", .kernels = kernels, .kernel_count = 1);
