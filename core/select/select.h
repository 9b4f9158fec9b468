/* Inside core: selecting, from what is asked for to a plan that may be applied. */
#ifndef TENON_CORE_SELECT_H
#define TENON_CORE_SELECT_H

#include "select/plan.h"

/* Finds the candidates, asks each implementation about each shape and chooses. Close with plan_close in any case. */
tn_status select_plan(plan *p, apply_target *target, const tn_config *config, const plan_request *request,
                      tn_error *err);

/* Checks, asks and measures what is chosen, and chooses again, until it is all of that. Whatever is not the plan's
 * fault is told in its notes. */
tn_status select_settle(plan *p, tn_error *err);

#endif
