/* Inside core: whether implementations take a site. */
#ifndef TENON_CORE_ASK_H
#define TENON_CORE_ASK_H

#include "select/plan.h"

/* Does an implementation take a shape? Its plan() runs in a child first. */
tn_status plan_ask(plan *p, tn_error *err);

/* What is chosen is asked once more at every site that it is new to, in a child again. Who then declines, fails or asks
 * for other sizes than at the example of the shape is barred from the site and another is chosen: *changed. Costs
 * little where nothing changed since. */
tn_status plan_settle(plan *p, bool *changed, tn_error *err);

/* Asks what is chosen in this process: the plan of what is bound. An error where that is not what the child answered.
 */
tn_status plan_bind(const plan *p, size_t site, graph_binding *bound, tn_error *err);

#endif
