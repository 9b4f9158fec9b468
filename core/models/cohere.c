/* modeling_cohere: CohereForCausalLM. Attention and MLP side by side behind one LayerNorm; neighbouring elements are
 * rotated in f32; heads of queries and keys may have norms with a weight each. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_cohere",
                                        .model = "CohereModel",
                                        .layer = "CohereDecoderLayer",
                                        .attention = "CohereAttention",
                                        .mlp = "CohereMLP",
                                        .norm = "CohereLayerNorm",
                                        .rotary = "CohereRotaryEmbedding"};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .eps_key = "layer_norm_eps",
                      .norm = {.eps = 1e-5, .layer_norm = true},
                      .norms = {.attention = "input_layernorm"},
                      .theta = 5e5,
                      .parallel = true,
                      .tied = true};
    decoder_read(config, &s);
    s.layer.attention.head_norm = config_bool(config, "use_qk_norm", false) ? &s.norm : NULL;
    s.layer.attention.norm_own = true;
    s.rope[0].site.style = TN_ROPE_COMPLEX;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.logit_scale = config_f64(config, "logit_scale", 0.0625);
    return decoder_build(b, config, &s);
}

const model_arch cohere_arch = {"cohere", "CohereForCausalLM", build, NULL};
