/* Inside core: who has a site, of those that take it. */
#ifndef TENON_CORE_CHOOSE_H
#define TENON_CORE_CHOOSE_H

#include "select/plan.h"
#include "select/rank.h"

/* Every site anew. */
void plan_choose(plan *p);

/* Chooses again: after a fit was refused, barred from a site, timed, or no longer takes its shape (takes false, a
 * reason). All of these can only become more, up to a number, and each loop around this ends by it: to choose again
 * when nothing of the kind happened is TN_E_INTERNAL. */
tn_status plan_choose_again(plan *p, tn_error *err);

/* Would the candidate's packed weights for the site be more than may be held? */
bool plan_packs_too_much(const plan *p, size_t site, const plan_fit *fit);

/* A kernel inside the site that was asked for before this candidate: the candidate leaves the site to it. -1: none. */
int32_t plan_preferred_inside(const plan *p, size_t candidate, size_t site, size_t *inside);

/* The one that should have the site of those that take it, or -1; what encloses the site does not matter. */
int32_t plan_best(const plan *p, const graph_site *site, plan_fit **fit);

/* fit: of the candidate at the site, or NULL. */
rank_side choose_side(const plan *p, size_t candidate, const plan_fit *fit);

#endif
