/* Inside core: does a kernel take a site? */
#ifndef TENON_CORE_MATCH_H
#define TENON_CORE_MATCH_H

#include <tenon/kernel.h>

/* Evaluates the declarative match. TN_OK: yes. TN_DECLINED: the first rule that failed, with both values, in
 * reason ("act: site has gelu_tanh, kernel takes silu"). */
tn_status match_site(const tn_site *site, const tn_impl *impl, char *reason, size_t reason_size);

/* Is the declaration complete? Used at registration. */
tn_status match_validate(const tn_impl *impl, tn_error *err);

#endif
