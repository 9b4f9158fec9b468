/* modeling_ministral: MinistralForCausalLM. Mistral with a window in the layers that the file says. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("ministral", "Ministral")};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (!decoder_slides(config, i, true))
        layer->attention.window = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .kv_heads = 8, .differ = differ};
    decoder_read(config, &s);
    s.layer.attention.window = decoder_window(config, 4096);
    return decoder_build(b, config, &s);
}

const model_arch ministral_arch = {"ministral", "MinistralForCausalLM", build, NULL};
