/* Inside plugins/ascend: the operations that the device performs, one entry for each, composed of the vendor's
 * operators and rounding where core/eager rounds. Intermediate results lie in call->scratch. */
#ifndef ASCEND_EAGER_H
#define ASCEND_EAGER_H

#include "npu_ops.h"

/* What an operation does, performed, or measured: gone through to add up the scratch that it takes. */
typedef void npu_body(npu_run *r);

/* needs: operators as npu_needs takes them, or NULL. supports: TN_DECLINED with a reason where the site is not
 * performed; NULL: all of the types that the device takes are. body: takes scratch from shapes alone; calls without
 * results are not performed. */
typedef struct ascend_operation {
    tn_op op;
    const char *needs;
    tn_status (*supports)(const tn_site *site, tn_error *err);
    npu_body *body;
} ascend_operation;

extern const ascend_operation ascend_embedding, ascend_add, ascend_glu, ascend_act, ascend_scale, ascend_copy,
    ascend_row_scale, ascend_linear, ascend_rms_norm, ascend_rope, ascend_cache_append, ascend_attention,
    ascend_moe_route, ascend_moe_experts, ascend_grouped_matmul, ascend_layer_norm, ascend_softcap,
    ascend_embedding_bag, ascend_clamp, ascend_short_conv, ascend_gated_delta_rule, ascend_selective_scan,
    ascend_choose_keys, ascend_stream_mix, ascend_stream_add, ascend_stream_mean, ascend_rms_match;

/* eager.c: what the device answers with. */
tn_status eager_supports(const tn_site *site, tn_error *err);
size_t eager_scratch(const tn_call *call);
tn_status eager_perform(const tn_call *call, tn_error *err);

#endif
