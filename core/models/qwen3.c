/* modeling_qwen3: Qwen3ForCausalLM. Queries and keys are normalised per head before the rotation. */
#include "models/decoder.h"

static const decoder_classes classes = {"modeling_qwen3", "Qwen3Model",   "Qwen3DecoderLayer",   "Qwen3Attention",
                                        "Qwen3MLP",       "Qwen3RMSNorm", "Qwen3RotaryEmbedding"};

static void *build(graph_builder *b, const config_node *config)
{
    decoder_spec spec;
    bool bias = false;
    if (!decoder_read(b, config, &classes, 128, &spec) || !decoder_read_window(b, config, &spec))
        return NULL;
    b->status = config_bool(config, "attention_bias", &bias, b->err);
    spec.q_bias = spec.k_bias = spec.v_bias = spec.o_bias = bias;
    spec.qk_norm = true;
    spec.slides = decoder_upper_slides;
    return decoder_build(b, config, &spec);
}

const model_arch model_qwen3 = {"qwen3", "Qwen3ForCausalLM", build, decoder_free, decoder_forward, decoder_shape};
