/* Calling what plugins brought. A full look at the process costs some ten microseconds, so it is taken at the first
 * calls of an implementation, then at ever fewer of them, and around each step of a session; what a step shows without
 * telling whose it is makes every call looked at from then on. */
#include "run/guest.h"

#include "base/notices.h"
#include "base/text.h"
#include "device/openmp.h"
#include "device/tasks.h"
#include "device/visit.h"
#include "device/watch.h"
#include "op/op.h"
#include "run/planning.h"

#include <stdatomic.h>
#include <string.h>

enum { COUNTERS = 256, WHAT = 256, NAMES = 256 };

static struct {
    atomic_uint calls[COUNTERS];  /* of the implementations, by their address                         */
    atomic_int threads[COUNTERS]; /* likewise: guest_threads                                         */
    atomic_bool closely;          /* every call is looked at                                          */
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

static size_t place_of(const tn_impl *impl)
{
    return (uintptr_t)impl / sizeof *impl % COUNTERS;
}

/* The step of a session that this thread is in, until its first guest is called. */
static _Thread_local guest_watch *unlooked;

void guest_watch_look(guest_watch *w)
{
    unlooked = NULL;
    w->looked = true;
    hoststate_again(w->before);
}

/* Calls number 1, 2, 4, 8, ... of an implementation; all of them once something was seen. */
static bool is_due(const tn_impl *impl)
{
    if (every || atomic_load_explicit(&guests.closely, memory_order_relaxed))
        return true;
    if (!impl)
        return false;
    unsigned number = atomic_fetch_add_explicit(&guests.calls[place_of(impl)], 1, memory_order_relaxed) + 1;
    return (number & (number - 1)) == 0;
}

/* Threads that are not the host's; 0: not known. */
static size_t strangers(void)
{
    int32_t team = threads_hired();
    size_t all = team < 0 ? 0 : tasks_count();
    return all > (size_t)team ? all - (size_t)team : 0;
}

/* Those that are more than before, and remain when OpenMP's are at rest, are the implementation's. Looked at only where
 * the whole process is. */
static void note_threads(const tn_impl *impl, size_t before)
{
    if (strangers() <= before)
        return;
    openmp_rest();
    int32_t team = threads_hired();
    if (team >= 0 && tasks_left(before + (size_t)team) > 0)
        atomic_store(&guests.threads[place_of(impl)], GUEST_KEEPS);
}

guest_threads guest_threads_of(const tn_impl *impl, bool hung)
{
    int keeps = GUEST_KEEPS;
    if (hung)
        atomic_compare_exchange_strong(&guests.threads[place_of(impl)], &keeps, GUEST_HUNG);
    return (guest_threads)atomic_load(&guests.threads[place_of(impl)]);
}

static visit begin(const device *device, const graph_binding *bound, const char *where)
{
    return bound ? visit_begin(bound->id ? bound->id : "a kernel", bound->file, where)
                 : visit_begin(device->ops->name, NULL, where);
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
    bool foreign = bound || device->guest;
    if (unlooked && bound)
        guest_watch_look(unlooked);
    watch_look l = watch_before(foreign && is_due(bound ? bound->impl : NULL));
    visit outer = foreign ? begin(device, bound, what) : (visit){0};
    size_t threads = bound && l.state ? strangers() : 0;
    tn_status status = step(call, &why);
    if (foreign)
        visit_end(outer, &why);
    if (threads > 0)
        note_threads(bound->impl, threads);
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
    visit outer = begin(NULL, bound, "plan");
    tn_status status = planning_ask(bound->impl, site, plan, &why);
    visit_end(outer, &why);
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
    visit outer = begin(NULL, bound, "pack");
    tn_status status = bound->impl->pack(site, &bound->plan, packed, queue, &why);
    visit_end(outer, &why);
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
    *w = (guest_watch){device, graph, takes_part(device, graph) ? hoststate_save() : NULL, false};
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
    w->looked = false;
    unlooked = w->before ? w : NULL;
    if (w->before && w->device->guest) /* whose copies come before its operations                          */
        guest_watch_look(w);
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
    unlooked = NULL;
    if (!w->looked)
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
