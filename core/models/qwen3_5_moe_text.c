/* modeling_qwen3_5_moe: Qwen3_5MoeForCausalLM. Qwen3.5 with routed experts and a shared one in all layers. */
#include "models/qwen3_5_text.h"

static const decoder_classes classes = {.scope = "modeling_qwen3_5_moe",
                                        .model = "Qwen3_5MoeTextModel",
                                        .layer = "Qwen3_5MoeDecoderLayer",
                                        .attention = "Qwen3_5MoeAttention",
                                        .norm = "Qwen3_5MoeRMSNorm",
                                        .rotary = "Qwen3_5MoeTextRotaryEmbedding"};

static const qwen3_5_names names = {&classes, "Qwen3_5MoeGatedDeltaNet", "Qwen3_5MoeRMSNormGated", 2};

static const moe_parts_names experts = {
    MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Qwen3_5Moe", "SparseMoeBlock", "TopKRouter"),
    MOE_PARTS_SHARED("shared_expert", "Qwen3_5Moe"), .shared_gate = "shared_expert_gate"};

void qwen3_5_moe_text_read(const config_reader *config, decoder_spec *s, delta_net_spec *delta)
{
    s->no_intermediate = true;
    qwen3_5_text_shared(config, &names, s, delta);
    s->layer.moe = decoder_experts(config, s, &experts, 256, 8);
    s->layer.moe.inter = config_i64(config, "moe_intermediate_size", 512, 1, 1 << 20);
    s->layer.moe.shared_inter = config_i64(config, "shared_expert_intermediate_size", 512, 1, 1 << 20);
    s->layer.moe.route_features = TN_HAS_RENORM;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {0};
    delta_net_spec delta;
    b->aliases = qwen3_5_text_aliases;
    qwen3_5_moe_text_read(config, &s, &delta);
    return decoder_build(b, config, &s);
}

const model_arch qwen3_5_moe_text_arch = {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", build, NULL};
