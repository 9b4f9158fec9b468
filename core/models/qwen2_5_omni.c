/* modeling_qwen2_5_omni: Qwen2_5OmniThinkerForConditionalGeneration, what reads and writes text in Qwen2.5-Omni. Qwen2
 * with towers that see and hear; rotary frequencies in three stretches, one for each axis. */
#include "models/multimodal.h"

static const decoder_classes classes = {.scope = "modeling_qwen2_5_omni",
                                        .model = "Qwen2_5OmniThinkerTextModel",
                                        .layer = "Qwen2_5OmniDecoderLayer",
                                        .attention = "Qwen2_5OmniAttention",
                                        .mlp = "Qwen2MLP",
                                        .norm = "Qwen2_5OmniRMSNorm",
                                        .rotary = "Qwen2_5OmniRotaryEmbedding"};

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {.classes = &classes, .kv_heads = 4, .theta = 1e6, .differ = decoder_upper_slide};
    decoder_read(config, &s);
    s.layer.attention.window = config_bool(config, "use_sliding_window", false) ? decoder_window(config, 32768) : 0;
    s.layer.attention.qkv_bias = true;
    return multimodal_text(b, config, &s, place);
}

static const build_alias aliases[] = {
    {"model.audio_tower.", "audio_tower."}, {"model.visual.", "visual."}, {"model.language_model.", "model."}, {0}};

static const multimodal_spec spec = {
    .model_class = "Qwen2_5OmniThinkerModel",
    .vision = &vision_qwen2_5_omni,
    .audio = &audio_qwen2_5_omni,
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_index",
                  [MULTIMODAL_VIDEO] = "video_token_index",
                  [MULTIMODAL_SOUND] = "audio_token_index"},
    .token = {[MULTIMODAL_IMAGE] = 151655, [MULTIMODAL_VIDEO] = 151656, [MULTIMODAL_SOUND] = 151646},
    .sections = {16, 24, 24},
    .rules = {.from_highest = true},
    .aliases = aliases,
    .text = text};

const model_arch qwen2_5_omni_arch = {"qwen2_5_omni_thinker", "Qwen2_5OmniThinkerForConditionalGeneration", NULL,
                                      &spec};
