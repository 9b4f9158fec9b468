/* modeling_glm: GlmForCausalLM. Neighbouring elements of half a head are rotated; gate and up are one matrix. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("glm", "Glm")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1.5625e-07, .partial = 0.5, .kv_heads = 2, .head_dim = 128};
    decoder_read(config, &s);
    s.rope[0].site.style = TN_ROPE_INTERLEAVED;
    s.layer.attention.qkv_bias = config_bool(config, "attention_bias", true);
    s.layer.mlp.layout = TN_LAYOUT_GATE_UP;
    return decoder_build(b, config, &s);
}

const model_arch glm_arch = {"glm", "GlmForCausalLM", build, NULL};
