/* modeling_glm4v_moe: Glm4vMoeForConditionalGeneration. GLM-4-MoE with a vision tower; half of each head rotates, in
 * three stretches, one for each axis. Frames of videos are image tokens between marks. */
#include "models/multimodal.h"

static const decoder_classes classes = {.scope = "modeling_glm4v_moe",
                                        .model = "Glm4vMoeTextModel",
                                        .layer = "Glm4vMoeTextDecoderLayer",
                                        .attention = "Glm4vMoeTextAttention",
                                        .mlp = "Glm4vMoeTextMLP",
                                        .norm = "Glm4vMoeTextRMSNorm",
                                        .rotary = "Glm4vMoeTextRotaryEmbedding"};

static const moe_parts_names names = {.block_class = "Glm4vMoeTextMoE",
                                      .router_class = "Glm4vMoeTextTopkRouter",
                                      .experts_class = "Glm4vMoeTextExperts",
                                      .router = "gate",
                                      .experts = "experts",
                                      .gate = "gate_proj",
                                      .up = "up_proj",
                                      .down = "down_proj",
                                      .all_gate_up = "gate_up_proj",
                                      .all_down = "down_proj",
                                      .correction = "e_score_correction_bias",
                                      .shared = "shared_experts",
                                      .shared_class = "Glm4vMoeTextMLP"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (i < config_i64(config, "first_k_dense_replace", 1, 0, INT32_MAX))
        layer->moe.experts = 0;
}

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .partial = 0.5, .kv_heads = 8, .differ = differ};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = config_bool(config, "attention_bias", true);
    s.layer.moe = decoder_experts_of(config, &s, &names, "n_routed_experts", 128, "num_experts_per_tok", 8);
    s.layer.moe.inter = config_i64(config, "moe_intermediate_size", 1408, 1, 1 << 20);
    s.layer.moe.shared_inter = s.layer.moe.inter * config_i64(config, "n_shared_experts", 1, 0, 1 << 10);
    decoder_sigmoid_groups(config, &s.layer.moe, 1, 1, 1.0);
    return multimodal_text(b, config, &s, place);
}

static const multimodal_spec spec = {
    .model_class = "Glm4vMoeModel",
    .vision = &vision_glm4v_moe,
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_id", [MULTIMODAL_VIDEO] = "video_token_id"},
    .token = {[MULTIMODAL_IMAGE] = 151363, [MULTIMODAL_VIDEO] = 151364},
    .text_ties = true,
    .one_picture_token = true,
    .sections = {8, 12, 12},
    .rules = {.split_frames = true, .image_interval = 1, .video_interval = 1},
    .text = text};

static void *build(graph_builder *b, const config_reader *config)
{
    return multimodal_build(b, config, &spec);
}

const model_arch glm4v_moe_arch = {"glm4v_moe", "Glm4vMoeForConditionalGeneration", build, &multimodal_flow};
