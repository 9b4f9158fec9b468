/* modeling_mistral: MistralForCausalLM. A sliding window in all layers. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("mistral", "Mistral")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .kv_heads = 8};
    decoder_read(config, &s);
    s.layer.attention.window = decoder_window(config, 4096);
    return decoder_build(b, config, &s);
}

const model_arch mistral_arch = {"mistral", "MistralForCausalLM", build, NULL};
