/* modeling_qwen3: Qwen3ForCausalLM. Queries and keys are normalised per head before the rotation. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("qwen3", "Qwen3")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .head_dim = 128, .differ = decoder_upper_slide};
    decoder_read(config, &s);
    s.layer.attention.window = decoder_window_in_use(config);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    return decoder_build(b, config, &s);
}

const model_arch qwen3_arch = {"qwen3", "Qwen3ForCausalLM", build, NULL};
