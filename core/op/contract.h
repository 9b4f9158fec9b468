/* Inside core: do tensors fit an operation's contract? */
#ifndef TENON_CORE_CONTRACT_H
#define TENON_CORE_CONTRACT_H

#include <tenon/kernel.h>

/* Checks number, dtype, shape and strides of in and out (not of out where call->grads is set), and of every gradient
 * with data. For tensors that come from outside; the graph's own fit. TN_E_USAGE with the tensor's name when one does
 * not. */
tn_status contract_check(const tn_call *call, tn_error *err);

/* Which outputs of the operation are optional: bit i for out[i]. */
uint32_t contract_optional(tn_op op);

/* Tokens of a call: the dimensions before the last one, or the first two where there are heads. */
int64_t contract_tokens(const tn_call *call);

#endif
