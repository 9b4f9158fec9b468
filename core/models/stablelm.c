/* modeling_stablelm: StableLmForCausalLM. LayerNorm; a part of a head is rotated; halves one after the other or side by
 * side; heads of queries and keys may have norms with a weight each. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_stablelm",
                                        .model = "StableLmModel",
                                        .layer = "StableLmDecoderLayer",
                                        .attention = "StableLmAttention",
                                        .mlp = "StableLmMLP",
                                        .norm = "LayerNorm",
                                        .rotary = "StableLmRotaryEmbedding"};

static const gqa_names attention_names = {.module = "self_attn",
                                          .q = "q_proj",
                                          .k = "k_proj",
                                          .v = "v_proj",
                                          .o = "o_proj",
                                          .q_norm = "q_layernorm",
                                          .k_norm = "k_layernorm"};

static void *build(graph_builder *b, const config_reader *config)
{
    bool parallel = config_bool(config, "use_parallel_residual", false);
    decoder_spec s = {.classes = &classes,
                      .eps_key = "layer_norm_eps",
                      .norm = {.eps = 1e-5, .layer_norm = true, .bias = true},
                      .norms = {.attention = "input_layernorm", .mlp = parallel ? NULL : "post_attention_layernorm"},
                      .partial = 0.25,
                      .ignore_head_dim = true,
                      .parallel = parallel};
    decoder_read(config, &s);
    parts_norm_kind head_norm = s.norm;
    head_norm.class_name = "StableLmLayerNormPerHead";
    gqa_spec *attention = &s.layer.attention;
    attention->names = &attention_names;
    attention->qkv_bias = config_bool(config, "use_qkv_bias", false);
    attention->head_norm = config_bool(config, "qk_layernorm", false) ? &head_norm : NULL;
    attention->norm_own = true;
    attention->norm_list = "norms";
    return decoder_build(b, config, &s);
}

const model_arch stablelm_arch = {"stablelm", "StableLmForCausalLM", build, NULL};
