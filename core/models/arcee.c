/* modeling_arcee: ArceeForCausalLM. Llama with an MLP of two matrices around a squared ReLU. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("arcee", "Arcee")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .act = "relu2", .prelu = true, .norm.eps = 1e-5};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.mlp.bias = config_bool(config, "mlp_bias", false);
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    return decoder_build(b, config, &s);
}

const model_arch arcee_arch = {"arcee", "ArceeForCausalLM", build, NULL};
