/* The table of operations. */
#include "operators.h"
#include "queue.h"

static const ascend_operation *const table[] = {
    &ascend_embedding,
    &ascend_add,
    &ascend_glu,
    &ascend_act,
    &ascend_scale,
    &ascend_copy,
    &ascend_row_scale,
    &ascend_linear,
    &ascend_rms_norm,
    &ascend_rope,
    &ascend_cache_append,
    &ascend_attention,
    &ascend_moe_route,
    &ascend_moe_experts,
    &ascend_grouped_matmul,
    &ascend_layer_norm,
    &ascend_softcap,
    &ascend_embedding_bag,
    &ascend_clamp,
    &ascend_short_conv,
    &ascend_gated_delta_rule,
    &ascend_stream_mix,
    &ascend_stream_add,
    &ascend_stream_mean,
    &ascend_rms_match,
    &ascend_selective_scan,
    &ascend_choose_keys,
};

static const ascend_operation *find(tn_op op)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i]->op == op)
            return table[i];
    return NULL;
}

static bool is_small(void)
{
    return ascend_chip_of(npu_soc()) == ASCEND_310P;
}

/* Chips for inference have no bf16 and no products of f32, nothing that sorts tokens by expert, and grouped products of
 * some shapes only. */
static tn_status small_supports(const tn_site *site, tn_error *err)
{
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    if (dtype != TN_F16)
        return tn_fail(err, TN_DECLINED, "npu", "dtype: site has %s, %s takes f16; use --dtype f16",
                       tn_dtype_name(dtype), npu_soc());
    bool leans = site->op == TN_OP_ATTENTION && (site->features & TN_HAS_ALIBI);
    if (site->op == TN_OP_MOE_EXPERTS || site->op == TN_OP_GROUPED_MATMUL || site->op == TN_OP_GATED_DELTA_RULE ||
        site->op == TN_OP_SELECTIVE_SCAN || site->op == TN_OP_CHOOSE_KEYS || leans)
        return tn_fail(err, TN_DECLINED, "npu", "%s has not the operators for it", npu_soc());
    return TN_OK;
}

tn_status eager_supports(const tn_site *site, tn_error *err)
{
    /* Composed forward of what else is asked about; backward performs it as a whole. */
    const ascend_operation *operation = find(site->op == TN_OP_ADD_RMS_NORM ? TN_OP_RMS_NORM : site->op);
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    if (!operation)
        return tn_fail(err, TN_DECLINED, "npu", "%s is not there yet", tn_op_name(site->op));
    if (dtype != TN_F32 && dtype != TN_BF16 && dtype != TN_F16)
        return tn_fail(err, TN_DECLINED, "npu", "dtype: site has %s, the npu device takes f32, bf16, f16",
                       tn_dtype_name(dtype));
    tn_status status = is_small() ? small_supports(site, err) : TN_OK;
    if (status == TN_OK && operation->needs)
        status = npu_needs(operation->needs, err);
    return status == TN_OK && operation->supports ? operation->supports(site, err) : status;
}

size_t eager_scratch(const tn_call *call)
{
    const ascend_operation *operation = find(call->op);
    return operation ? npu_measure(operation->body, call) : 0;
}

static bool has_results(const tn_call *call)
{
    for (int32_t i = 0; i < call->out_count; i++)
        if (call->out[i].data && tn_tensor_count(&call->out[i]) > 0)
            return true;
    return false;
}

tn_status eager_perform(const tn_call *call, tn_error *err)
{
    const ascend_operation *operation = find(call->op);
    if (!operation)
        return tn_fail(err, TN_E_INTERNAL, "npu", "%s is not there yet; report this defect", tn_op_name(call->op));
    if (!has_results(call))
        return TN_OK;
    npu *n = npu_of(call->queue);
    for (int32_t i = 0; i < call->out_count; i++) {
        npu_shadow_drop_tensor(n, &call->out[i]);
        if (call->op != TN_OP_CACHE_APPEND)
            npu_cache_forget(n, call->out[i].data);
    }
    if (call->scratch)
        npu_shadow_drop(n, call->scratch, eager_scratch(call));
    return npu_perform(operation->body, call, err);
}
