/* modeling_llama: LlamaForCausalLM. */
#include "models/decoder.h"

static const decoder_classes classes = {"modeling_llama", "LlamaModel",   "LlamaDecoderLayer",   "LlamaAttention",
                                        "LlamaMLP",       "LlamaRMSNorm", "LlamaRotaryEmbedding"};

static void *build(graph_builder *b, const config_node *config)
{
    decoder_spec spec;
    bool bias = false;
    if (!decoder_read(b, config, &classes, 0, &spec))
        return NULL;
    b->status = config_bool(config, "attention_bias", &bias, b->err);
    if (b->status == TN_OK)
        b->status = config_bool(config, "mlp_bias", &spec.mlp_bias, b->err);
    spec.q_bias = spec.k_bias = spec.v_bias = spec.o_bias = bias;
    return decoder_build(b, config, &spec);
}

const model_arch model_llama = {"llama", "LlamaForCausalLM", build, decoder_free, decoder_forward, decoder_shape};
