/* An opened device: what a tn_device may leave out is filled in here. */
#include "device/device.h"

#include "base/notices.h"
#include "device/hoststate.h"

#include <inttypes.h>
#include <stdio.h>

/* What a plugin's device answers when it fails: its own words, under its name, in the class of kernels. */
static tn_status answer(const device *d, const char *what, tn_status status, const tn_error *why, tn_error *err)
{
    if (status == TN_OK)
        return TN_OK;
    if (!d->guest)
        return tn_fail(err, status, why->where, "%s", why->message);
    char where[64], said[32];
    snprintf(where, sizeof where, "device %.50s", d->ops->name);
    snprintf(said, sizeof said, "it returned %d", (int)status);
    return tn_fail(err, status == TN_E_MEMORY ? TN_E_MEMORY : TN_E_KERNEL, where, "%s failed: %s", what,
                   why->message[0] ? why->message : said);
}

/* Calls of a plugin's device leave floating-point control as it was. */
static uint64_t before(const device *d)
{
    return d->guest ? hoststate_control() : 0;
}

static void after(const device *d, const char *what, uint64_t control)
{
    if (!d->guest || hoststate_control() == control)
        return;
    hoststate_set_control(control);
    notices_add("device %s changed the floating-point control in %s; it was put back", d->ops->name, what);
}

/* Rare: everything is looked at. */
static tn_status open_unit(device *d, tn_error *why)
{
    char changed[256];
    hoststate *state = hoststate_save();
    tn_status status = d->ops->open(d->ordinal, &d->queue, why);
    hoststate_restore(state, changed, sizeof changed);
    if (changed[0])
        notices_add("device %s changed the %s in open; it was put back", d->ops->name, changed);
    return status;
}

static void close_unit(const device *d)
{
    char changed[256];
    hoststate *state = hoststate_save();
    d->ops->close(d->queue);
    hoststate_restore(state, changed, sizeof changed);
    if (changed[0])
        notices_add("device %s changed the %s in close; it was put back", d->ops->name, changed);
}

tn_status device_open(device *d, const tn_device *ops, int32_t ordinal, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    *d = (device){.ops = ops, .ordinal = ordinal, .guest = d->guest};
    if (!ops->open && ordinal == 0)
        return TN_OK;
    if (!ops->open)
        tn_fail(&why, TN_E_KERNEL, NULL, "there is one unit, which has the ordinal 0");
    else if (open_unit(d, &why) == TN_OK)
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
        close_unit(d);
    *d = (device){0};
}

tn_status device_sync(const device *d, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (!d->ops->sync)
        return TN_OK;
    uint64_t control = before(d);
    tn_status status = d->ops->sync(d->queue, &why);
    after(d, "sync", control);
    return answer(d, "waiting for it", status, &why, err);
}

tn_status device_supports(const device *d, const tn_site *site, tn_error *err)
{
    return d->ops->supports ? d->ops->supports(site, err) : TN_OK;
}

tn_status device_alloc(const device *d, size_t bytes, void **out, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    uint64_t control = before(d);
    tn_status status = d->ops->alloc(d->queue, bytes, out, &why);
    after(d, "alloc", control);
    return answer(d, "allocating", status, &why, err);
}

void device_free(const device *d, void *memory, size_t bytes)
{
    if (memory)
        d->ops->free(d->queue, memory, bytes);
}

tn_status device_upload(const device *d, void *to, const void *host, size_t bytes, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    uint64_t control = before(d);
    tn_status status = d->ops->upload(d->queue, to, host, bytes, &why);
    after(d, "upload", control);
    return answer(d, "copying to it", status, &why, err);
}

tn_status device_download(const device *d, void *host, const void *from, size_t bytes, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    uint64_t control = before(d);
    tn_status status = d->ops->download(d->queue, host, from, bytes, &why);
    after(d, "download", control);
    return answer(d, "copying from it", status, &why, err);
}

size_t device_scratch(const device *d, const tn_call *call)
{
    return d->ops->scratch ? d->ops->scratch(call) : 0;
}

size_t device_backward_scratch(const device *d, const tn_call *call)
{
    return d->ops->backward_scratch ? d->ops->backward_scratch(call) : 0;
}
