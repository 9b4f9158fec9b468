/* Inside core/op: what sites must fulfil beyond their shapes (op_row.check). TN_E_USAGE with what is wrong. */
#ifndef TENON_CORE_RULES_H
#define TENON_CORE_RULES_H

#include <tenon/operation.h>

tn_status rules_act(const tn_site *site, tn_error *err);
tn_status rules_routed(const tn_site *site, tn_error *err);
tn_status rules_router(const tn_site *site, tn_error *err);
tn_status rules_norm(const tn_site *site, tn_error *err);
tn_status rules_mlp(const tn_site *site, tn_error *err);
tn_status rules_rope(const tn_site *site, tn_error *err);
tn_status rules_attention(const tn_site *site, tn_error *err);
tn_status rules_delta(const tn_site *site, tn_error *err);
tn_status rules_scan(const tn_site *site, tn_error *err);

#endif
