/* modeling_granite: GraniteForCausalLM. Factors for the embedding, the scores, what is added to the residual, and the
 * logits. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("granite", "Granite")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.mlp.bias = config_bool(config, "mlp_bias", false);
    decoder_granite_factors(config, &s);
    return decoder_build(b, config, &s);
}

const model_arch granite_arch = {"granite", "GraniteForCausalLM", build, NULL};
