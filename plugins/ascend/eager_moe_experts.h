/* Inside plugins/ascend: what MOE_EXPERTS and its gradients share. */
#ifndef ASCEND_EAGER_MOE_EXPERTS_H
#define ASCEND_EAGER_MOE_EXPERTS_H

#include "eager_grouped.h"

/* A call, as both read it: x [T,H], weights and experts [T,k]; y is that of forward. Slots are a token's k choices. */
typedef struct experts_job {
    const tn_site *site;
    const tn_tensor *x, *weights, *experts, *y, *gate_up_bias, *down_bias; /* biases may be NULL   */
    tn_dtype dtype;
    tn_layout layout;
    tn_act act;
    bool list, pairs, scaled, oi; /* scaled: a slot's weight is a factor of its input; oi: as grouped_is_oi */
    int64_t tokens, hidden, inter, top_k, expert_count, slots;
} experts_job;

experts_job experts_shape(const tn_call *call);

#endif
