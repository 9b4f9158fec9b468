/* Inside core: who would take a site, and who comes first. One rule for the sites of models and for single operations.
 */
#ifndef TENON_CORE_RANK_H
#define TENON_CORE_RANK_H

#include "check/timing.h"
#include "plugin/registry.h"

/* Does the implementation declare that it takes the site (training: with gradients)? TN_DECLINED with a reason if not.
 */
tn_status rank_declared(const tn_site *site, const tn_impl *impl, bool training, char *reason, size_t size);

/* One of those that take a site. Whatever else is to decide between two is a field here, a line in rank_decide and a
 * reason in rank_reason. */
typedef struct rank_side {
    const registry_kernel *kernel;
    size_t place;        /* in the list of those asked for by name, from 0; RANK_AUTO: it is not there    */
    timing_spread share; /* of the time without it, as measured; spreads that overlap decide nothing. 0: none was  */
} rank_side;

#define RANK_AUTO SIZE_MAX

/* What decides between two, in this order. From RANK_FILE on they tie. */
typedef enum rank_decider { RANK_PLACE, RANK_TIME, RANK_PRIORITY, RANK_FILE, RANK_ID } rank_decider;

/* order: below 0 when a comes before b. */
rank_decider rank_decide(const rank_side *a, const rank_side *b, int *order);
int rank_compare(const rank_side *a, const rank_side *b);
bool rank_is_tie(const rank_side *a, const rank_side *b);

/* Why loser has not got a site that winner has. */
void rank_reason(const rank_side *winner, const rank_side *loser, char *reason, size_t size);

#endif
