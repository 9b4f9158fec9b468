/* modeling_nemotron_h: NemotronHForCausalLM. Each layer is a norm and one of four: the mixer of Mamba-2, attention
 * without rotation, an MLP without a gate, or experts of such MLPs. */
#include "models/mamba_mixer.h"
#include "models/routed.h"

#include <float.h>
#include <string.h>

static const decoder_classes classes = {.scope = "modeling_nemotron_h",
                                        .model = "NemotronHModel",
                                        .layer = "NemotronHBlock",
                                        .attention = "NemotronHAttention",
                                        .mlp = "NemotronHMLP",
                                        .norm = "NemotronHRMSNorm"};

static const gqa_names attention = {"mixer", "q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", NULL};

/* relu2(x) is relu(x) times x: experts of the squared ReLU without a gate are gated ones whose gate is the matrix
 * itself, to the last bit. */
static const moe_parts_names names = {.block_class = "NemotronHMoE",
                                      .router_class = "NemotronHTopkRouter",
                                      .experts_class = "NemotronHExperts",
                                      .router = "gate",
                                      .experts = "experts",
                                      .gate = "up_proj",
                                      .up = "up_proj",
                                      .down = "down_proj",
                                      .all_gate_up = "gate_up_proj",
                                      .all_down = "down_proj",
                                      .correction = "e_score_correction_bias"};

static const mamba_mixer_keys keys = {.heads = "mamba_num_heads",
                                      .head = "mamba_head_dim",
                                      .groups = "n_groups",
                                      .state = "ssm_state_size",
                                      .taps = "conv_kernel",
                                      .expand = "expand",
                                      .conv_bias = "use_conv_bias",
                                      .default_heads = 128,
                                      .default_head = 64,
                                      .default_groups = 8,
                                      .default_state = 128};

static const build_alias aliases[] = {{"model.", "backbone."}, {0}};

/* What layers are made of; those without a mixer here are attention. */
typedef struct layer_specs {
    mamba_mixer_spec mamba;
    parts_mlp_spec mlp, shared;
    moe_parts_spec moe;
    int64_t latent; /* width that experts see; 0: hidden                                            */
} layer_specs;

/* ---- an MLP, and experts ----------------------------------------------------------------------------------------- */

typedef struct feed {
    graph_site *mlp; /* alone, or the experts' shared one                                            */
    graph_site *route, *experts, *to_latent, *from_latent;
} feed;

static void mlp_build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    ((feed *)state)->mlp = parts_mlp(b, layer, "mixer", &((const layer_specs *)spec)->mlp, NULL);
}

static void experts_build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    const layer_specs *s = spec;
    feed *f = state;
    graph_module *m = build_module(b, layer, "mixer", names.block_class);
    moe_parts_spec inner = s->moe;
    inner.hidden = s->latent ? s->latent : s->moe.hidden;
    f->route = moe_parts_router(b, m, &s->moe, NULL);
    f->experts = moe_parts_experts(b, m, &inner, NULL);
    f->mlp = parts_mlp(b, m, "shared_experts", &s->shared, NULL);
    if (!s->latent)
        return;
    f->to_latent = parts_linear(b, m, "fc1_latent_proj", s->moe.hidden, s->latent, s->mlp.bias, NULL);
    f->from_latent = parts_linear(b, m, "fc2_latent_proj", s->latent, s->moe.hidden, s->mlp.bias, NULL);
}

static model_layer feed_cache(const graph_builder *b, const void *spec)
{
    (void)b;
    (void)spec;
    return (model_layer){0};
}

static tn_tensor mlp_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x)
{
    tn_tensor y = steps_take(r, r->dtype, 2, x->shape);
    (void)at;
    steps_mlp(r, ((const feed *)state)->mlp, x, &y);
    return y;
}

static tn_tensor experts_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x)
{
    const feed *f = state;
    tn_tensor inner = f->to_latent ? steps_linear(r, f->to_latent, x) : *x;
    tn_tensor y = steps_take(r, r->dtype, 2, inner.shape);
    steps_routed(r, f->route, x, f->experts, &inner, &y);
    if (f->from_latent)
        y = steps_linear(r, f->from_latent, &y);
    tn_tensor shared = mlp_forward(r, state, at, x);
    steps_add(r, &y, &shared);
    return y;
}

static const mixer_kind mlp_alone = {sizeof(feed), mlp_build, feed_cache, mlp_forward, NULL};
static const mixer_kind experts = {sizeof(feed), experts_build, feed_cache, experts_forward, NULL};

/* ---- the model ------------------------------------------------------------------------------------------------- */

static const char pattern[] = "hybrid_override_pattern";

/* M, *, - or E of layer i: from a list of words, or one string. */
static int32_t letter(const config_reader *config, int64_t i)
{
    static const config_word words[] = {{"mamba", 'M'},
                                        {"linear_attention", 'M'},
                                        {"attention", '*'},
                                        {"full_attention", '*'},
                                        {"mlp", '-'},
                                        {"moe", 'E'},
                                        {0}};
    static const char *const lists[] = {"layers_block_type", "layer_types"};
    for (int k = 0; k < 2; k++)
        if (config_list(config, lists[k]) >= 0)
            return config_list_choice(config, lists[k], i, words);
    const char *all = config_str(config, pattern, "");
    return i < (int64_t)strlen(all) ? all[i] : 0;
}

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    const layer_specs *s = layer->mixer_spec;
    int32_t kind = letter(config, i);
    layer->mixer = kind == 'M' ? &mamba_mixer : kind == '-' ? &mlp_alone : kind == 'E' ? &experts : NULL;
    layer->mixer_spec = kind == 'M' ? (const void *)&s->mamba : s;
    if (!strchr("M*-E", kind) || !kind)
        config_fail(config, pattern, "says nothing of layer %lld that is known: M, *, - or E", (long long)i);
    if (kind == 'E' && s->mlp.act != TN_ACT_RELU2)
        config_fail(config, "mlp_hidden_act", "must be relu2 where there are experts");
}

static void check_layers(const config_reader *config, int64_t layers)
{
    bool listed = config_list(config, "layers_block_type") >= 0 || config_list(config, "layer_types") >= 0;
    int64_t count =
        listed ? config_list(config, "layers_block_type") : (int64_t)strlen(config_str(config, pattern, ""));
    if (count >= 0 && count != layers)
        config_fail(config, "num_hidden_layers", "is %lld, %s has %lld", (long long)layers,
                    listed ? "layers_block_type" : pattern, (long long)count);
}

static void read_experts(const config_reader *config, decoder_spec *s, layer_specs *specs)
{
    const moe_parts_spec defaults = {
        .names = &names, .experts = 8, .top_k = 2, .inter = 7688, .scale = 1, .groups = 1, .top_groups = 1};
    routed_sigmoid(config, s, &defaults);
    specs->moe = s->layer.moe;
    specs->moe.shared_inter = 0;
    specs->moe.act = TN_ACT_RELU;
    specs->latent = config_i64(config, "moe_latent_size", 0, 1, 1 << 20);
    specs->shared = specs->mlp;
    specs->shared.inter = config_i64(config, "moe_shared_expert_intermediate_size", 7688, 1, 1 << 20);
}

static const decoder_names modules = {.embed = "embeddings"};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .no_padding = true,
                      .names = &modules,
                      .act_key = "mlp_hidden_act",
                      .act = "relu2",
                      .eps_key = "layer_norm_epsilon",
                      .norm = {.variant = TN_NORM_W_F32, .eps = 1e-5},
                      .final_norm = "norm_f",
                      .norms.attention = "norm",
                      .kv_heads = 8,
                      .head_dim = 128,
                      .no_intermediate = true,
                      .differ = differ};
    layer_specs specs = {0};
    b->aliases = aliases;
    decoder_read(config, &s);
    check_layers(config, s.layers);
    s.rope_count = 0;
    s.layer.alone = true;
    s.layer.attention.names = &attention;
    s.layer.attention.rope = GQA_NO_ROPE;
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    s.layer.mlp.bias = config_bool(config, "mlp_bias", false);
    specs.mlp = s.layer.mlp;
    specs.mlp.inter = config_i64(config, "intermediate_size", 21504, 1, 1 << 20);
    specs.mamba = (mamba_mixer_spec){.name = "mixer",
                                     .class_name = "NemotronHMamba2Mixer",
                                     .norm_class = "NemotronHRMSNormGated",
                                     .hidden = s.hidden,
                                     .eps = s.norm.eps,
                                     .act = parts_act(config, "mamba_hidden_act", "silu")};
    int64_t inner = config_i64(config, keys.heads, keys.default_heads, 1, 1 << 14) *
                    config_i64(config, keys.head, keys.default_head, 1, 1 << 12);
    mamba_mixer_read(config, &keys, inner, &specs.mamba);
    specs.mamba.least = config_f64(config, "time_step_min", 0.001); /* of time_step_limit the class reads nothing */
    specs.mamba.limit = FLT_MAX;
    specs.mamba.in_bias = specs.mamba.out_bias = config_bool(config, "use_bias", false);
    read_experts(config, &s, &specs);
    s.layer.mixer_spec = &specs;
    return decoder_build(b, config, &s);
}

const model_arch nemotron_h_arch = {"nemotron_h", "NemotronHForCausalLM", build, NULL};
