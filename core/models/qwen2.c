/* modeling_qwen2: Qwen2ForCausalLM. Query, key and value have biases; upper layers may use a sliding window. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("qwen2", "Qwen2")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .differ = decoder_upper_slide};
    decoder_read(config, &s);
    s.layer.attention.window = decoder_window_in_use(config);
    s.layer.attention.qkv_bias = true;
    return decoder_build(b, config, &s);
}

const model_arch qwen2_arch = {"qwen2", "Qwen2ForCausalLM", build, NULL};
