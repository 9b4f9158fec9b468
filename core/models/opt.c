/* modeling_opt: OPTForCausalLM. Learnt positions behind two that stand for nothing, LayerNorm before the halves or of
 * the sums behind them, an MLP without a module of its own; the embedding may be narrower than the layers. */
#include "models/embed_stage.h"

static const decoder_classes classes = {.scope = "modeling_opt",
                                        .model = "OPTDecoder",
                                        .layer = "OPTDecoderLayer",
                                        .attention = "OPTAttention",
                                        .norm = "LayerNorm"};

static const decoder_names names = {.inter_key = "ffn_dim"};
static const gqa_names attention_names = {
    .module = "self_attn", .q = "q_proj", .k = "k_proj", .v = "v_proj", .o = "out_proj"};
static const parts_mlp_names mlp_names = {.up = "fc1", .down = "fc2"};

enum { OFFSET = 2 }; /* of a table's rows                                                          */

static void read_norms(const config_reader *config, decoder_spec *s)
{
    bool before = config_bool(config, "do_layer_norm_before", true);
    s->norms = (decoder_norms){.attention = "self_attn_layer_norm", .mlp = "final_layer_norm"};
    if (!before)
        s->norms =
            (decoder_norms){.after_attention = "self_attn_layer_norm", .after_mlp = "final_layer_norm", .sums = true};
    s->final_norm = before && !config_bool(config, "_remove_final_layer_norm", false) ? "final_layer_norm" : "";
    s->norm = (parts_norm_kind){.eps = 1e-5,
                                .layer_norm = true,
                                .bias = true,
                                .plain = !config_bool(config, "layer_norm_elementwise_affine", true)};
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .parent = build_module(b, b->graph->root, "model", "OPTModel"),
                      .name = "decoder",
                      .names = &names,
                      .act_key = "activation_function",
                      .act = "relu",
                      .ignore_head_dim = true,
                      .context = decoder_positions(config, 2048),
                      .tied = true};
    read_norms(config, &s);
    decoder_read(config, &s);
    s.rope_count = 0;
    s.learnt = (learnt_positions){s.context + OFFSET, OFFSET};
    s.embed_width = config_i64(config, "word_embed_proj_dim", s.hidden, 1, 1 << 20);
    bool narrow = s.embed_width != s.hidden, bias = config_bool(config, "enable_bias", true);
    embed_stage_spec stage = {.hidden = s.hidden,
                              .projection = narrow ? "project_in" : NULL,
                              .width = s.embed_width,
                              .positions = "embed_positions",
                              .positions_class = "OPTLearnedPositionalEmbedding",
                              .learnt = s.learnt};
    s.first = &embed_stage;
    s.stage_spec = &stage;
    s.head_in = narrow ? "project_out" : NULL;
    gqa_spec *attention = &s.layer.attention;
    attention->names = &attention_names;
    attention->rope = GQA_NO_ROPE;
    attention->qkv_bias = attention->o_bias = s.layer.mlp.bias = bias;
    s.layer.mlp_name = "";
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    s.layer.mlp.names = &mlp_names;
    return decoder_build(b, config, &s);
}

const model_arch opt_arch = {"opt", "OPTForCausalLM", build, NULL};
