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
