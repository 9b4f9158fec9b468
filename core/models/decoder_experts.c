/* What decoders with experts have in common in their config.json. */
#include "models/decoder.h"

/* Bounds that no real model comes near. */
enum { MAX_EXPERTS = 1 << 16, MAX_TOP_K = 1 << 10 };

moe_parts_spec decoder_experts(const config_reader *c, const decoder_spec *s, const moe_parts_names *names,
                               int64_t experts, int64_t top_k)
{
    return decoder_experts_of(c, s, names, "num_experts", experts, "num_experts_per_tok", top_k);
}

moe_parts_spec decoder_experts_of(const config_reader *c, const decoder_spec *s, const moe_parts_names *names,
                                  const char *experts_key, int64_t experts, const char *top_k_key, int64_t top_k)
{
    moe_parts_spec moe = {.names = names, .hidden = s->hidden, .inter = s->layer.mlp.inter, .act = s->layer.mlp.act};
    const char *key = config_has(c, experts_key)     ? experts_key
                      : config_has(c, "num_experts") ? "num_experts"
                                                     : "num_local_experts";
    const char *top = config_has(c, top_k_key) ? top_k_key : "num_experts_per_tok";
    moe.experts_key = key;
    moe.experts = config_i64(c, key, experts, s->classes->mlp ? 0 : 1, MAX_EXPERTS);
    moe.top_k = config_i64(c, top, top_k, 1, MAX_TOP_K);
    if (moe.experts > 0 && moe.top_k > moe.experts)
        config_fail(c, top, "is %lld, %s only %lld", (long long)moe.top_k, key, (long long)moe.experts);
    return moe;
}

void decoder_sparse(const config_reader *c, int64_t i, decoder_layer_spec *layer)
{
    int64_t step = config_i64(c, "decoder_sparse_step", 1, 1, INT32_MAX);
    if ((i + 1) % step != 0 || config_list_holds(c, "mlp_only_layers", i))
        layer->moe.experts = 0;
}

void decoder_sigmoid_groups(const config_reader *c, moe_parts_spec *moe, int64_t groups, int64_t top_groups,
                            double scale)
{
    moe->score = TN_SCORE_SIGMOID;
    moe->route_features =
        TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING | (config_bool(c, "norm_topk_prob", true) ? TN_HAS_RENORM : 0);
    moe->f32_correction = true;
    moe->scale = config_f64(c, "routed_scaling_factor", scale);
    decoder_groups(c, moe, groups, top_groups);
}

void decoder_groups(const config_reader *c, moe_parts_spec *moe, int64_t groups, int64_t top_groups)
{
    moe->groups = config_i64(c, "n_group", groups, 1, MAX_EXPERTS);
    moe->top_groups = config_i64(c, "topk_group", top_groups, 1, MAX_EXPERTS);
    int64_t size = moe->experts / moe->groups;
    if (moe->experts % moe->groups)
        config_fail(c, "n_group", "is %lld, which does not divide %lld experts", (long long)moe->groups,
                    (long long)moe->experts);
    else if (moe->top_groups > moe->groups)
        config_fail(c, "topk_group", "is %lld, n_group only %lld", (long long)moe->top_groups, (long long)moe->groups);
    else if (moe->top_k > moe->top_groups * size)
        config_fail(c, "topk_group", "is %lld, too few for %lld experts per token", (long long)moe->top_groups,
                    (long long)moe->top_k);
}
