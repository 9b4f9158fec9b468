/* modeling_mamba2: Mamba2ForCausalLM. Layers of a norm and the mixer of Mamba-2 alone, added to a residual in f32. */
#include "models/decoder.h"
#include "models/mamba_mixer.h"

static const decoder_classes classes = {
    .scope = "modeling_mamba2", .model = "Mamba2Model", .layer = "Mamba2Block", .norm = "Mamba2RMSNorm"};

static const mamba_mixer_keys keys = {.heads = "num_heads",
                                      .head = "head_dim",
                                      .groups = "n_groups",
                                      .state = "state_size",
                                      .taps = "conv_kernel",
                                      .expand = "expand",
                                      .conv_bias = "use_conv_bias",
                                      .default_heads = 128,
                                      .default_head = 64,
                                      .default_groups = 8,
                                      .default_state = 128};

/* Files of before there was this class say embedding. */
static const build_alias aliases[] = {{"backbone.embeddings.", "backbone.embedding."}, {0}};

static const decoder_names names = {.embed = "embeddings"};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .no_padding = true,
                      .name = "backbone",
                      .names = &names,
                      .eps_key = "layer_norm_epsilon",
                      .norm.eps = 1e-5,
                      .final_norm = "norm_f",
                      .norms.attention = "norm",
                      .states_behind = true,
                      .no_attention = true,
                      .no_intermediate = true};
    b->aliases = aliases;
    decoder_read(config, &s);
    mamba_mixer_spec mixer = {.name = "mixer",
                              .class_name = "Mamba2Mixer",
                              .norm_class = "MambaRMSNormGated",
                              .hidden = s.hidden,
                              .eps = s.norm.eps,
                              .act = s.layer.mlp.act};
    mamba_mixer_read(config, &keys, 0, &mixer);
    mixer.in_bias = mixer.out_bias = config_bool(config, "use_bias", false);
    s.wide = config_bool(config, "residual_in_fp32", true);
    s.layer.alone = true;
    s.layer.mixer = &mamba_mixer;
    s.layer.mixer_spec = &mixer;
    return decoder_build(b, config, &s);
}

const model_arch mamba2_arch = {"mamba2", "Mamba2ForCausalLM", build, NULL};
