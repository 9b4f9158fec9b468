/* modeling_gemma2: Gemma2ForCausalLM. Norms by 1 + w before and behind both halves of a layer, a scaled embedding, a
 * scale of its own for the scores, softcaps on scores and logits, a window in every other layer. */
#include "models/decoder.h"

#include <math.h>

static const decoder_classes classes = {.scope = "modeling_gemma2",
                                        .model = "Gemma2Model",
                                        .layer = "Gemma2DecoderLayer",
                                        .attention = "Gemma2Attention",
                                        .mlp = "Gemma2MLP",
                                        .norm = "Gemma2RMSNorm",
                                        .rotary = "Gemma2RotaryEmbedding",
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
                      .norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                "post_feedforward_layernorm"},
                      .head_dim = 256,
                      .tied = true,
                      .differ = differ};
    decoder_read(config, &s);
    gqa_spec *attention = &s.layer.attention;
    double scalar = config_f64(config, "query_pre_attn_scalar", 256);
    if (!(scalar > 0))
        config_fail(config, "query_pre_attn_scalar", "is %g, it must be positive", scalar);
    if (config_bool(config, "use_bidirectional_attention", false))
        config_fail(config, "use_bidirectional_attention", "is true, only false is supported");
    attention->scale = pow(scalar, -0.5);
    attention->softcap = decoder_positive(config, "attn_logit_softcapping", 50);
    attention->window = decoder_window(config, 4096);
    attention->qkv_bias = attention->o_bias = config_bool(config, "attention_bias", false);
    s.embed_scale = sqrt((double)s.hidden);
    s.logit_softcap = decoder_positive(config, "final_logit_softcapping", 30);
    return decoder_build(b, config, &s);
}

const model_arch gemma2_arch = {"gemma2", "Gemma2ForCausalLM", build, &decoder_flow};
