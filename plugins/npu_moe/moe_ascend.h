/* The implementations of npu_fused_moe on an Ascend device. */
#ifndef MOE_ASCEND_H
#define MOE_ASCEND_H

#include "npu_ops.h"

#include <tenon/kernel.h>

enum { MOE_ASCEND_IMPLS = 6 };
extern const tn_impl moe_ascend_impls[MOE_ASCEND_IMPLS];

/* ---- sites ------------------------------------------------------------------------------------------------ */

static inline tn_dtype moe_ascend_dtype(const tn_site *site)
{
    return (tn_dtype)site->meaning[TN_AXIS_DTYPE];
}

static inline bool moe_ascend_is_list(const tn_site *site)
{
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    return layout == TN_LAYOUT_EXPERT_LIST || layout == TN_LAYOUT_LIST_IO;
}

/* Rows of the weights are outputs. */
static inline bool moe_ascend_is_turned(const tn_site *site)
{
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    return layout == TN_LAYOUT_EXPERT_LIST || layout == TN_LAYOUT_STACKED_OI;
}

/* ---- moe_ascend_plan.c: what is declined, and scratch ------------------------------------------------------ */

tn_status moe_ascend_block_plan(const tn_site *site, tn_plan *plan, tn_error *err);
tn_status moe_ascend_experts_plan(const tn_site *site, tn_plan *plan, tn_error *err);
tn_status moe_ascend_route_plan(const tn_site *site, tn_plan *plan, tn_error *err);
tn_status moe_ascend_product_plan(const tn_site *site, tn_plan *plan, tn_error *err);

#endif
