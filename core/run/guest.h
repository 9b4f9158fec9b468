/* Inside core: calling what plugins brought, in this process. Whatever such a function does, the process is afterwards
 * as it was: what it changed is put back, and a notice names it. */
#ifndef TENON_CORE_GUEST_H
#define TENON_CORE_GUEST_H

#include "device/hoststate.h"
#include "graph/graph.h"

/* One call of the bound kernel, or of the device's own operations (bound NULL). Any failure of a kernel, or of a device
 * that a plugin brought, is TN_E_KERNEL with its name and what it was doing; TN_DECLINED of a device's gradients
 * remains. Floating-point control is looked at on every thread after each call, the rest after some. */
tn_status guest_step(const device *device, const graph_binding *bound, const tn_call *call,
                     tn_status (*step)(const tn_call *, tn_error *), tn_error *err);

/* Calls of this implementation left threads in this process that are not OpenMP's: a child, which has none of them, may
 * wait for them. hung: one did; what is known afterwards. */
typedef enum guest_threads { GUEST_NONE, GUEST_KEEPS, GUEST_HUNG } guest_threads;
guest_threads guest_threads_of(const tn_impl *impl, bool hung);

/* From now on everything is looked at after each call that this thread makes: for calls that do not come by thousands.
 * Returns what held before. */
bool guest_every(bool on);

/* Its plan and its pack. TN_DECLINED of plan, and TN_E_KERNEL for every other failure. The kernel has the function. */
tn_status guest_plan(const graph_binding *bound, const tn_site *site, tn_plan *plan, tn_error *err);
tn_status guest_pack(const graph_binding *bound, const tn_site *site, void *packed, tn_queue *queue, tn_error *err);

/* A step of a session: what changed during it, where it was not looked at call by call, is put back, too. The process
 * is looked at when the first guest of the step is called, so a step without any costs nothing. Nothing is allocated
 * after the first time. Close with guest_watch_close. */
typedef struct guest_watch {
    const device *device;
    const graph *graph;
    hoststate *before; /* NULL: nothing of plugins takes part                                         */
    bool looked;       /* in this step                                                                */
} guest_watch;

void guest_watch_open(guest_watch *w, const device *device, const graph *graph);
void guest_watch_begin(guest_watch *w); /* of this thread's guests, to the end; watches do not nest     */
void guest_watch_look(guest_watch *w);  /* what the first guest of the step brings about                */
void guest_watch_end(guest_watch *w);
void guest_watch_close(guest_watch *w);

#endif
