/* modeling_glm4_moe: Glm4MoeForCausalLM. Experts chosen by sigmoid scores and a correction bias, in f32, with a shared
 * MLP beside them in all but the first layers; half of each head is rotated. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_glm4_moe",
                                        .model = "Glm4MoeModel",
                                        .layer = "Glm4MoeDecoderLayer",
                                        .attention = "Glm4MoeAttention",
                                        .mlp = "Glm4MoeMLP",
                                        .norm = "Glm4MoeRMSNorm",
                                        .rotary = "Glm4MoeRotaryEmbedding"};

static const moe_parts_names names = {.block_class = "Glm4MoeMoE",
                                      .router_class = "Glm4MoeTopkRouter",
                                      .experts_class = "Glm4MoeExperts",
                                      .router = "gate",
                                      .experts = "experts",
                                      .gate = "gate_proj",
                                      .up = "up_proj",
                                      .down = "down_proj",
                                      .all_gate_up = "gate_up_proj",
                                      .all_down = "down_proj",
                                      .correction = "e_score_correction_bias",
                                      .shared = "shared_experts",
                                      .shared_class = "Glm4MoeMLP"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (i < config_i64(config, "first_k_dense_replace", 1, 0, INT32_MAX))
        layer->moe.experts = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .partial = 0.5, .kv_heads = 8, .differ = differ};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = config_bool(config, "use_qk_norm", false) ? &s.norm : NULL;
    s.layer.moe = decoder_experts_of(config, &s, &names, "n_routed_experts", 128, "num_experts_per_tok", 8);
    s.layer.moe.inter = config_i64(config, "moe_intermediate_size", 1408, 1, 1 << 20);
    s.layer.moe.shared_inter = s.layer.moe.inter * config_i64(config, "n_shared_experts", 1, 0, 1 << 10);
    decoder_sigmoid_groups(config, &s.layer.moe, 1, 1, 1.0);
    return decoder_build(b, config, &s);
}

const model_arch glm4_moe_arch = {"glm4_moe", "Glm4MoeForCausalLM", build, &decoder_flow};
