/* modeling_cohere2: Cohere2ForCausalLM. Attention and MLP side by side behind one LayerNorm; only layers with a window
 * rotate, neighbouring elements in f32. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_cohere2",
                                        .model = "Cohere2Model",
                                        .layer = "Cohere2DecoderLayer",
                                        .attention = "Cohere2Attention",
                                        .mlp = "Cohere2MLP",
                                        .norm = "Cohere2LayerNorm",
                                        .rotary = "Cohere2RotaryEmbedding"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (!decoder_slides_by(config, i, 4))
        layer->attention.window = 0;
    if (!layer->attention.window)
        layer->attention.rope = GQA_NO_ROPE;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .eps_key = "layer_norm_eps",
                      .norm = {.eps = 1e-5, .layer_norm = true},
                      .norms = {.attention = "input_layernorm"},
                      .parallel = true,
                      .tied = true,
                      .differ = differ};
    decoder_read(config, &s);
    s.rope[0].site.style = TN_ROPE_COMPLEX;
    s.layer.attention.window = decoder_window(config, 4096);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.logit_scale = config_f64(config, "logit_scale", 0.0625);
    return decoder_build(b, config, &s);
}

const model_arch cohere2_arch = {"cohere2", "Cohere2ForCausalLM", build, NULL};
