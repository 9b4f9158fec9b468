/* modeling_gpt2: GPT2LMHeadModel. Learnt positions, LayerNorm, matrices as [in,out], an MLP without a gate; published
 * files leave the prefix out and have masks. */
#include "models/embed_stage.h"

static const decoder_classes classes = {.scope = "modeling_gpt2",
                                        .model = "GPT2Model",
                                        .layer = "GPT2Block",
                                        .attention = "GPT2Attention",
                                        .mlp = "GPT2MLP",
                                        .norm = "LayerNorm"};

static const decoder_names names = {.embed = "wte",
                                    .layers = "h",
                                    .hidden_key = "n_embd",
                                    .layers_key = "n_layer",
                                    .heads_key = "n_head",
                                    .inter_key = "n_inner"};
static const gqa_names attention_names = {.module = "attn", .qkv = "c_attn", .o = "c_proj"};
static const parts_mlp_names mlp_names = {.up = "c_fc", .down = "c_proj"};
static const build_alias aliases[] = {{"transformer.", ""}, {0}};

/* Deeper layers' scores may be divided by their number. */
static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (config_bool(config, "scale_attn_by_inverse_layer_idx", false))
        layer->attention.scale /= (double)(i + 1);
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .no_padding = true,
                      .name = "transformer",
                      .names = &names,
                      .act_key = "activation_function",
                      .act = "gelu_new",
                      .eps_key = "layer_norm_epsilon",
                      .final_norm = "ln_f",
                      .norm = {.eps = 1e-5, .layer_norm = true, .bias = true},
                      .norms = {.attention = "ln_1", .mlp = "ln_2"},
                      .ignore_head_dim = true,
                      .no_intermediate = true,
                      .inter_times = 4,
                      .tied = true,
                      .differ = differ};
    decoder_read(config, &s);
    s.rope_count = 0;
    s.context = decoder_positions(config, 1024);
    s.learnt.count = s.context;
    embed_stage_spec stage = {
        .hidden = s.hidden, .positions = "wpe", .positions_class = "Embedding", .learnt = s.learnt};
    s.first = &embed_stage;
    s.stage_spec = &stage;
    gqa_spec *attention = &s.layer.attention;
    attention->names = &attention_names;
    attention->linear = s.layer.mlp.linear = &parts_conv1d;
    attention->fused = attention->qkv_bias = attention->o_bias = s.layer.mlp.bias = true;
    attention->rope = GQA_NO_ROPE;
    if (!config_bool(config, "scale_attn_weights", true))
        attention->scale = 1;
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    s.layer.mlp.names = &mlp_names;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch gpt2_arch = {"gpt2", "GPT2LMHeadModel", build, NULL};
