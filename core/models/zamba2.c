/* modeling_zamba2: Zamba2ForCausalLM. Layers of a norm and the mixer of Mamba-2; the input of some is joined by what a
 * block of attention and MLP makes of the residual beside the token's embedding. Such blocks are few: layers take them
 * in turn, each with adapters of its own. */
#include "models/decoder.h"
#include "models/mamba_mixer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

static const decoder_classes classes = {.scope = "modeling_zamba2",
                                        .model = "Zamba2Model",
                                        .layer = "Zamba2MambaDecoderLayer",
                                        .attention = "Zamba2Attention",
                                        .mlp = "Zamba2MLP",
                                        .norm = "Zamba2RMSNorm",
                                        .rotary = "Zamba2RotaryEmbedding"};

static const mamba_mixer_keys keys = {.heads = "n_mamba_heads",
                                      .head = "mamba_headdim",
                                      .groups = "mamba_ngroups",
                                      .state = "mamba_d_state",
                                      .taps = "mamba_d_conv",
                                      .expand = "mamba_expand",
                                      .conv_bias = "use_conv_bias",
                                      .default_heads = 8,
                                      .default_groups = 1,
                                      .default_state = 64};

/* ---- which layers have a block, and which ------------------------------------------------------------------------ */

static bool is_hybrid(const config_reader *config, int64_t i)
{
    static const config_word words[] = {{"mamba", false}, {"linear_attention", false}, {"hybrid", true}, {0}};
    const char *key = config_either(config, "layers_block_type", "layer_types");
    if (config_list(config, key) >= 0)
        return config_list_choice(config, key, i, words) != 0;
    return (i > 0 && i <= 42 && i % 6 == 0) || i == 47 || i == 51;
}

/* How many of the layers before this one have a block. */
static int64_t hybrids_before(const config_reader *config, int64_t layer)
{
    int64_t count = 0;
    for (int64_t i = 0; i < layer; i++)
        count += is_hybrid(config, i);
    return count;
}

/* The layer with that many such before it; after an error, layers. */
static int64_t nth_hybrid(const config_reader *config, int64_t n, int64_t layers)
{
    int64_t i = 0;
    while (i < layers && !(is_hybrid(config, i) && n-- == 0))
        i++;
    return i;
}

/* ---- a layer with a block ---------------------------------------------------------------------------------------- */

typedef struct hybrid_spec {
    const config_reader *config;
    const parts_norm_kind *norm;
    mamba_mixer_spec mamba;
    int64_t layers, blocks;
} hybrid_spec;

typedef struct hybrid {
    graph_site *norm, *feed_norm, *gate_up, *down, *linear, *mamba_norm;
    adapter adapter; /* of gate_up                                                                   */
    tn_site *glu, *copy;
    gqa attention;
    mamba_mixer_state mamba;
} hybrid;

static void build_feed(graph_builder *b, graph_module *block, const decoder_layer_spec *of, hybrid *l)
{
    const parts_mlp_spec *mlp = &of->mlp;
    graph_module *m = build_module(b, block, "feed_forward", mlp->class_name);
    l->gate_up = parts_linear(b, m, "gate_up_proj", mlp->hidden, 2 * mlp->inter, mlp->bias, NULL);
    l->down = parts_linear(b, m, "down_proj", mlp->inter, mlp->hidden, mlp->bias, NULL);
    adapter_build(b, m, "gate_up_proj_adapter_list", of->attention.adapter, mlp->hidden, of->attention.adapter_rank,
                  2 * mlp->inter, &l->adapter);
    l->glu = parts_act_step(b, m, TN_OP_GLU, mlp->act, mlp->inter);
}

/* The file has a block's tensors once, under the name of the first layer that uses it. */
static void build_block(graph_builder *b, graph_module *layer, const decoder_layer_spec *of, hybrid *l)
{
    const hybrid_spec *s = of->whole_spec;
    char tree[64], file[64];
    snprintf(tree, sizeof tree, "layers.%s.shared_transformer.", layer->name);
    snprintf(file, sizeof file, "layers.%lld.shared_transformer.",
             (long long)nth_hybrid(s->config, of->attention.adapter % s->blocks, s->layers));
    const build_alias shared[] = {{tree, file}, {0}}, *const outer = b->aliases;
    b->aliases = shared;
    graph_module *m = build_module(b, layer, "shared_transformer", "Zamba2AttentionDecoderLayer");
    gqa_build(b, m, &of->attention, &l->attention);
    build_feed(b, m, of, l);
    l->norm = parts_norm(b, m, "input_layernorm", s->norm, of->attention.hidden, false);
    l->feed_norm = parts_norm(b, m, "pre_ff_layernorm", s->norm, of->mlp.hidden, false);
    b->aliases = outer;
}

static void hybrid_build(graph_builder *b, graph_module *layer, const decoder_layer_spec *of, void *state,
                         model_layer *cache)
{
    const hybrid_spec *s = of->whole_spec;
    hybrid *l = state;
    if (!layer)
        return;
    l->linear = parts_linear(b, layer, "linear", s->mamba.hidden, s->mamba.hidden, false, NULL);
    graph_module *m = build_module(b, layer, "mamba_decoder", classes.layer);
    mamba_mixer.build(b, m, &s->mamba, &l->mamba);
    l->mamba_norm = parts_norm(b, m, "input_layernorm", s->norm, s->mamba.hidden, false);
    build_block(b, layer, of, l);
    l->copy = build_step(b, layer, TN_OP_COPY, s->mamba.hidden);
    *cache = mamba_mixer_beside(&s->mamba, gqa_cache(b, &of->attention));
}

/* The block over [h, embedding], [T,2H] to [T,H]. */
static tn_tensor run_block(graph_run *r, const hybrid *l, const mixer_place *at, const tn_tensor *h)
{
    int64_t width = h->shape[1];
    tn_tensor both = steps_take(r, r->dtype, 2, (int64_t[]){h->shape[0], 2 * width});
    tn_tensor left = steps_columns(&both, 0, width), right = steps_columns(&both, width, width);
    steps_copy(r, l->copy, h, &left);
    steps_copy(r, l->copy, &r->layer_inputs, &right);
    steps_norm_in_place(r, l->norm, &both);
    tn_tensor x = gqa_forward(r, &l->attention, at, &both);
    steps_norm_in_place(r, l->feed_norm, &x);
    tn_tensor all = adapter_linear(r, l->gate_up, &l->adapter, &x);
    int64_t inter = all.shape[1] / 2;
    tn_tensor gate = steps_columns(&all, 0, inter), up = steps_columns(&all, inter, inter);
    steps_glu(r, l->glu, &gate, &up);
    return steps_linear(r, l->down, &up);
}

static void hybrid_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *h)
{
    const hybrid *l = state;
    tn_tensor block = run_block(r, l, at, h), x = steps_linear(r, l->linear, &block);
    steps_add(r, &x, h);
    steps_norm_in_place(r, l->mamba_norm, &x);
    tn_tensor mixed = mamba_mixer.forward(r, &l->mamba, at, &x);
    steps_add(r, h, &mixed);
}

static const layer_kind hybrid_layer = {sizeof(hybrid), hybrid_build, hybrid_forward};

/* ---- the embedding, which blocks see as it was ------------------------------------------------------------------- */

typedef struct kept {
    tn_site *copy;
} kept;

static void kept_build(graph_builder *b, graph_module *model, const void *spec, void *state)
{
    ((kept *)state)->copy = build_step(b, model, TN_OP_COPY, *(const int64_t *)spec);
}

static tn_tensor kept_forward(graph_run *r, const void *state, const tn_tensor *h)
{
    r->layer_inputs = steps_take(r, r->dtype, 2, h->shape);
    steps_copy(r, ((const kept *)state)->copy, h, &r->layer_inputs);
    return *h;
}

static const stage_kind keep_embedding = {sizeof(kept), kept_build, kept_forward};

/* ---- the model ------------------------------------------------------------------------------------------------- */

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (!is_hybrid(config, i))
        return;
    layer->class_name = "Zamba2HybridLayer";
    layer->whole = &hybrid_layer;
    layer->attention.adapter = hybrids_before(config, i);
}

static void check_layers(const config_reader *config, int64_t layers)
{
    const char *key = config_either(config, "layers_block_type", "layer_types");
    int64_t has = config_list(config, key);
    has = has < 0 ? 54 : has;
    if (has != layers)
        config_fail(config, "num_hidden_layers", "is %lld, %s has %lld", (long long)layers, key, (long long)has);
}

/* Heads share the width of residual and embedding. */
static void read_attention(const config_reader *config, decoder_spec *s)
{
    static const char *const adapters[] = {"linear_q_adapter_list", "linear_k_adapter_list", "linear_v_adapter_list"};
    gqa_spec *a = &s->layer.attention;
    a->hidden = 2 * s->hidden;
    a->out = s->hidden;
    a->head_dim = a->hidden / a->heads;
    a->scale = 1 / sqrt((double)a->head_dim / 2);
    a->adapter_rank = config_i64(config, "adapter_rank", 128, 1, 1 << 20);
    if (a->hidden % a->heads)
        config_fail(config, "num_attention_heads", "is %lld, which %lld, twice hidden_size, is no multiple of",
                    (long long)a->heads, (long long)a->hidden);
    if (config_bool(config, "use_shared_attention_adapter", false)) {
        a->adapters = adapters;
        if (a->kv_heads != a->heads)
            config_fail(config, "num_key_value_heads",
                        "is %lld: with use_shared_attention_adapter it must be num_attention_heads, %lld",
                        (long long)a->kv_heads, (long long)a->heads);
    }
    if (config_bool(config, "use_long_context", false))
        s->context = s->rope[0].config.positions = 16384;
    s->rope[0].site.head_dim = s->rope[0].config.head_dim = a->head_dim;
    if (!config_bool(config, "use_mem_rope", false)) {
        a->rope = GQA_NO_ROPE;
        s->rope_count = 0;
    }
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .act = "gelu",
                      .norm.eps = 1e-5,
                      .norms.attention = "input_layernorm",
                      .final_norm = "final_layernorm",
                      .ignore_head_dim = true,
                      .no_intermediate = true,
                      .inter_times = 4,
                      .tied = true,
                      .first = &keep_embedding,
                      .differ = differ};
    decoder_read(config, &s);
    check_layers(config, s.layers);
    read_attention(config, &s);
    bool bias = s.layer.mlp.bias = config_bool(config, "add_bias_linear", false);
    hybrid_spec hybrid = {.config = config,
                          .norm = &s.norm,
                          .layers = s.layers,
                          .blocks = config_i64(config, "num_mem_blocks", 1, 1, 1 << 12),
                          .mamba = {.class_name = "Zamba2MambaMixer",
                                    .norm_class = "Zamba2RMSNormGated",
                                    .hidden = s.hidden,
                                    .eps = 1e-5,
                                    .act = TN_ACT_SILU,
                                    .in_bias = bias,
                                    .out_bias = bias}};
    mamba_mixer_read(config, &keys, 0, &hybrid.mamba);
    hybrid.mamba.conv_bias = true; /* whatever the key says                                           */
    hybrid.mamba.least = config_f64(config, "time_step_min", 0.001);
    hybrid.mamba.limit = FLT_MAX;
    s.layer.alone = true;
    s.layer.mixer = &mamba_mixer;
    s.layer.mixer_spec = &hybrid.mamba;
    s.layer.whole_spec = &hybrid;
    s.stage_spec = &s.hidden;
    return decoder_build(b, config, &s);
}

const model_arch zamba2_arch = {"zamba2", "Zamba2ForCausalLM", build, NULL};
