/* Brings the id of good.c with other content, beside one of its own: none of both may be registered. */
#include "honest.h"

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_bystander", impls), HONEST_KERNEL("test_rms_norm", impls)};

TN_PLUGIN("duplicate_id", "2.0.0", .kernels = kernels, .kernel_count = 2);
