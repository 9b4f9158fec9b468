/* The implementations of npu_fused_moe on an Ascend device. */
#ifndef MOE_ASCEND_H
#define MOE_ASCEND_H

#include "ascend_ops.h"

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
void moe_ascend_product(ascend_ops *o, tn_tensor x, const tn_param *weights, bool turned, tn_tensor counts,
                        tn_tensor y);
/* y [E,M,N] = the sum over each group's rows of a^T b; a [S,M], b [S,N], dense. */
void moe_ascend_outer(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor counts, tn_tensor y);

/* x [T,H] to sorted [T k,H] by experts [T,k] i32; places [T k] i32: where the row of each slot went. All dense. */
void moe_ascend_permute(ascend_ops *o, tn_tensor x, tn_tensor experts, tn_tensor sorted, tn_tensor places);
void moe_ascend_permute_grad(ascend_ops *o, tn_tensor dsorted, tn_tensor places, int64_t top_k, tn_tensor dx);
/* y [T,H]: the sum of a token's rows times its weights [T,k], in f32, one rounding. */
void moe_ascend_unpermute(ascend_ops *o, tn_tensor sorted, tn_tensor places, tn_tensor weights, tn_tensor y);
void moe_ascend_unpermute_grad(ascend_ops *o, tn_tensor sorted, tn_tensor dy, tn_tensor places, tn_tensor weights,
                               tn_tensor dsorted, tn_tensor dweights);
/* counts [E] i64 of the values of ids [T,k] i32, dense. */
void moe_ascend_count(ascend_ops *o, tn_tensor ids, tn_tensor counts);
/* The k largest of each row, falling, and their i64 indices. */
void moe_ascend_top_k(ascend_ops *o, tn_tensor x, tn_tensor values, tn_tensor indices);

#endif
