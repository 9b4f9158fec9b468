/* modeling_qwen2: Qwen2ForCausalLM. Query, key and value have biases; upper layers may use a sliding window. */
#include "models/decoder.h"

static const decoder_classes classes = {"modeling_qwen2", "Qwen2Model",   "Qwen2DecoderLayer",   "Qwen2Attention",
                                        "Qwen2MLP",       "Qwen2RMSNorm", "Qwen2RotaryEmbedding"};

static void *build(graph_builder *b, const config_node *config)
{
    decoder_spec spec;
    if (!decoder_read(b, config, &classes, 0, &spec) || !decoder_read_window(b, config, &spec))
        return NULL;
    spec.slides = decoder_upper_slides;
    spec.q_bias = spec.k_bias = spec.v_bias = true;
    return decoder_build(b, config, &spec);
}

const model_arch model_qwen2 = {"qwen2", "Qwen2ForCausalLM", build, decoder_free, decoder_forward, decoder_shape};
