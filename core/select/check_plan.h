/* Inside core: checks of what a plan has chosen. */
#ifndef TENON_CORE_CHECK_PLAN_H
#define TENON_CORE_CHECK_PLAN_H

#include "select/plan.h"

/* Checks what the plan has chosen as the configuration says, and refuses what fails: another kernel or
 * eager takes the sites then, unless it was asked for by name, which is an error. */
tn_status plan_check(plan *p, tn_error *err);

/* Checks one at a site of its shape: it is trusted afterwards, or refused. An error where it was asked
 * for by name, or where the check itself could not be made. */
tn_status plan_check_fit(plan *p, size_t candidate, plan_fit *fit, size_t site, tn_error *err);

/* Are all sites checked, and anew, whatever earlier runs know? */
bool plan_checks_all(const plan *p);

/* What check_site compares with where the target's memory is not the host's: opens the CPU in memory of
 * the caller. NULL where it is, or cannot be opened; device_close it otherwise. */
const device *plan_open_cpu(const apply_target *target, device *cpu);

#endif
