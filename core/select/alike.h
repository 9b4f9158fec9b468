/* Inside core: distinct shapes of sites: what is asked once and checked once. */
#ifndef TENON_CORE_ALIKE_H
#define TENON_CORE_ALIKE_H

#include "select/plan.h"

/* Sites of one shape are those that no kernel can tell apart but by their path and the values of their weights. */

/* A site of the same shape as that one with other weights, or NULL. */
const tn_site *plan_other_weights(const apply_target *target, size_t site);

tn_status plan_find_shapes(plan *p, tn_error *err);
bool plan_same_shape(const tn_site *a, const tn_site *b);

/* Equal for sites of one shape. */
uint64_t plan_shape_hash(const tn_site *site);

/* Of one shape: do they hold the same weights, in the same memory or (host_memory: it may be read) the same bytes?
 * Weights that differ do so early, so this is cheap. */
bool plan_same_weights(const tn_site *a, const tn_site *b, bool host_memory);

#endif
