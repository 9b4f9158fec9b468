/* modeling_qwen3_vl_moe: Qwen3VLMoeForConditionalGeneration. Qwen3-VL with softmax-routed experts, which files stack
 * either way round. */
#include "models/multimodal.h"

static const decoder_classes classes = {DECODER_CLASSES("qwen3_vl_moe", "Qwen3VLMoeText")};

static const moe_parts_names names = {MOE_PARTS_USUAL,
                                      MOE_PARTS_CLASSES("Qwen3VLMoeText", "SparseMoeBlock", "TopKRouter")};

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {.classes = &classes, .kv_heads = 16, .theta = 5e5, .differ = decoder_sparse};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    s.layer.moe = decoder_experts(config, &s, &names, 60, 4);
    s.layer.moe.inter = config_i64(config, "moe_intermediate_size", 1408, 1, 1 << 20);
    s.layer.moe.route_features = TN_HAS_RENORM;
    s.layer.moe.turns = true;
    return multimodal_text(b, config, &s, place);
}

static const multimodal_spec spec = {
    .model_class = "Qwen3VLMoeModel",
    .vision = &vision_qwen3_vl_moe,
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_id", [MULTIMODAL_VIDEO] = "video_token_id"},
    .token = {[MULTIMODAL_IMAGE] = 151655, [MULTIMODAL_VIDEO] = 151656},
    .deep = true,
    .interleaved = true,
    .sections = {24, 20, 20},
    .rules = {.split_frames = true, .image_interval = 1, .video_interval = 1},
    .text = text};

const model_arch qwen3_vl_moe_arch = {"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", NULL, &spec};
