/* Inside core: who would take a site, and who comes first. One rule for the sites of models and for single operations.
 */
#ifndef TENON_CORE_RANK_H
#define TENON_CORE_RANK_H

#include "plugin/registry.h"

/* Does the implementation declare that it takes the site (training: with gradients)? TN_DECLINED with a reason if not.
 */
tn_status rank_declared(const tn_site *site, const tn_impl *impl, bool training, char *reason, size_t size);

/* Below 0: a comes before b where both take a site: by the larger priority, then by file name, then by id. */
int rank_compare(const registry_kernel *a, const registry_kernel *b);

/* Why loser has not got a site that winner has. */
void rank_reason(const registry_kernel *winner, const registry_kernel *loser, char *reason, size_t size);

#endif
