/* modeling_phi: PhiForCausalLM. Attention and MLP side by side behind one LayerNorm; a part of a head is rotated;
 * biases everywhere, also of the head. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_phi",
                                        .model = "PhiModel",
                                        .layer = "PhiDecoderLayer",
                                        .attention = "PhiAttention",
                                        .mlp = "PhiMLP",
                                        .norm = "LayerNorm",
                                        .rotary = "PhiRotaryEmbedding"};

static const gqa_names attention_names = {.module = "self_attn",
                                          .q = "q_proj",
                                          .k = "k_proj",
                                          .v = "v_proj",
                                          .o = "dense",
                                          .q_norm = "q_layernorm",
                                          .k_norm = "k_layernorm"};
static const parts_mlp_names mlp_names = {.up = "fc1", .down = "fc2"};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .act = "gelu_new",
                      .eps_key = "layer_norm_eps",
                      .final_norm = "final_layernorm",
                      .norm = {.eps = 1e-5, .layer_norm = true, .bias = true},
                      .norms = {.attention = "input_layernorm"},
                      .partial = 0.5,
                      .ignore_head_dim = true,
                      .parallel = true,
                      .head_bias = true};
    decoder_read(config, &s);
    gqa_spec *attention = &s.layer.attention;
    attention->names = &attention_names;
    attention->qkv_bias = attention->o_bias = s.layer.mlp.bias = true;
    attention->head_norm = config_bool(config, "qk_layernorm", false) ? &s.norm : NULL;
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    s.layer.mlp.names = &mlp_names;
    return decoder_build(b, config, &s);
}

const model_arch phi_arch = {"phi", "PhiForCausalLM", build, NULL};
