/* modeling_gemma3: Gemma3ForCausalLM. Gemma 2 without caps on scores: norms of queries and keys instead, and a rotation
 * for each of the two types of layers. */
#include "models/gemma_parts.h"

#include <math.h>

static const decoder_classes classes = {.scope = "modeling_gemma3",
                                        .model = "Gemma3TextModel",
                                        .layer = "Gemma3DecoderLayer",
                                        .attention = "Gemma3Attention",
                                        .mlp = "Gemma3MLP",
                                        .norm = "Gemma3RMSNorm",
                                        .rotary = "Gemma3RotaryEmbedding",
                                        .embedding = "Gemma3TextScaledWordEmbedding"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    gemma_parts_layer_type(layer, decoder_slides_by(config, i, 6));
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .act_key = "hidden_activation",
                      .act = "gelu_pytorch_tanh",
                      .norm.variant = TN_NORM_1_PLUS_W,
                      .norms = {.attention = "input_layernorm",
                                .after_attention = "post_attention_layernorm",
                                .mlp = "pre_feedforward_layernorm",
                                .after_mlp = "post_feedforward_layernorm"},
                      .kv_heads = 4,
                      .head_dim = 256,
                      .tied = true,
                      .differ = differ};
    decoder_read(config, &s);
    gemma_parts_ropes(&s);
    gqa_spec *attention = &s.layer.attention;
    attention->scale = gemma_parts_score_scale(config);
    attention->window = decoder_window(config, 4096);
    attention->both_sides = config_bool(config, "use_bidirectional_attention", false);
    if (attention->both_sides && attention->window) /* the file counts both sides                 */
        attention->window = attention->window / 2 + 1;
    attention->head_norm = &s.norm;
    attention->qkv_bias = attention->o_bias = config_bool(config, "attention_bias", false);
    s.embed_scale = sqrt((double)s.hidden);
    s.logit_softcap = decoder_positive(config, "final_logit_softcapping", 0);
    return decoder_build(b, config, &s);
}

const model_arch gemma3_text_arch = {"gemma3_text", "Gemma3ForCausalLM", build, NULL};
