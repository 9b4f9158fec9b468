/* Calling what plugins brought. A full look at the process costs some ten microseconds, so it is taken at the first
 * calls of an implementation, then at ever fewer of them, and around each step of a session; what a step shows without
 * telling whose it is makes every call looked at from then on. */
#include "run/guest.h"

#include "base/notices.h"
#include "base/text.h"
#include "device/tasks.h"
#include "device/watch.h"
#include "op/op.h"

#include <stdatomic.h>
#include <string.h>

enum { COUNTERS = 256, WHAT = 256, NAMES = 256 };

static struct {
    atomic_uint calls[COUNTERS]; /* of the implementations, by their address                         */
    atomic_bool closely;         /* every call is looked at                                          */
} guests;

/* ---- names ------------------------------------------------------------------------------------------------ */

static const char *file_name(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path;
}

/* "npu_x (x.so)", "device npu" */
static void name_guest(const device *device, const graph_binding *bound, char *text, size_t size)
{
    if (bound && bound->file)
        text_cut(text, size, "%s (%s)", bound->id, file_name(bound->file));
    else if (bound)
        text_cut(text, size, "%s", bound->id ? bound->id : "a kernel");
    else
        text_cut(text, size, "device %s", device->ops->name);
}

/* ---- looking ---------------------------------------------------------------------------------------------- */

/* guest_every of this thread. */
static _Thread_local bool every;

bool guest_every(bool on)
{
    bool before = every;
    every = on;
    return before;
}

/* Calls number 1, 2, 4, 8, ... of an implementation; all of them once something was seen. */
static bool is_due(const tn_impl *impl)
{
    if (every || atomic_load_explicit(&guests.closely, memory_order_relaxed))
        return true;
    if (!impl)
        return false;
    uintptr_t at = (uintptr_t)impl / sizeof *impl;
    unsigned number = atomic_fetch_add_explicit(&guests.calls[at % COUNTERS], 1, memory_order_relaxed) + 1;
    return (number & (number - 1)) == 0;
}

static void look_after(const watch_look *look, const device *device, const graph_binding *bound, const char *where)
{
    char what[WHAT], name[NAMES];
    if (!watch_after(look, what, sizeof what))
        return;
    name_guest(device, bound, name, sizeof name);
    notices_add("%s changed the %s in %s; it was put back", name, what, where);
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

/* What a failure says of itself. */
static void explain(tn_status status, const tn_error *why, char *text, size_t size)
{
    if (why->message[0])
        text_cut(text, size, "%s", why->message);
    else
        text_cut(text, size, "it returned %d and says no more", (int)status);
}

static tn_status kernel_failed(const graph_binding *bound, const char *what, const tn_site *site, int64_t tokens,
                               tn_status status, const tn_error *why, tn_error *err)
{
    char text[sizeof why->message], count[48] = "";
    explain(status, why, text, sizeof text);
    if (tokens >= 0)
        text_cut(count, sizeof count, " with %lld token%s", (long long)tokens, tokens == 1 ? "" : "s");
    return tn_fail(err, TN_E_KERNEL, bound->id ? bound->id : "kernel", "%s failed at %s%s: %s", what, site->path, count,
                   text);
}

static tn_status device_failed(const device *device, const tn_call *call, tn_status status, const tn_error *why,
                               tn_error *err)
{
    char text[sizeof why->message], where[64];
    /* Without a guest it is our own: its words are complete. */
    if (!device->guest || (status == TN_DECLINED && call->grads))
        return tn_fail(err, status, why->where, "%s", why->message);
    explain(status, why, text, sizeof text);
    text_cut(where, sizeof where, "device %s", device->ops->name);
    return tn_fail(err, TN_E_KERNEL, where, "%s%s failed at %s: %s", tn_op_name(call->op),
                   call->grads ? " (gradients)" : "", call->site ? call->site->path : "a step between the sites", text);
}

tn_status guest_step(const device *device, const graph_binding *bound, const tn_call *call,
                     tn_status (*step)(const tn_call *, tn_error *), tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    const char *what = !bound ? tn_op_name(call->op) : call->grads ? "backward" : "forward";
    watch_look l = watch_before((bound || device->guest) && is_due(bound ? bound->impl : NULL));
    tn_status status = step(call, &why);
    look_after(&l, device, bound, what);
    if (status == TN_OK)
        return TN_OK;
    return bound ? kernel_failed(bound, what, call->site, op_tokens(call), status, &why, err)
                 : device_failed(device, call, status, &why, err);
}

tn_status guest_plan(const graph_binding *bound, const tn_site *site, tn_plan *plan, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    watch_look l = watch_before(true);
    size_t tasks = tasks_count();
    tn_status status = bound->impl->plan(site, plan, &why);
    look_after(&l, NULL, bound, "plan");
    if (tasks_left(tasks) > 0) {
        char name[NAMES];
        name_guest(NULL, bound, name, sizeof name);
        notices_add("%s left a thread behind in plan", name);
    }
    if (status == TN_OK)
        return TN_OK;
    if (status == TN_DECLINED)
        return tn_fail(err, TN_DECLINED, site->path, "%s", why.message[0] ? why.message : "it gives no reason");
    return kernel_failed(bound, "plan", site, -1, status, &why, err);
}

tn_status guest_pack(const graph_binding *bound, const tn_site *site, void *packed, tn_queue *queue, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    watch_look l = watch_before(true);
    tn_status status = bound->impl->pack(site, &bound->plan, packed, queue, &why);
    look_after(&l, NULL, bound, "pack");
    return status == TN_OK ? TN_OK : kernel_failed(bound, "pack", site, -1, status, &why, err);
}

/* ---- steps of a session ----------------------------------------------------------------------------------- */

static bool takes_part(const device *device, const graph *g)
{
    bool any = device->guest;
    for (size_t i = 0; i < g->site_count && !any; i++)
        any = g->sites[i]->bound.impl != NULL;
    return any;
}

void guest_watch_open(guest_watch *w, const device *device, const graph *graph)
{
    *w = (guest_watch){device, graph, takes_part(device, graph) ? hoststate_save() : NULL};
    if (w->before)
        hoststate_release(w->before);
}

void guest_watch_close(guest_watch *w)
{
    hoststate_free(w->before);
    w->before = NULL;
}

void guest_watch_begin(guest_watch *w)
{
    if (w->before)
        hoststate_again(w->before);
}

/* Is this the first site of its kernel? */
static bool is_first(const graph *g, size_t site)
{
    for (size_t i = 0; i < site; i++)
        if (g->sites[i]->bound.kernel == g->sites[site]->bound.kernel)
            return false;
    return true;
}

/* Everybody who took part; one of them did it. Returns how many. */
static size_t name_all(const guest_watch *w, char *text, size_t size)
{
    size_t count = 0, used = 0;
    char name[NAMES];
    for (size_t i = 0; i <= w->graph->site_count; i++) {
        bool of_site = i < w->graph->site_count;
        const graph_binding *bound = of_site ? &w->graph->sites[i]->bound : NULL;
        if (of_site ? !bound->impl || !is_first(w->graph, i) : !w->device->guest)
            continue;
        name_guest(w->device, bound, name, sizeof name);
        used += text_cut(text + used, size - used, "%s%s", count++ ? ", " : "", name);
    }
    return count;
}

void guest_watch_end(guest_watch *w)
{
    char what[WHAT], names[2 * NAMES];
    if (!w->before)
        return;
    bool differs = hoststate_differs(w->before, true, what, sizeof what);
    hoststate_release(w->before);
    if (!differs)
        return;
    size_t count = name_all(w, names, sizeof names);
    atomic_store(&guests.closely, true);
    if (count == 1 && !w->device->guest)
        notices_add("%s changed the %s in forward; it was put back", names, what);
    else
        notices_add("%s%s changed the %s; it was put back", count > 1 ? "one of " : "", names, what);
}
