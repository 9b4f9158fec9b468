/* modeling_bamba: BambaForCausalLM. The mixer of Mamba-2, in some layers attention of which half of each head rotates.
 */
#include "models/decoder.h"
#include "models/mamba_mixer.h"

static const decoder_classes classes = {DECODER_CLASSES("bamba", "Bamba")};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    static const config_word types[] = {
        {"attention", false}, {"full_attention", false}, {"mamba", true}, {"linear_attention", true}, {0}};
    if (!decoder_layer_type(config, i, types, !config_list_holds(config, "attn_layer_indices", i)))
        layer->mixer = NULL;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .norm.eps = 1e-5,
                      .norms = {.attention = "input_layernorm", .mlp = "pre_ff_layernorm"},
                      .final_norm = "final_layernorm",
                      .kv_heads = 8,
                      .partial = 0.5,
                      .differ = differ};
    decoder_read(config, &s);
    mamba_mixer_spec mixer = {.class_name = "BambaMixer",
                              .norm_class = "BambaRMSNormGated",
                              .hidden = s.hidden,
                              .eps = s.norm.eps,
                              .act = s.layer.mlp.act};
    mamba_mixer_read(config, &mamba_mixer_usual, 0, &mixer);
    mixer.in_bias = mixer.out_bias = config_bool(config, "mamba_proj_bias", false);
    s.layer.mixer = &mamba_mixer;
    s.layer.mixer_spec = &mixer;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.mlp_name = "feed_forward";
    s.layer.mlp.bias = config_bool(config, "mlp_bias", false);
    return decoder_build(b, config, &s);
}

const model_arch bamba_arch = {"bamba", "BambaForCausalLM", build, NULL};
