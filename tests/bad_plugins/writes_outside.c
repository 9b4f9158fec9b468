/* Right numbers, and one element more than there is room for. Guard pages in checked apply catch it. */
#include "honest.h"

static tn_status outside_forward(const tn_call *call, tn_error *err)
{
    tn_status status = honest_forward(call, err);
    ((volatile float *)call->out[0].data)[tn_tensor_count(&call->out[0])] = 0;
    return status;
}

HONEST_PLUGIN("writes_outside", "test_writes_outside", outside_forward);
