/* The table of eager operations. */
#include "eager/eager.h"

const eager_op *eager_find(tn_op op)
{
    static const eager_op *const table[] = {
        &eager_rms_norm,
        &eager_add_rms_norm,
        &eager_layer_norm,
        &eager_rope,
        &eager_moe_route,
        &eager_moe_experts,
        &eager_linear,
        &eager_grouped_matmul,
        &eager_attention,
        &eager_embedding,
        &eager_add,
        &eager_glu,
        &eager_cache_append,
        &eager_softcap,
        &eager_act,
        &eager_scale,
        &eager_clamp,
        &eager_copy,
        &eager_row_scale,
        &eager_short_conv,
        &eager_gated_delta_rule,
        &eager_selective_scan,
        &eager_stream_mix,
        &eager_stream_add,
        &eager_stream_mean,
        &eager_rms_match,
        &eager_embedding_bag,
        &eager_choose_keys,
        &eager_depthwise,
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i]->op == op)
            return table[i];
    return NULL;
}
