/* Right numbers, and one element more than there is room for. Guard pages in checked apply catch it. */
#include "honest.h"

static tn_status outside_forward(const tn_call *call, tn_error *err)
{
    tn_status status = honest_forward(call, err);
    ((volatile float *)call->out[0].data)[tn_tensor_count(&call->out[0])] = 0;
    return status;
}

static const tn_impl impls[] = {HONEST_IMPL(outside_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_writes_outside", impls)};

TN_PLUGIN("writes_outside", "1.0.0", .kernels = kernels, .kernel_count = 1);
