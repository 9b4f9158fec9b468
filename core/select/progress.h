/* Inside core: how many checks there will be. */
#ifndef TENON_CORE_PROGRESS_H
#define TENON_CORE_PROGRESS_H

#include "select/plan.h"

/* Counts what plan_check and plan_measure will check, unless something fails; only once, and only where
 * somebody wants to be told. */
void plan_count_checks(plan *p);

#endif
