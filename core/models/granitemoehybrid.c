/* modeling_granitemoehybrid: GraniteMoeHybridForCausalLM. Granite with the mixer of Mamba-2 in most layers, and experts
 * beside an MLP that all tokens share, or that MLP alone. */
#include "models/granitemoe.h"
#include "models/mamba_mixer.h"

#include <string.h>

static const decoder_classes classes = {DECODER_CLASSES("granitemoehybrid", "GraniteMoeHybrid")};

static const moe_parts_names names = {MOE_PARTS_STACKED, MOE_PARTS_CLASSES("GraniteMoeHybrid", "MoE", "TopKRouter")};
static const parts_mlp_names shared_names = {.gate = "input_linear", .down = "output_linear"};

/* ---- experts and the shared MLP ---------------------------------------------------------------------------------- */

typedef struct pair_spec {
    moe_parts_spec moe;
    parts_mlp_spec shared;
} pair_spec;

typedef struct pair {
    graph_site *moe, *shared;
} pair;

static void pair_build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    const pair_spec *s = spec;
    pair *p = state;
    p->shared = parts_mlp(b, layer, "shared_mlp", &s->shared, NULL);
    p->moe = moe_parts_block(b, layer, "block_sparse_moe", &s->moe);
}

static void pair_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *h, const tn_tensor *x,
                         const tn_tensor *y)
{
    const pair *p = state;
    tn_tensor shared = steps_take(r, r->dtype, 2, x->shape);
    (void)at;
    (void)h;
    steps_mlp(r, p->moe, x, y);
    steps_mlp(r, p->shared, x, &shared);
    steps_add(r, y, &shared);
}

static const feed_kind experts_and_shared = {sizeof(pair), pair_build, pair_forward};

/* ---- the model ------------------------------------------------------------------------------------------------- */

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    static const config_word types[] = {
        {"attention", false}, {"full_attention", false}, {"mamba", true}, {"linear_attention", true}, {0}};
    if (!decoder_layer_type(config, i, types, true))
        layer->mixer = NULL;
}

static void read_feed(const config_reader *config, decoder_spec *s, pair_spec *pair)
{
    parts_mlp_spec *mlp = &s->layer.mlp;
    s->layer.mlp_name = "shared_mlp";
    mlp->names = &shared_names;
    mlp->layout = TN_LAYOUT_GATE_UP;
    mlp->inter = config_i64(config, "shared_intermediate_size", 1024, 1, 1 << 20);
    if (config_i64(config, "num_local_experts", 8, 0, 1 << 16) == 0)
        return;
    pair->moe = decoder_experts(config, s, &names, 8, 2);
    pair->moe.inter = config_i64(config, "intermediate_size", 11008, 1, 1 << 20);
    pair->moe.score = TN_SCORE_TOPK_SOFTMAX;
    pair->shared = *mlp;
    s->layer.feed = &experts_and_shared;
    s->layer.feed_spec = pair;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .no_intermediate = true, .differ = differ};
    pair_spec pair = {0};
    b->aliases = granitemoe_aliases;
    decoder_read(config, &s);
    mamba_mixer_spec mixer = {.class_name = "GraniteMoeHybridMambaLayer",
                              .norm_class = "GraniteMoeHybridRMSNormGated",
                              .hidden = s.hidden,
                              .eps = s.norm.eps,
                              .act = s.layer.mlp.act};
    mamba_mixer_read(config, &mamba_mixer_usual, 0, &mixer);
    mixer.in_bias = mixer.out_bias = config_bool(config, "mamba_proj_bias", false);
    s.layer.mixer = &mamba_mixer;
    s.layer.mixer_spec = &mixer;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    decoder_granite_factors(config, &s);
    if (strcmp(config_str(config, "position_embedding_type", ""), "rope")) {
        rope_params unused; /* what is said of it must make sense all the same                        */
        rope_config_read(config, &s.rope[0].config, &unused);
        s.layer.attention.rope = GQA_NO_ROPE;
        s.rope_count = 0;
    }
    read_feed(config, &s, &pair);
    return decoder_build(b, config, &s);
}

const model_arch granitemoehybrid_arch = {"granitemoehybrid", "GraniteMoeHybridForCausalLM", build, NULL};
