/* modeling_qwen2_vl: Qwen2VLForConditionalGeneration. Qwen2 with a vision tower; rotary frequencies in three stretches,
 * one for each axis. Videos count frames. */
#include "models/qwen2_vl.h"

static const decoder_classes classes = {.scope = "modeling_qwen2_vl",
                                        .model = "Qwen2VLTextModel",
                                        .layer = "Qwen2VLDecoderLayer",
                                        .attention = "Qwen2VLAttention",
                                        .mlp = "Qwen2MLP",
                                        .norm = "Qwen2VLRMSNorm",
                                        .rotary = "Qwen2VLRotaryEmbedding"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    int64_t first = config_i64(config, "max_window_layers", 80, 0, INT32_MAX);
    if (layer->attention.window && !decoder_slides(config, i, i >= first))
        layer->attention.window = 0;
}

void *qwen2_vl_text(graph_builder *b, const config_reader *config, const decoder_classes *its,
                    const multimodal_place *place)
{
    decoder_spec s = {
        .classes = its, .norm.eps = 1e-5, .theta = 1e6, .kv_heads = 8, .ignore_head_dim = true, .differ = differ};
    decoder_read(config, &s);
    s.layer.attention.window = decoder_window_in_use(config);
    s.layer.attention.qkv_bias = true;
    return multimodal_text(b, config, &s, place);
}

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    return qwen2_vl_text(b, config, &classes, place);
}

const build_alias qwen2_vl_aliases[] = {{"model.visual.", "visual."}, {"model.language_model.", "model."}, {0}};

static const multimodal_spec spec = {.model_class = "Qwen2VLModel",
                                     .vision = &vision_qwen2_vl,
                                     QWEN2_VL_SPEC,
                                     .rules = {.image_interval = 1, .video_interval = 1},
                                     .text = text};

const model_arch qwen2_vl_arch = {"qwen2_vl", "Qwen2VLForConditionalGeneration", NULL, &spec};
