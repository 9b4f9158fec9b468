/* modeling_starcoder2: Starcoder2ForCausalLM. LayerNorm, an MLP of two matrices, biases everywhere. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_starcoder2",
                                        .model = "Starcoder2Model",
                                        .layer = "Starcoder2DecoderLayer",
                                        .attention = "Starcoder2Attention",
                                        .mlp = "Starcoder2MLP",
                                        .norm = "LayerNorm",
                                        .rotary = "Starcoder2RotaryEmbedding"};

static const parts_mlp_names mlp_names = {.up = "c_fc", .down = "c_proj"};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .act = "gelu_pytorch_tanh",
                      .eps_key = "norm_epsilon",
                      .norm = {.eps = 1e-5, .layer_norm = true, .bias = true},
                      .kv_heads = 2,
                      .tied = true};
    decoder_read(config, &s);
    bool bias = config_bool(config, "use_bias", true);
    s.layer.attention.window = decoder_window(config, 0);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = bias;
    s.layer.mlp.bias = bias;
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    s.layer.mlp.names = &mlp_names;
    return decoder_build(b, config, &s);
}

const model_arch starcoder2_arch = {"starcoder2", "Starcoder2ForCausalLM", build, NULL};
