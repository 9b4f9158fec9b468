/* Inside core: what is or would be applied, for people. */
#ifndef TENON_CORE_REPORT_H
#define TENON_CORE_REPORT_H

#include "select/plan.h"

/* Owned: tn_report_free. */
tn_report *report_of_plan(const plan *p, tn_error *err);
tn_report *report_of_target(const apply_target *target, tn_error *err);

#endif
