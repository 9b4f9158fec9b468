/* DeepSeek's keys for experts. */
#include "models/routed.h"

enum { MAX_EXPERTS = 1 << 16, MAX_WIDTH = 1 << 20, MAX_SHARED = 1 << 10 };

static const char *experts_key(const config_reader *c)
{
    const char *const keys[] = {"n_routed_experts", "num_local_experts", "num_experts"};
    for (int i = 0; i < 3; i++)
        if (config_has(c, keys[i]))
            return keys[i];
    return keys[0];
}

static void check_groups(const config_reader *c, const moe_parts_spec *moe)
{
    if (moe->groups < 2)
        return;
    if (moe->experts % moe->groups)
        config_fail(c, "n_group", "is %lld, which does not divide %lld experts", (long long)moe->groups,
                    (long long)moe->experts);
    else if (moe->top_groups < 1 || moe->top_groups > moe->groups)
        config_fail(c, "topk_group", "is %lld of %lld groups", (long long)moe->top_groups, (long long)moe->groups);
    else if (moe->top_k > moe->top_groups * (moe->experts / moe->groups))
        config_fail(c, "num_experts_per_tok", "is %lld, topk_group's groups have %lld experts", (long long)moe->top_k,
                    (long long)moe->top_groups * (moe->experts / moe->groups));
}

void routed_read(const config_reader *c, decoder_spec *s, const moe_parts_spec *defaults)
{
    const char *top_k = config_either(c, "num_experts_per_tok", "num_experts_per_token");
    moe_parts_spec *moe = &s->layer.moe;
    *moe = *defaults;
    moe->hidden = s->hidden;
    moe->act = s->layer.mlp.act;
    moe->experts_key = experts_key(c);
    moe->experts = config_i64(c, moe->experts_key, defaults->experts, 1, MAX_EXPERTS);
    moe->top_k = defaults->top_k ? config_i64(c, top_k, defaults->top_k, 1, MAX_EXPERTS)
                                 : config_need_i64(c, top_k, 1, MAX_EXPERTS);
    moe->inter = config_i64(c, "moe_intermediate_size", defaults->inter, 1, MAX_WIDTH);
    moe->shared_inter = moe->inter * config_i64(c, config_either(c, "n_shared_experts", "num_shared_experts"),
                                                defaults->shared_inter, 0, MAX_SHARED);
    moe->scale = config_f64(c, "routed_scaling_factor", defaults->scale);
    moe->groups = config_i64(c, config_either(c, "n_group", "num_expert_group"), defaults->groups, 1, MAX_EXPERTS);
    moe->top_groups = config_i64(c, "topk_group", defaults->top_groups, 1, MAX_EXPERTS);
    if (moe->top_k > moe->experts)
        config_fail(c, top_k, "is %lld, %s only %lld", (long long)moe->top_k, moe->experts_key,
                    (long long)moe->experts);
    check_groups(c, moe);
}

void routed_sigmoid(const config_reader *c, decoder_spec *s, const moe_parts_spec *defaults)
{
    static const config_word scores[] = {{"sigmoid", TN_SCORE_SIGMOID}, {0}};
    static const config_word methods[] = {{"noaux_tc", 0}, {0}};
    moe_parts_spec all = *defaults;
    all.f32_correction = true;
    config_choice(c, "topk_method", "noaux_tc", methods);
    all.score = (tn_score)config_choice(c, "scoring_func", "sigmoid", scores);
    all.route_features |= TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING;
    if (config_bool(c, config_either(c, "norm_topk_prob", "moe_renormalize"), true))
        all.route_features |= TN_HAS_RENORM;
    routed_read(c, s, &all);
}

void routed_first_dense(const config_reader *c, int64_t i, int64_t fallback, decoder_layer_spec *layer)
{
    if (i < config_i64(c, "first_k_dense_replace", fallback, 0, INT32_MAX))
        layer->moe.experts = 0;
}

void routed_by_type(const config_reader *c, int64_t i, int64_t fallback, decoder_layer_spec *layer)
{
    static const config_word kinds[] = {{"dense", false}, {"sparse", true}, {0}};
    if (config_list(c, "mlp_layer_types") < 0)
        routed_first_dense(c, i, fallback, layer);
    else if (!config_list_choice(c, "mlp_layer_types", i, kinds))
        layer->moe.experts = 0;
}
