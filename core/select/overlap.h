/* Inside core: who lost sites to whom. */
#ifndef TENON_CORE_OVERLAP_H
#define TENON_CORE_OVERLAP_H

#include "select/plan.h"

/* Sites that a candidate takes and another kernel has, for one reason. */
typedef struct plan_overlap {
    size_t loser;
    const registry_kernel *winner;
    size_t sites;
    bool tie;
    char reason[PLAN_TEXT]; /* at the first of them                                               */
} plan_overlap;

/* list is owned: free(). */
tn_status plan_overlaps(const plan *p, plan_overlap **list, size_t *count, tn_error *err);

#endif
