/* Inside core/select: the checks of a first use that earlier runs have made. */
#ifndef TENON_CORE_CHECK_CACHE_H
#define TENON_CORE_CHECK_CACHE_H

#include "select/plan.h"

/* What a check of this implementation at a site of this shape of these weights is kept under, with everything that took
 * part. Owned: free(). NULL: it cannot be said, so nothing is kept. */
char *check_cache_key(const plan *p, size_t candidate, const plan_fit *fit, size_t site);

/* It passed: what was remembered beside that. Owned: free(). NULL: it has not been checked. */
char *check_cache_recall(const char *key);
void check_cache_remember(const char *key, const char *more);

#endif
