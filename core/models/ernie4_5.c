/* modeling_ernie4_5: Ernie4_5ForCausalLM. Neighbouring elements are rotated in f32. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("ernie4_5", "Ernie4_5")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes, .norm.eps = 1e-5, .theta = 5e5, .kv_heads = 2, .head_dim = 128, .tied = true};
    decoder_read(config, &s);
    s.rope[0].site.style = TN_ROPE_COMPLEX;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = s.layer.mlp.bias = config_bool(config, "use_bias", false);
    return decoder_build(b, config, &s);
}

const model_arch ernie4_5_arch = {"ernie4_5", "Ernie4_5ForCausalLM", build, NULL};
