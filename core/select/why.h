/* Inside core: why a candidate has not got a site. */
#ifndef TENON_CORE_WHY_H
#define TENON_CORE_WHY_H

#include "select/plan.h"

/* "" when it has. text must hold PLAN_TEXT. */
void plan_verdict(const plan *p, size_t candidate, size_t site, char *text);

/* The reason that most sites with the kernel's operations have in common why it has none. false: there are no such
 * sites, which text says. */
bool plan_reason(const plan *p, size_t candidate, char *text);
size_t plan_site_count(const plan *p, size_t candidate);

/* An error when a kernel that was asked for by name takes no site; a note where others, named before it, have them. */
tn_status plan_check_named(plan *p, tn_error *err);

/* Where the same bits in any call are asked for: TN_E_KERNEL where sums are left to the plain implementation. */
tn_status plan_check_same_bits(const plan *p, tn_error *err);

#endif
