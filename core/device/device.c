/* An opened device: what a tn_device may leave out is filled in here. */
#include "device/device.h"

#include "base/notices.h"
#include "device/visit.h"
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

/* One call of a device's function. What a plugin's changes of the process is put back. */
typedef struct calling {
    const device *device;
    const char *what;
    visit outer;
    watch_look look;
} calling;

static calling before(const device *d, const char *what, bool whole)
{
    calling c = {.device = d, .what = what};
    if (!d->guest)
        return c;
    c.look = watch_before(whole);
    c.outer = visit_begin(d->ops->name, NULL, what);
    return c;
}

static void after(const calling *c, tn_error *err)
{
    char changed[256];
    if (!c->device->guest)
        return;
    visit_end(c->outer, err);
    if (watch_after(&c->look, changed, sizeof changed))
        notices_add("device %s changed the %s in %s; it was put back", c->device->ops->name, changed, c->what);
}

static tn_status open_unit(device *d, tn_error *why)
{
    calling c = before(d, "open", true);
    tn_status status = d->ops->open(d->ordinal, &d->queue, why);
    after(&c, why);
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
        calling c = before(d, "close", true);
        d->ops->close(d->queue);
        after(&c, NULL);
    }
    *d = (device){0};
}

tn_status device_sync(const device *d, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (!d->ops->sync)
        return TN_OK;
    calling c = before(d, "sync", true);
    tn_status status = d->ops->sync(d->queue, &why);
    after(&c, &why);
    return answer(d, "waiting for it", status, &why, err);
}

tn_status device_supports(const device *d, const tn_site *site, tn_error *err)
{
    if (!d->ops->supports)
        return TN_OK;
    calling c = before(d, "supports", true);
    tn_status status = d->ops->supports(site, err);
    after(&c, err);
    return status;
}

tn_status device_alloc(const device *d, size_t bytes, void **out, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    calling c = before(d, "alloc", true);
    tn_status status = d->ops->alloc(d->queue, bytes, out, &why);
    after(&c, &why);
    return answer(d, "allocating", status, &why, err);
}

void device_free(const device *d, void *memory, size_t bytes)
{
    if (!memory)
        return;
    calling c = before(d, "free", true);
    d->ops->free(d->queue, memory, bytes);
    after(&c, NULL);
}

tn_status device_upload(const device *d, void *to, const void *host, size_t bytes, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    calling c = before(d, "upload", true);
    tn_status status = d->ops->upload(d->queue, to, host, bytes, &why);
    after(&c, &why);
    return answer(d, "copying to it", status, &why, err);
}

tn_status device_download(const device *d, void *host, const void *from, size_t bytes, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    calling c = before(d, "download", true);
    tn_status status = d->ops->download(d->queue, host, from, bytes, &why);
    after(&c, &why);
    return answer(d, "copying from it", status, &why, err);
}

size_t device_scratch(const device *d, const tn_call *call)
{
    if (!d->ops->scratch)
        return 0;
    calling c = before(d, "scratch", false); /* as often as operations                                    */
    size_t bytes = d->ops->scratch(call);
    after(&c, NULL);
    return bytes;
}

size_t device_backward_scratch(const device *d, const tn_call *call)
{
    if (!d->ops->backward_scratch)
        return 0;
    calling c = before(d, "backward_scratch", false); /* as often as operations                                    */
    size_t bytes = d->ops->backward_scratch(call);
    after(&c, NULL);
    return bytes;
}
