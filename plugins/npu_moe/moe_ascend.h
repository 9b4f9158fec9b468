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

/* ---- moe_ascend_ops.c: the operators ---------------------------------------------------------------------- */

/* The most matrices of a list, and of one tensor of three dimensions, that a grouped product takes; the largest last
 * dimension of what it multiplies. */
enum { MOE_ASCEND_LIST = 128, MOE_ASCEND_STACK = 1024, MOE_ASCEND_WIDTH = 65535 };

/* y [S,N] = x [S,K], rows sorted by group, times each group's matrix: one tensor [E,K,N], or E of [K,N]; turned: [N,K].
 * counts [E] i64 on the device. */
void moe_ascend_product(npu_run *r, tn_tensor x, const tn_param *weights, bool turned, tn_tensor counts, tn_tensor y);
/* y [E,M,N] = the sum over each group's rows of a^T b; a [S,M], b [S,N], dense. */
void moe_ascend_outer(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor counts, tn_tensor y);

/* Gradients of npu_permute: dx [T,H] from those of the rows; of npu_unpermute: of the rows and of the weights. */
void moe_ascend_permute_grad(npu_run *r, tn_tensor dsorted, tn_tensor places, int64_t top_k, tn_tensor dx);
void moe_ascend_unpermute_grad(npu_run *r, tn_tensor sorted, tn_tensor dy, tn_tensor places, tn_tensor weights,
                               tn_tensor dsorted, tn_tensor dweights);
/* counts [E] i64 of the values of ids [T,k] i32, dense. */
void moe_ascend_count(npu_run *r, tn_tensor ids, tn_tensor counts);

#endif
