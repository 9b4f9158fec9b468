/* An opened device: what a tn_device may leave out is filled in here. */
#include "device/device.h"

#include <inttypes.h>

tn_status device_open(device *d, const tn_device *ops, int32_t ordinal, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    *d = (device){.ops = ops, .ordinal = ordinal};
    if (!ops->open && ordinal == 0)
        return TN_OK;
    if (!ops->open)
        tn_fail(&why, TN_E_KERNEL, NULL, "there is one unit, which has the ordinal 0");
    else if (ops->open(ordinal, &d->queue, &why) == TN_OK)
        return TN_OK;
    *d = (device){0};
    return tn_fail(err, why.code == TN_E_MEMORY ? TN_E_MEMORY : TN_E_KERNEL, "device",
                   "'%s:%" PRId32 "' cannot be opened: %s", ops->name, ordinal,
                   why.message[0] ? why.message : "it gives no reason");
}

void device_close(device *d)
{
    if (!d->ops)
        return;
    device_sync(d, NULL);
    if (d->ops->close)
        d->ops->close(d->queue);
    *d = (device){0};
}

tn_status device_sync(const device *d, tn_error *err)
{
    return d->ops->sync ? d->ops->sync(d->queue, err) : TN_OK;
}

tn_status device_supports(const device *d, const tn_site *site, tn_error *err)
{
    return d->ops->supports ? d->ops->supports(site, err) : TN_OK;
}

tn_status device_alloc(const device *d, size_t bytes, void **out, tn_error *err)
{
    return d->ops->alloc(d->queue, bytes, out, err);
}

void device_free(const device *d, void *memory, size_t bytes)
{
    if (memory)
        d->ops->free(d->queue, memory, bytes);
}

tn_status device_upload(const device *d, void *to, const void *host, size_t bytes, tn_error *err)
{
    return d->ops->upload(d->queue, to, host, bytes, err);
}

tn_status device_download(const device *d, void *host, const void *from, size_t bytes, tn_error *err)
{
    return d->ops->download(d->queue, host, from, bytes, err);
}

size_t device_scratch(const device *d, const tn_call *call)
{
    return d->ops->scratch ? d->ops->scratch(call) : 0;
}

size_t device_backward_scratch(const device *d, const tn_call *call)
{
    return d->ops->backward_scratch ? d->ops->backward_scratch(call) : 0;
}
