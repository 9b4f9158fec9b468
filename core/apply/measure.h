/* Inside core/apply: which of those that take a site is the fastest there? */
#ifndef TENON_CORE_MEASURE_H
#define TENON_CORE_MEASURE_H

#include "apply/plan.h"

/* Times what `auto` would choose, and what competes with it, at each shape, in turns with what would happen without it,
 * in a child process; or recalls what an earlier run measured. A kernel that is slower with one, some or many tokens
 * leaves those calls alone; one that is slower with all takes nothing. The plan chooses again. Does nothing where it is
 * turned off, and for kernels asked for by name. *changed: what is chosen now may be unchecked, and not measured yet.
 */
tn_status plan_measure(plan *p, bool *changed, tn_error *err);

/* Those that compete for the sites of one shape. */
enum { MEASURE_SITES = 4, MEASURE_FITS = 15 };

typedef struct measure_entrant {
    size_t candidate;
    uint32_t impl;
    plan_fit *fit;
} measure_entrant;

typedef struct measure_entry {
    size_t shape;
    int depth; /* an operation with parts is measured after them                                  */
    size_t site_count, fit_count;
    const graph_site *sites[MEASURE_SITES]; /* calls go round them, so that weights are not all in a cache */
    measure_entrant fits[MEASURE_FITS];
    bool known;
} measure_entry;

/* measure_child.c: times the entries that are not known, in order, and fills in their fits' times. What crashes is
 * refused; what does not end in time takes nothing. */
tn_status measure_time(plan *p, measure_entry *entries, size_t count, tn_error *err);

/* measure_cache.c: the times of an earlier run by the same library with the same plugins on this processor and as many
 * threads; nothing otherwise. The parts' entries must be settled. */
bool measure_recall(const plan *p, measure_entry *entry);
void measure_remember(const plan *p, const measure_entry *entry);

/* What the times say: where the fit is not used, and whether it takes anything. */
void measure_settle(measure_entry *entry);

#endif
