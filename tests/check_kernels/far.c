/* Cases in the memory of a device. */
#include "far.h"

#include "device/device.h"
#include "plugin/registry.h"
#include "run/run.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static device far;
static tn_device asking; /* the device, but that it only says whether it would                        */

bool far_open(const char *text)
{
    int32_t ordinal;
    tn_error err = TN_ERROR_INIT;
    const tn_device *ops = registry_device(text, &ordinal, &err);
    if (ops && device_open(&far, ops, ordinal, registry_device_file(ops->name) != NULL, &err) == TN_OK)
        return true;
    fprintf(stderr, "check_kernels: %s: %s\n", err.where[0] ? err.where : "device", err.message);
    return false;
}

void far_close(void)
{
    device_close(&far);
}

const char *far_name(void)
{
    return far.ops->name;
}

tn_queue *far_queue(void)
{
    return far.queue;
}

tn_status far_sync(tn_error *err)
{
    return device_sync(&far, err);
}

/* ---- memory --------------------------------------------------------------------------------------------- */

/* Where an address in one of the buffers is there, or from there here. */
static void *moved(const attempt *t, void *address, bool there)
{
    for (size_t i = 0; i < t->buffer_count && address; i++) {
        const guarded *g = &t->buffers[i];
        size_t bytes;
        char *here = guarded_inner(g, &bytes), *from = there ? here : g->far, *to = there ? g->far : here;
        uintptr_t at = (uintptr_t)address - (uintptr_t)from;
        if (g->far && at <= bytes)
            return to + at;
    }
    return address;
}

static void move_tensors(const attempt *t, tn_tensor *tensors, int64_t count, bool there)
{
    for (int64_t i = 0; i < count; i++)
        tensors[i].data = moved(t, tensors[i].data, there);
}

static void move_all(attempt *t, bool there)
{
    move_tensors(t, t->call.in, TN_CALL_TENSORS, there);
    move_tensors(t, t->call.out, TN_CALL_TENSORS, there);
    move_tensors(t, t->grads.in, TN_CALL_TENSORS, there);
    move_tensors(t, t->grads.out, TN_CALL_TENSORS, there);
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        if (t->params[role])
            move_tensors(t, t->params[role], t->site.param[role].count, there);
        if (t->grad_params[role])
            move_tensors(t, t->grad_params[role], t->grads.param[role].count, there);
    }
    t->call.packed = moved(t, (void *)(uintptr_t)t->call.packed, there);
    t->call.scratch = moved(t, t->call.scratch, there);
}

tn_status far_place(attempt *t, tn_error *err)
{
    for (size_t i = 0; i < t->buffer_count; i++) {
        guarded *g = &t->buffers[i];
        size_t bytes;
        const char *from = guarded_inner(g, &bytes);
        if (g->far)
            continue;
        tn_status status = device_alloc(&far, bytes, &g->far, err);
        if (status == TN_OK)
            status = device_upload(&far, g->far, from, bytes, err);
        if (status != TN_OK)
            return status;
    }
    move_all(t, true);
    return TN_OK;
}

tn_status far_fetch(guarded *g, tn_error *err)
{
    size_t bytes;
    char *to = guarded_inner(g, &bytes);
    tn_status status = far_sync(err);
    return status == TN_OK ? device_download(&far, to, g->far, bytes, err) : status;
}

/* What is read-only here is compared. */
static tn_status fetch(guarded *g, const guarded **changed, tn_error *err)
{
    size_t bytes;
    char *to = guarded_inner(g, &bytes), *back;
    if (!g->read_only)
        return device_download(&far, to, g->far, bytes, err);
    back = malloc(bytes);
    tn_status status =
        back ? device_download(&far, back, g->far, bytes, err) : tn_fail(err, TN_E_MEMORY, NULL, "no memory");
    if (status == TN_OK && !*changed && memcmp(back, to, bytes) != 0)
        *changed = g;
    free(back);
    return status;
}

tn_status far_fetch_all(attempt *t, const guarded **changed, tn_error *err)
{
    tn_status status = far_sync(err);
    *changed = NULL;
    for (size_t i = 0; i < t->buffer_count && status == TN_OK; i++)
        if (t->buffers[i].far)
            status = fetch(&t->buffers[i], changed, err);
    move_all(t, false);
    return status;
}

void far_release(attempt *t)
{
    bool any = false;
    for (size_t i = 0; i < t->buffer_count; i++)
        any = any || t->buffers[i].far;
    if (any)
        far_sync(NULL);
    for (size_t i = 0; i < t->buffer_count; i++) {
        size_t bytes;
        guarded_inner(&t->buffers[i], &bytes);
        device_free(&far, t->buffers[i].far, bytes);
        t->buffers[i].far = NULL;
    }
}

/* ---- the device's own operations -------------------------------------------------------------------------- */

static tn_status ask(const tn_call *call, tn_error *err)
{
    if (!call->site)
        return TN_OK;
    tn_site site = *call->site;
    site.op = call->op; /* of a part, where the site is that of the whole                              */
    return device_supports(&far, &site, err);
}

/* Nobody touches the memory of a call that is only asked about. */
static tn_status pretend_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    (void)queue;
    (void)bytes;
    (void)err;
    *out = (void *)(uintptr_t)64;
    return TN_OK;
}

static void pretend_free(tn_queue *queue, void *memory, size_t bytes)
{
    (void)queue;
    (void)memory;
    (void)bytes;
}

/* Core puts composed operations together, each part of which is asked about. */
tn_status far_supports(const tn_call *call, tn_error *err)
{
    asking = *far.ops;
    asking.alloc = pretend_alloc;
    asking.free = pretend_free;
    asking.sync = NULL;
    asking.eager = ask;
    asking.backward = far.ops->backward ? ask : NULL;
    const device nobody = {.ops = &asking};
    return run_alone(&nobody, NULL, NULL, call, err);
}

tn_status far_eager(const tn_call *call, tn_error *err)
{
    return run_alone(&far, NULL, NULL, call, err);
}
