/* modeling_olmo: OlmoForCausalLM. LayerNorm without weights; rotation in f32; queries, keys and values are cut off
 * where the file says so. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_olmo",
                                        .model = "OlmoModel",
                                        .layer = "OlmoDecoderLayer",
                                        .attention = "OlmoAttention",
                                        .mlp = "OlmoMLP",
                                        .norm = "OlmoLayerNorm",
                                        .rotary = "OlmoRotaryEmbedding"};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm = {.layer_norm = true, .plain = true}};
    decoder_read(config, &s);
    s.norm.eps = 1e-5; /* of the class                                                            */
    s.rope[0].site.style = TN_ROPE_HALF_F32;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.clip = decoder_positive(config, "clip_qkv", 0);
    return decoder_build(b, config, &s);
}

const model_arch olmo_arch = {"olmo", "OlmoForCausalLM", build, NULL};
