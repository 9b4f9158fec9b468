/* Inside core: telling an observer of the calls that are performed (tn_session_observe). */
#ifndef TENON_CORE_OBSERVE_H
#define TENON_CORE_OBSERVE_H

#include "graph/graph.h"

#include <tenon/session.h>

/* Looks at a call that was performed: inputs, outputs and scratch are as it left them. */
typedef tn_status run_look(void *ctx, const tn_call *call, tn_error *err);

/* Who sees the calls made with an arena. */
typedef struct run_observer {
    tn_observer *see; /* NULL: nobody                                                            */
    run_look *look;   /* the same                                                                */
    void *ctx;
} run_observer;

/* guest_step between two looks at the clock, then told to the arena's observer, which there is. */
tn_status observe_step(const arena *a, const graph_binding *bound, const tn_call *call,
                       tn_status (*step)(const tn_call *, tn_error *), tn_error *err);

#endif
