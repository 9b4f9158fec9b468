/* modeling_glm4: Glm4ForCausalLM. GLM with norms before and behind both halves of a layer. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("glm4", "Glm4")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .norm.eps = 1.5625e-07,
                      .norms = {.attention = "input_layernorm",
                                .after_attention = "post_self_attn_layernorm",
                                .mlp = "post_attention_layernorm",
                                .after_mlp = "post_mlp_layernorm"},
                      .partial = 0.5,
                      .kv_heads = 2,
                      .head_dim = 128};
    decoder_read(config, &s);
    s.rope[0].site.style = TN_ROPE_INTERLEAVED;
    s.layer.attention.qkv_bias = config_bool(config, "attention_bias", true);
    s.layer.mlp.layout = TN_LAYOUT_GATE_UP;
    return decoder_build(b, config, &s);
}

const model_arch glm4_arch = {"glm4", "Glm4ForCausalLM", build, NULL};
