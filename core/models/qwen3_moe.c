/* modeling_qwen3_moe: Qwen3MoeForCausalLM. Qwen3 with softmax-routed experts in all layers but those that the file
 * excepts. */
#include "models/decoder.h"

static const decoder_classes classes = {"modeling_qwen3_moe",     "Qwen3MoeModel", "Qwen3MoeDecoderLayer",
                                        "Qwen3MoeAttention",      "Qwen3MoeMLP",   "Qwen3MoeRMSNorm",
                                        "Qwen3MoeRotaryEmbedding"};

typedef struct moe_layers {
    const config_node *config;
    int64_t experts, top_k, inter, sparse_step;
    bool renorm;
} moe_layers;

/* Sparse layers: not in mlp_only_layers, and every decoder_sparse_step-th. */
static bool is_sparse(graph_builder *b, const moe_layers *moe, int64_t layer)
{
    int64_t count = config_list(moe->config, "mlp_only_layers");
    for (int64_t i = 0; i < count && b->status == TN_OK; i++) {
        int64_t dense = -1;
        b->status = config_list_i64(moe->config, "mlp_only_layers", i, &dense, b->err);
        if (dense == layer)
            return false;
    }
    return moe->experts > 0 && (layer + 1) % moe->sparse_step == 0;
}

static graph_site *build_layer_mlp(graph_builder *b, graph_module *layer_module, const decoder_spec *s, int64_t layer)
{
    const moe_layers *moe = s->extra;
    if (!is_sparse(b, moe, layer))
        return decoder_plain_mlp(b, layer_module, s);
    build_moe_spec spec = {.name = "mlp",
                           .block_class = "Qwen3MoeSparseMoeBlock",
                           .router_class = "Qwen3MoeTopKRouter",
                           .experts_class = "Qwen3MoeExperts",
                           .hidden = s->hidden,
                           .inter = moe->inter,
                           .experts = moe->experts,
                           .top_k = moe->top_k,
                           .act = s->act,
                           .renorm = moe->renorm};
    return build_moe(b, layer_module, &spec);
}

static bool read_moe(graph_builder *b, const config_node *config, moe_layers *moe)
{
    *moe = (moe_layers){.config = config, .experts = 128, .top_k = 8, .inter = 768, .sparse_step = 1};
    const char *experts_key = config_has(config, "num_experts") ? "num_experts" : "num_local_experts";
    b->status = config_i64(config, experts_key, 0, 1 << 16, &moe->experts, b->err);
    if (b->status == TN_OK)
        b->status = config_i64(config, "num_experts_per_tok", 1, 1 << 10, &moe->top_k, b->err);
    if (b->status == TN_OK)
        b->status = config_i64(config, "moe_intermediate_size", 1, 1 << 20, &moe->inter, b->err);
    if (b->status == TN_OK)
        b->status = config_i64(config, "decoder_sparse_step", 1, 1 << 12, &moe->sparse_step, b->err);
    if (b->status == TN_OK)
        b->status = config_bool(config, "norm_topk_prob", &moe->renorm, b->err);
    if (b->status == TN_OK && moe->experts > 0 && moe->top_k > moe->experts)
        build_fail(b, TN_E_INPUT, "config.json", "num_experts_per_tok %lld exceeds %s %lld", (long long)moe->top_k,
                   experts_key, (long long)moe->experts);
    return b->status == TN_OK;
}

static void *build(graph_builder *b, const config_node *config)
{
    decoder_spec spec;
    moe_layers moe;
    bool bias = false;
    if (!decoder_read(b, config, &classes, 0, &spec) || !decoder_read_window(b, config, &spec) ||
        !read_moe(b, config, &moe))
        return NULL;
    b->status = config_bool(config, "attention_bias", &bias, b->err);
    spec.q_bias = spec.k_bias = spec.v_bias = spec.o_bias = bias;
    spec.qk_norm = true;
    spec.mlp = build_layer_mlp;
    spec.extra = &moe;
    return decoder_build(b, config, &spec);
}

const model_arch model_qwen3_moe = {"qwen3_moe",  "Qwen3MoeForCausalLM", build,
                                    decoder_free, decoder_forward,       decoder_shape};
