/* modeling_kimi_linear: KimiLinearForCausalLM. Gated delta rules with a decay for each channel, every few layers latent
 * attention without rotation; experts by sigmoid scores and a correction bias, with a shared MLP beside them. */
#include "models/channel_delta.h"
#include "models/mla.h"
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("kimi_linear", "KimiLinear")};

static const moe_parts_names names = {MOE_PARTS_NUMBERED, MOE_PARTS_CLASSES("KimiLinear", "MoE", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "KimiLinear"),
                                      .correction = "e_score_correction_bias"};

static const build_alias aliases[] = {{".mlp.", ".block_sparse_moe."}, {".forget_gate.", "."}, {0}};

/* What mixes the layers: one of the two. */
typedef struct mixers {
    mla_spec attention;
    channel_delta_spec delta;
} mixers;

/* Files of the Hub number layers from 1. */
static bool is_full(const config_reader *c, int64_t i)
{
    static const config_word types[] = {{"full_attention", true}, {"linear_attention", false}, {0}};
    config_reader linear = config_child(c, "linear_attn_config");
    if (config_list(c, "layer_types") >= 0)
        return config_list_choice(c, "layer_types", i, types);
    if (config_list(&linear, "full_attn_layers") < 0 || config_list(&linear, "kda_layers") < 0)
        return i > 0 && i % 4 == 0;
    bool full = config_list_holds(&linear, "full_attn_layers", i + 1);
    bool delta = config_list_holds(&linear, "kda_layers", i + 1);
    if (!full && !delta)
        config_fail(c, "num_hidden_layers", "is more than %lld, and linear_attn_config has no layer %lld", (long long)i,
                    (long long)i + 1);
    return full;
}

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    const mixers *m = layer->mixer_spec;
    bool full = is_full(config, i);
    layer->mixer = full ? &mla_mixer : &channel_delta;
    layer->mixer_spec = full ? (const void *)&m->attention : &m->delta;
    routed_by_type(config, i, 1, layer);
}

static void read_delta(const config_reader *c, const decoder_spec *s, channel_delta_spec *d)
{
    enum { MOST_HEADS = 1 << 14, MOST_WIDTH = 1 << 12 };
    config_reader linear = config_child(c, "linear_attn_config");
    *d = (channel_delta_spec){.class_name = "KimiLinearDeltaAttention",
                              .norm_class = "KimiLinearRMSNormGated",
                              .gate_class = "KimiLinearForgetGate",
                              .hidden = s->hidden,
                              .eps = s->norm.eps,
                              .act = s->layer.mlp.act};
    d->heads = config_i64(&linear, "num_heads", config_i64(c, "linear_num_heads", 32, 1, MOST_HEADS), 1, MOST_HEADS);
    d->dim = config_i64(&linear, "head_dim", config_i64(c, "linear_head_dim", 128, 1, MOST_WIDTH), 1, MOST_WIDTH);
    d->taps = config_i64(&linear, "short_conv_kernel_size", config_i64(c, "linear_conv_kernel_dim", 4, 1, MOST_WIDTH),
                         1, MOST_WIDTH);
}

static void *build(graph_builder *b, const config_reader *config)
{
    static const config_word scores[] = {{"sigmoid", 0}, {0}};
    decoder_spec s = {.classes = &classes,
                      .norm.eps = 1e-5,
                      .ignore_head_dim = true,
                      .positions_key = config_has(config, "model_max_length") ? "model_max_length" : NULL,
                      .differ = differ};
    mixers m = {.attention = {.q_rank = 0, .kv_rank = 512, .nope = 128, .rope = 64, .v = 128, .unrotated = true}};
    moe_parts_spec experts = {.names = &names,
                              .experts = 256,
                              .top_k = 8,
                              .inter = 1024,
                              .shared_inter = 1,
                              .scale = 2.446,
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    mla_read(config, &s, &m.attention);
    read_delta(config, &s, &m.delta);
    s.layer.mixer_spec = &m;
    routed_sigmoid(config, &s, &experts);
    config_choice(config, "moe_router_activation_func", "sigmoid", scores);
    if (!config_bool(config, "mla_use_nope", true))
        config_fail(config, "mla_use_nope", "is false, the class never rotates");
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch kimi_linear_arch = {"kimi_linear", "KimiLinearForCausalLM", build, NULL};
