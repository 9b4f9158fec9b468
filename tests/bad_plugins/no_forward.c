/* An impl that cannot be called. */
#include "honest.h"

static const tn_impl impls[] = {HONEST_IMPL(NULL)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_no_forward", impls)};

TN_PLUGIN("no_forward", "1.0.0", .kernels = kernels, .kernel_count = 1);
