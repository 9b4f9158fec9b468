/* modeling_ministral3: Ministral3ForCausalLM. Mistral with queries that grow with the position, rotated for long
 * contexts. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("ministral3", "Ministral3")};

static const rope_params no_rope = {.kind = ROPE_YARN,
                                    .theta = 1000000,
                                    .factor = 16,
                                    .original = 16384,
                                    .fast = 32,
                                    .slow = 1,
                                    .truncate = true,
                                    .mscale_all = 1,
                                    .scaling_given = true,
                                    .scaling = 1};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .kv_heads = 8, .head_dim = 128};
    decoder_read(config, &s);
    s.rope[0].config.absent = &no_rope;
    s.layer.attention.window = decoder_window(config, 0);
    s.layer.attention.scale_q = true;
    s.q_scale = rope_config_q_scale(config, &s.rope[0].config, 0.1);
    return decoder_build(b, config, &s);
}

const model_arch ministral3_arch = {"ministral3", "Ministral3ForCausalLM", build, NULL};
