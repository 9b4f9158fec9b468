/* modeling_gemma: GemmaForCausalLM. Norms by 1 + w, gates of GELU, a scaled embedding. */
#include "models/gemma_parts.h"

#include <math.h>

static const decoder_classes classes = {DECODER_CLASSES("gemma", "Gemma"), .embedding = "GemmaTextScaledWordEmbedding"};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .act = "gelu_pytorch_tanh",
                      .norm.variant = TN_NORM_1_PLUS_W,
                      .kv_heads = 16,
                      .head_dim = 256,
                      .tied = true};
    decoder_read(config, &s);
    if (s.layer.mlp.act == TN_ACT_GELU) /* the first files say gelu where they mean its approximation  */
        s.layer.mlp.act = TN_ACT_GELU_TANH;
    gemma_parts_causal(b, config);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.embed_scale = sqrt((double)s.hidden);
    return decoder_build(b, config, &s);
}

const model_arch gemma_arch = {"gemma", "GemmaForCausalLM", build, NULL};
