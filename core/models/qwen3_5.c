/* modeling_qwen3_5: Qwen3_5ForConditionalGeneration. The text model of qwen3_5_text with a vision tower; rotary
 * frequencies take turns among the axes. */
#include "models/multimodal.h"
#include "models/qwen3_5_text.h"

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {0};
    delta_net_spec delta;
    qwen3_5_text_read(config, &s, &delta);
    return multimodal_text(b, config, &s, place);
}

static const multimodal_spec spec = {
    .model_class = "Qwen3_5Model",
    .vision = &vision_qwen3_5,
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_id", [MULTIMODAL_VIDEO] = "video_token_id"},
    .token = {[MULTIMODAL_IMAGE] = 248056, [MULTIMODAL_VIDEO] = 248057},
    .interleaved = true,
    .sections = {11, 11, 10},
    .rules = {.split_frames = true, .image_interval = 1, .video_interval = 1},
    .text = text};

const model_arch qwen3_5_arch = {"qwen3_5", "Qwen3_5ForConditionalGeneration", NULL, &spec};
