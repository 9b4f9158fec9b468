/* modeling_youtu: YoutuForCausalLM. Latent attention, and an MLP in every layer. */
#include "models/mla.h"

static const decoder_classes classes = {DECODER_CLASSES("youtu", "Youtu")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .ignore_head_dim = true, .tied = true};
    mla_spec attention = {.q_rank = 1536, .kv_rank = 512, .nope = 128, .rope = 64, .v = 128};
    decoder_read(config, &s);
    mla_read(config, &s, &attention);
    return decoder_build(b, config, &s);
}

const model_arch youtu_arch = {"youtu", "YoutuForCausalLM", build, NULL};
