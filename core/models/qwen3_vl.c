/* modeling_qwen3_vl: Qwen3VLForConditionalGeneration. Qwen3 with a vision tower, features of whose layers are added
 * behind the first layers of the text model; rotary frequencies take turns among the axes. */
#include "models/multimodal.h"

static const decoder_classes classes = {DECODER_CLASSES("qwen3_vl", "Qwen3VLText")};

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {.classes = &classes, .head_dim = 128, .kv_heads = 32, .theta = 5e5};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    return multimodal_text(b, config, &s, place);
}

static const multimodal_spec spec = {
    .model_class = "Qwen3VLModel",
    .vision = &vision_qwen3_vl,
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_id", [MULTIMODAL_VIDEO] = "video_token_id"},
    .token = {[MULTIMODAL_IMAGE] = 151655, [MULTIMODAL_VIDEO] = 151656},
    .deep = true,
    .interleaved = true,
    .sections = {24, 20, 20},
    .rules = {.split_frames = true, .image_interval = 1, .video_interval = 1},
    .text = text};

const model_arch qwen3_vl_arch = {"qwen3_vl", "Qwen3VLForConditionalGeneration", NULL, &spec};
