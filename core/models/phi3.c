/* modeling_phi3: Phi3ForCausalLM. One matrix for queries, keys and values, one for gate and up; part of a head may
 * rotate, with other frequencies for long contexts. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("phi3", "Phi3")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .partial = 1, .restarts = true};
    decoder_read(config, &s);
    s.rope[0].config.old_names = true;
    s.rope[0].config.original = 4096;
    s.restarts = true;
    s.layer.attention.fused = true;
    s.layer.attention.window = decoder_window(config, 0);
    s.layer.mlp.layout = TN_LAYOUT_GATE_UP;
    return decoder_build(b, config, &s);
}

const model_arch phi3_arch = {"phi3", "Phi3ForCausalLM", build, NULL};
