/* Gradients by eager: the device's own for primitive operations, and those of contracts that eager mode composes. */
#include "graph/run.h"

tn_status run_eager_backward(const tn_device *device, arena *a, const tn_call *call, tn_error *err)
{
    if (!device->backward)
        return tn_fail(err, TN_DECLINED, call->site->path, "device %s has no gradients", device->name);
    return run_step(a, call, device->backward_scratch ? device->backward_scratch(call) : 0, device->backward, err);
}
