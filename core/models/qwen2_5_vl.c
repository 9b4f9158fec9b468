/* modeling_qwen2_5_vl: Qwen2_5_VLForConditionalGeneration. Qwen2 with a vision tower; rotary frequencies in three
 * stretches, one for each axis. Videos count time in seconds. */
#include "models/multimodal.h"

static const decoder_classes classes = {.scope = "modeling_qwen2_5_vl",
                                        .model = "Qwen2_5_VLTextModel",
                                        .layer = "Qwen2_5_VLDecoderLayer",
                                        .attention = "Qwen2_5_VLAttention",
                                        .mlp = "Qwen2MLP",
                                        .norm = "Qwen2_5_VLRMSNorm",
                                        .rotary = "Qwen2_5_VLRotaryEmbedding"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    int64_t first = config_i64(config, "max_window_layers", 80, 0, INT32_MAX);
    if (layer->attention.window && !decoder_slides(config, i, i >= first))
        layer->attention.window = 0;
}

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {
        .classes = &classes, .norm.eps = 1e-5, .theta = 1e6, .kv_heads = 8, .ignore_head_dim = true, .differ = differ};
    decoder_read(config, &s);
    s.layer.attention.window = decoder_window_in_use(config);
    s.layer.attention.qkv_bias = true;
    return multimodal_text(b, config, &s, place);
}

static const build_alias aliases[] = {{"model.visual.", "visual."}, {"model.language_model.", "model."}, {0}};

static const multimodal_spec spec = {
    .model_class = "Qwen2_5_VLModel",
    .vision = &vision_qwen2_5_vl,
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_id", [MULTIMODAL_VIDEO] = "video_token_id"},
    .token = {[MULTIMODAL_IMAGE] = 151655, [MULTIMODAL_VIDEO] = 151656},
    .flat = true,
    .text_ties = true,
    .sections = {16, 24, 24},
    .rules = {.image_interval = 1},
    .aliases = aliases,
    .text = text};

const model_arch qwen2_5_vl_arch = {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", NULL, &spec};
