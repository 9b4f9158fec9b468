/* modeling_glm4v: Glm4vForConditionalGeneration. GLM-4 with a vision tower; what rotates of a head has three stretches,
 * one for each axis, turned in pairs of neighbours. Frames of videos are image tokens between marks. */
#include "models/glm4v.h"

static const decoder_classes classes = {.scope = "modeling_glm4v",
                                        .model = "Glm4vTextModel",
                                        .layer = "Glm4vTextDecoderLayer",
                                        .attention = "Glm4vTextAttention",
                                        .mlp = "Glm4vTextMLP",
                                        .norm = "Glm4vRMSNorm",
                                        .rotary = "Glm4vTextRotaryEmbedding"};

void *glm4v_text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {.classes = &classes,
                      .norm.eps = 1e-5,
                      .norms = {.attention = "input_layernorm",
                                .after_attention = "post_self_attn_layernorm",
                                .mlp = "post_attention_layernorm",
                                .after_mlp = "post_mlp_layernorm"},
                      .partial = 1,
                      .kv_heads = 2,
                      .ignore_head_dim = true};
    decoder_read(config, &s);
    s.rope[0].site.style = TN_ROPE_INTERLEAVED;
    s.layer.attention.qkv_bias = true;
    s.layer.mlp.layout = TN_LAYOUT_GATE_UP;
    return multimodal_text(b, config, &s, place);
}

static const multimodal_spec spec = {.model_class = "Glm4vModel", GLM4V_SPEC};

const model_arch glm4v_arch = {"glm4v", "Glm4vForConditionalGeneration", NULL, &spec};
