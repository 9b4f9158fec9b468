/* Inside core/call: one call of a site, from tensors that a program hands over. */
#ifndef TENON_CORE_SITE_H
#define TENON_CORE_SITE_H

#include "open/model.h"

/* The site of that path and operation that something performs; NULL: TN_E_USAGE with why not. */
const graph_site *site_find(const tn_model *model, const char *path, tn_op op, tn_error *err);

/* A call of the site, whose tensors can be; op_check_call has not been asked. grads are checked where they are given.
 */
tn_status site_fill_call(tn_call *call, const tn_site *site, const tn_tensor *in, int32_t in_count,
                         const tn_tensor *out, int32_t out_count, tn_error *err);
tn_status site_fill_grads(tn_call *call, tn_grads *own, const tn_grads *grads, tn_error *err);

/* What is applied, with a plan for calls of at most so many tokens: fewer than a session's, or more. */
tn_status site_plan(const graph_binding *applied, const tn_site *site, int64_t tokens, graph_binding *bound,
                    tn_error *err);

#endif
