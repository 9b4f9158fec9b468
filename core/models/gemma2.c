/* modeling_gemma2: Gemma2ForCausalLM. Norms by 1 + w before and behind both halves of a layer, a scaled embedding, a
 * scale of its own for the scores, softcaps on scores and logits, a window in every other layer. */
#include "models/gemma_parts.h"

#include <math.h>

static const decoder_classes classes = {DECODER_CLASSES("gemma2", "Gemma2"),
                                        .embedding = "Gemma2TextScaledWordEmbedding"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (!decoder_slides(config, i, i % 2 == 0))
        layer->attention.window = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .act_key = "hidden_activation", /* files have hidden_act too, which is not read */
                      .act = "gelu_pytorch_tanh",
                      .norm.variant = TN_NORM_1_PLUS_W,
                      .norms = {.attention = "input_layernorm",
                                .after_attention = "post_attention_layernorm",
                                .mlp = "pre_feedforward_layernorm",
                                .after_mlp = "post_feedforward_layernorm"},
                      .head_dim = 256,
                      .tied = true,
                      .differ = differ};
    decoder_read(config, &s);
    gqa_spec *attention = &s.layer.attention;
    gemma_parts_causal(b, config);
    attention->scale = gemma_parts_score_scale(config);
    attention->softcap = decoder_positive(config, "attn_logit_softcapping", 50);
    attention->window = decoder_window(config, 4096);
    attention->qkv_bias = attention->o_bias = config_bool(config, "attention_bias", false);
    s.embed_scale = sqrt((double)s.hidden);
    s.logit_softcap = decoder_positive(config, "final_logit_softcapping", 30);
    return decoder_build(b, config, &s);
}

const model_arch gemma2_arch = {"gemma2", "Gemma2ForCausalLM", build, NULL};
