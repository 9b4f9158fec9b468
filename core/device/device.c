/* An opened device: what a tn_device may leave out is filled in here. */
#include "device/device.h"

#include "base/notices.h"
#include "device/watch.h"

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

/* What a plugin's device changes of the process is put back. */
static watch_look before(const device *d, bool whole)
{
    return d->guest ? watch_before(whole) : (watch_look){0};
}

static void after(const device *d, const char *what, const watch_look *look)
{
    char changed[256];
    if (d->guest && watch_after(look, changed, sizeof changed))
        notices_add("device %s changed the %s in %s; it was put back", d->ops->name, changed, what);
}

static tn_status open_unit(device *d, tn_error *why)
{
    watch_look look = before(d, true);
    tn_status status = d->ops->open(d->ordinal, &d->queue, why);
    after(d, "open", &look);
    return status;
}

tn_status device_open(device *d, const tn_device *ops, int32_t ordinal, bool guest, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    *d = (device){.ops = ops, .ordinal = ordinal, .guest = guest};
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
    if (d->ops->close) {
        watch_look look = before(d, true);
        d->ops->close(d->queue);
        after(d, "close", &look);
    }
    *d = (device){0};
}

tn_status device_sync(const device *d, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (!d->ops->sync)
        return TN_OK;
    watch_look look = before(d, true);
    tn_status status = d->ops->sync(d->queue, &why);
    after(d, "sync", &look);
    return answer(d, "waiting for it", status, &why, err);
}

tn_status device_supports(const device *d, const tn_site *site, tn_error *err)
{
    if (!d->ops->supports)
        return TN_OK;
    watch_look look = before(d, true);
    tn_status status = d->ops->supports(site, err);
    after(d, "supports", &look);
    return status;
}

tn_status device_alloc(const device *d, size_t bytes, void **out, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    watch_look look = before(d, true);
    tn_status status = d->ops->alloc(d->queue, bytes, out, &why);
    after(d, "alloc", &look);
    return answer(d, "allocating", status, &why, err);
}

void device_free(const device *d, void *memory, size_t bytes)
{
    if (!memory)
        return;
    watch_look look = before(d, true);
    d->ops->free(d->queue, memory, bytes);
    after(d, "free", &look);
}

tn_status device_upload(const device *d, void *to, const void *host, size_t bytes, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    watch_look look = before(d, true);
    tn_status status = d->ops->upload(d->queue, to, host, bytes, &why);
    after(d, "upload", &look);
    return answer(d, "copying to it", status, &why, err);
}

tn_status device_download(const device *d, void *host, const void *from, size_t bytes, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    watch_look look = before(d, true);
    tn_status status = d->ops->download(d->queue, host, from, bytes, &why);
    after(d, "download", &look);
    return answer(d, "copying from it", status, &why, err);
}

size_t device_scratch(const device *d, const tn_call *call)
{
    if (!d->ops->scratch)
        return 0;
    watch_look look = before(d, false); /* as often as operations                                    */
    size_t bytes = d->ops->scratch(call);
    after(d, "scratch", &look);
    return bytes;
}

size_t device_backward_scratch(const device *d, const tn_call *call)
{
    if (!d->ops->backward_scratch)
        return 0;
    watch_look look = before(d, false); /* as often as operations                                    */
    size_t bytes = d->ops->backward_scratch(call);
    after(d, "backward_scratch", &look);
    return bytes;
}
