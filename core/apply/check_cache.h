/* Inside core/apply: the checks of a first use that earlier runs have made. */
#ifndef TENON_CORE_CHECK_CACHE_H
#define TENON_CORE_CHECK_CACHE_H

#include "apply/plan.h"

/* Did this implementation pass, at a site of this shape of these weights, with nothing changed since? */
bool check_cache_recall(const plan *p, size_t candidate, const plan_fit *fit, size_t site);
void check_cache_remember(const plan *p, size_t candidate, const plan_fit *fit, size_t site);

#endif
