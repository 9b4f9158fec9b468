/* What sites must fulfil beyond their shapes, for the table of operations. */
#include "op/rules.h"

#include "op/op.h"

/* What the activation needs beyond its name. */
tn_status rules_act(const tn_site *site, tn_error *err)
{
    bool up_down = site->op == TN_OP_MLP && site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_DOWN;
    if (site->meaning[TN_AXIS_ACT] == TN_ACT_XIELU && !up_down)
        return tn_fail(err, TN_E_USAGE, site->path, "act: xielu is that of an MLP without a gate");
    if (site->meaning[TN_AXIS_ACT] == TN_ACT_PRELU && site->op != TN_OP_MLP)
        return tn_fail(err, TN_E_USAGE, site->path, "act: prelu is that of an MLP");
    if (site->meaning[TN_AXIS_ACT] == TN_ACT_CLAMPED_SWIGLU && !(site->num[TN_NUM_LIMIT] > 0))
        return tn_fail(err, TN_E_USAGE, site->path, "limit: is %g, %s needs a positive one", site->num[TN_NUM_LIMIT],
                       tn_axis_value_name(TN_AXIS_ACT, TN_ACT_CLAMPED_SWIGLU));
    return TN_OK;
}

tn_status rules_routed(const tn_site *site, tn_error *err)
{
    int64_t experts = site->dim[TN_DIM_EXPERTS], k = site->dim[TN_DIM_TOP_K];
    if (k > experts)
        return tn_fail(err, TN_E_USAGE, site->path, "top_k: %lld of %lld experts", (long long)k, (long long)experts);
    bool both = site->param[TN_ROLE_A_OF(TN_ROLE_GATE_UP)].count > 0;
    if (both && (site->param[TN_ROLE_A_OF(TN_ROLE_GATE)].count > 0 || site->param[TN_ROLE_A_OF(TN_ROLE_UP)].count > 0))
        return tn_fail(err, TN_E_USAGE, site->path, "a_of_gate_up: stands in place of those of gate and of up");
    return rules_act(site, err);
}

tn_status rules_router(const tn_site *site, tn_error *err)
{
    int64_t experts = site->dim[TN_DIM_EXPERTS], k = site->dim[TN_DIM_TOP_K];
    int64_t groups = site->dim[TN_DIM_GROUPS], top = site->dim[TN_DIM_TOP_GROUPS];
    tn_status status = rules_routed(site, err);
    if (status == TN_OK && site->num[TN_NUM_EPS] < 0)
        return tn_fail(err, TN_E_USAGE, site->path, "eps: is %g, must not be negative", site->num[TN_NUM_EPS]);
    const uint64_t without =
        TN_HAS_RENORM | TN_HAS_CORRECTION_BIAS | TN_HAS_GROUPS | TN_HAS_GROUP_PAIRS | TN_HAS_EXPERT_SCALE;
    bool sparse = site->meaning[TN_AXIS_SCORE] == TN_SCORE_SPARSEMIXER;
    if (status == TN_OK && sparse && (site->features & without))
        return tn_fail(err, TN_E_USAGE, site->path,
                       "score: sparsemixer has no correction bias, groups, factors of experts or common sum");
    if (status == TN_OK && sparse && !(site->num[TN_NUM_MARGIN] > 0))
        return tn_fail(err, TN_E_USAGE, site->path, "margin: is %g, sparsemixer needs a positive one",
                       site->num[TN_NUM_MARGIN]);
    if (status != TN_OK || !(site->features & TN_HAS_GROUPS))
        return status;
    if (groups < 1 || experts % groups)
        return tn_fail(err, TN_E_USAGE, site->path, "groups: %lld do not divide %lld experts", (long long)groups,
                       (long long)experts);
    if (top < 1 || top > groups)
        return tn_fail(err, TN_E_USAGE, site->path, "top_groups: %lld of %lld groups", (long long)top,
                       (long long)groups);
    if (k > top * (experts / groups))
        return tn_fail(err, TN_E_USAGE, site->path, "top_k: %lld, of %lld experts in the best groups", (long long)k,
                       (long long)top * (experts / groups));
    return TN_OK;
}

tn_status rules_norm(const tn_site *site, tn_error *err)
{
    if (site->num[TN_NUM_EPS] < 0)
        return tn_fail(err, TN_E_USAGE, site->path, "eps: is %g, must not be negative", site->num[TN_NUM_EPS]);
    /* The gate would have to be an input of the sum. */
    if (site->op == TN_OP_ADD_RMS_NORM && op_norm_is_gated(site->meaning[TN_AXIS_NORM]))
        return tn_fail(err, TN_E_USAGE, site->path, "norm: a sum has no gated norm");
    int64_t groups = site->dim[TN_DIM_GROUPS];
    if ((site->features & TN_HAS_GROUPS) && (groups < 1 || site->dim[TN_DIM_WIDTH] % groups))
        return tn_fail(err, TN_E_USAGE, site->path, "groups: %lld do not divide a row of %lld", (long long)groups,
                       (long long)site->dim[TN_DIM_WIDTH]);
    return TN_OK;
}

/* Sparsity is of gates. */
tn_status rules_mlp(const tn_site *site, tn_error *err)
{
    if (site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_DOWN && (site->features & TN_HAS_SPARSITY))
        return tn_fail(err, TN_E_USAGE, site->path, "sparsity: an MLP of layout up_down has no gate");
    return rules_act(site, err);
}

tn_status rules_rope(const tn_site *site, tn_error *err)
{
    int64_t head = site->dim[TN_DIM_HEAD], rotary = site->dim[TN_DIM_ROTARY] ? site->dim[TN_DIM_ROTARY] : head;
    if (rotary < 2 || rotary > head || rotary % 2)
        return tn_fail(err, TN_E_USAGE, site->path, "rotary: %lld of a head of %lld, which must be an even number",
                       (long long)rotary, (long long)head);
    return TN_OK;
}

tn_status rules_attention(const tn_site *site, tn_error *err)
{
    int64_t heads = site->dim[TN_DIM_Q_HEADS], kv_heads = site->dim[TN_DIM_KV_HEADS];
    if (heads % kv_heads)
        return tn_fail(err, TN_E_USAGE, site->path, "q_heads: %lld query heads are no multiple of %lld key heads",
                       (long long)heads, (long long)kv_heads);
    return TN_OK;
}

tn_status rules_delta(const tn_site *site, tn_error *err)
{
    int64_t qk_heads = site->dim[TN_DIM_Q_HEADS], v_heads = site->dim[TN_DIM_KV_HEADS];
    if (v_heads % qk_heads)
        return tn_fail(err, TN_E_USAGE, site->path, "kv_heads: %lld value heads are no multiple of %lld key heads",
                       (long long)v_heads, (long long)qk_heads);
    return TN_OK;
}

tn_status rules_scan(const tn_site *site, tn_error *err)
{
    int64_t groups = site->dim[TN_DIM_Q_HEADS], heads = site->dim[TN_DIM_KV_HEADS];
    double least = site->num[TN_NUM_LEAST], limit = site->num[TN_NUM_LIMIT];
    if (heads % groups)
        return tn_fail(err, TN_E_USAGE, site->path, "kv_heads: %lld heads are no multiple of %lld groups",
                       (long long)heads, (long long)groups);
    if ((site->features & TN_HAS_STEP_LIMITS) && !(least >= 0 && least <= limit))
        return tn_fail(err, TN_E_USAGE, site->path, "limit: steps lie within %g and %g", least, limit);
    return TN_OK;
}
