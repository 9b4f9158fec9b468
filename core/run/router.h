/* Inside core: the logits of a run's routers, beside what these choose by them. */
#ifndef TENON_CORE_ROUTER_H
#define TENON_CORE_ROUTER_H

#include "run/steps.h"

/* What sees them: logits [B*T,E] of one layer, in the type of the router's weight. On a tape they are a call of their
 * own, through which a gradient of them goes to that weight and to what the layer was given. */
typedef struct run_router {
    void (*see)(struct run_router *router, graph_run *r, const tn_tensor *logits, int64_t top_k);
} run_router;

/* Shows r->router those of a MOE_BLOCK or MOE_ROUTE that is given x. */
void router_show(graph_run *r, const tn_site *site, const tn_tensor *x);

#endif
