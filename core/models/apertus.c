/* modeling_apertus: ApertusForCausalLM. Llama with norms of heads and an MLP of two matrices around xIELU, whose
 * parameters each layer has of its own. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("apertus", "Apertus")};

/* Of files without any. */
static const rope_params absent = {
    .kind = ROPE_LLAMA3, .theta = 12000000, .factor = 8, .original = 8192, .low = 1, .high = 4};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .act = "xielu",
                      .norm.eps = 1e-5,
                      .norms = {.attention = "attention_layernorm", .mlp = "feedforward_layernorm"},
                      .theta = 12000000};
    decoder_read(config, &s);
    s.rope[0].config.absent = &absent;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    return decoder_build(b, config, &s);
}

const model_arch apertus_arch = {"apertus", "ApertusForCausalLM", build, NULL};
