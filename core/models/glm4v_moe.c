/* modeling_glm4v_moe: Glm4vMoeForConditionalGeneration. GLM-4-MoE with a vision tower; half of each head rotates, in
 * three stretches, one for each axis. Frames of videos are image tokens between marks. */
#include "models/multimodal.h"
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("glm4v_moe", "Glm4vMoeText")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Glm4vMoeText", "MoE", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "Glm4vMoeText"),
                                      .correction = "e_score_correction_bias"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    routed_first_dense(config, i, 1, layer);
}

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .partial = 0.5, .kv_heads = 8, .differ = differ};
    moe_parts_spec experts = {.names = &names,
                              .experts = 128,
                              .top_k = 8,
                              .inter = 1408,
                              .shared_inter = 1,
                              .scale = 1,
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = config_bool(config, "attention_bias", true);
    routed_sigmoid(config, &s, &experts);
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

const model_arch glm4v_moe_arch = {"glm4v_moe", "Glm4vMoeForConditionalGeneration", NULL, &spec};
