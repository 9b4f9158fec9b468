/* modeling_llama: LlamaForCausalLM. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("llama", "Llama")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .prelu = true};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.mlp.bias = config_bool(config, "mlp_bias", false);
    return decoder_build(b, config, &s);
}

const model_arch llama_arch = {"llama", "LlamaForCausalLM", build, NULL};
