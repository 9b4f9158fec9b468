/* Inside core: the logits of a run's routers, beside what these choose by them. */
#ifndef TENON_CORE_ROUTER_H
#define TENON_CORE_ROUTER_H

#include "run/steps.h"

/* Those of a MOE_BLOCK or MOE_ROUTE that is given x [T,A]: [T,E] in the type of the router's weight. On a tape they are
 * a call of their own, through which a gradient of them goes to that weight and to x. */
tn_tensor router_logits(graph_run *r, const tn_site *site, const tn_tensor *x);

#endif
