/* Two kernels with one id. */
#include "honest.h"

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_twice", impls), HONEST_KERNEL("test_twice", impls)};

TN_PLUGIN("same_id_twice", "1.0.0", .kernels = kernels, .kernel_count = 2);
