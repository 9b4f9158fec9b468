/* modeling_glm4v and modeling_glm46v: Glm4vForConditionalGeneration, and Glm46VForConditionalGeneration around the same
 * parts. GLM-4 with a vision tower; what rotates of a head has three stretches, one for each axis, turned in pairs of
 * neighbours. Frames of videos are image tokens between marks. */
#include "models/multimodal.h"

static const decoder_classes classes = {.scope = "modeling_glm4v",
                                        .model = "Glm4vTextModel",
                                        .layer = "Glm4vTextDecoderLayer",
                                        .attention = "Glm4vTextAttention",
                                        .mlp = "Glm4vTextMLP",
                                        .norm = "Glm4vRMSNorm",
                                        .rotary = "Glm4vTextRotaryEmbedding"};

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {
        .classes = &classes,
        .norm.eps = 1e-5,
        .norms = {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"},
        .partial = 1,
        .kv_heads = 2,
        .ignore_head_dim = true};
    decoder_read(config, &s);
    s.rope[0].site.style = TN_ROPE_INTERLEAVED;
    s.layer.attention.qkv_bias = true;
    s.layer.mlp.layout = TN_LAYOUT_GATE_UP;
    return multimodal_text(b, config, &s, place);
}

#define GLM4V_SPEC                                                                                                     \
    .vision = &vision_glm4v,                                                                                           \
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_id", [MULTIMODAL_VIDEO] = "video_token_id"},                       \
    .token = {[MULTIMODAL_IMAGE] = 151343, [MULTIMODAL_VIDEO] = 151344}, .text_ties = true, .one_picture_token = true, \
    .sections = {8, 12, 12}, .rules = {.split_frames = true, .image_interval = 1, .video_interval = 1}, .text = text

static const multimodal_spec spec = {.model_class = "Glm4vModel", GLM4V_SPEC};
static const multimodal_spec spec_46 = {.model_class = "Glm46VModel", GLM4V_SPEC};

const model_arch glm4v_arch = {"glm4v", "Glm4vForConditionalGeneration", NULL, &spec};
const model_arch glm46v_arch = {"glm46v", "Glm46VForConditionalGeneration", NULL, &spec_46};
