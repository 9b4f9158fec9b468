/* modeling_qwen2_5_vl: Qwen2_5_VLForConditionalGeneration. As Qwen2-VL; the tower has windows, and videos count time in
 * seconds. */
#include "models/qwen2_vl.h"

static const decoder_classes classes = {.scope = "modeling_qwen2_5_vl",
                                        .model = "Qwen2_5_VLTextModel",
                                        .layer = "Qwen2_5_VLDecoderLayer",
                                        .attention = "Qwen2_5_VLAttention",
                                        .mlp = "Qwen2MLP",
                                        .norm = "Qwen2_5_VLRMSNorm",
                                        .rotary = "Qwen2_5_VLRotaryEmbedding"};

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    return qwen2_vl_text(b, config, &classes, place);
}

static const multimodal_spec spec = {.model_class = "Qwen2_5_VLModel",
                                     .vision = &vision_qwen2_5_vl,
                                     QWEN2_VL_SPEC,
                                     .rules = {.image_interval = 1},
                                     .text = text};

const model_arch qwen2_5_vl_arch = {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", NULL, &spec};
