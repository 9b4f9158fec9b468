/* modeling_bloom: BloomForCausalLM. No positions but ALiBi, a norm of the embedding, LayerNorm, q, k and v of each head
 * side by side; published files leave the prefix out. */
#include "models/embed_stage.h"

static const decoder_classes classes = {.scope = "modeling_bloom",
                                        .model = "BloomModel",
                                        .layer = "BloomBlock",
                                        .attention = "BloomAttention",
                                        .mlp = "BloomMLP",
                                        .norm = "LayerNorm"};

static const decoder_names names = {
    .embed = "word_embeddings", .layers = "h", .hidden_key = "n_embed", .layers_key = "n_layer", .heads_key = "n_head"};
static const gqa_names attention_names = {.module = "self_attention", .qkv = "query_key_value", .o = "dense"};
static const parts_mlp_names mlp_names = {.up = "dense_h_to_4h", .down = "dense_4h_to_h"};
static const build_alias aliases[] = {{"transformer.", ""}, {0}};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .no_padding = true,
                      .name = "transformer",
                      .names = &names,
                      .eps_key = "layer_norm_epsilon",
                      .final_norm = "ln_f",
                      .norm = {.eps = 1e-5, .layer_norm = true, .bias = true},
                      .ignore_head_dim = true,
                      .no_intermediate = true,
                      .inter_times = 4,
                      .tied = true,
                      .context = config_i64(config, "seq_length", 2048, 1, INT32_MAX),
                      .normed_residual = config_bool(config, "apply_residual_connection_post_layernorm", false)};
    decoder_read(config, &s);
    embed_stage_spec stage = {.hidden = s.hidden, .norm = "word_embeddings_layernorm", .norm_kind = &s.norm};
    s.first = &embed_stage;
    s.stage_spec = &stage;
    s.rope_count = 0;
    gqa_spec *attention = &s.layer.attention;
    attention->names = &attention_names;
    attention->by_head = attention->fused = attention->qkv_bias = attention->o_bias = true;
    attention->rope = GQA_NO_ROPE;
    attention->alibi = TN_F32;
    attention->alibi_scale = 1;
    s.layer.mlp.act = TN_ACT_GELU_NEW;
    s.layer.mlp.bias = true;
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    s.layer.mlp.names = &mlp_names;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch bloom_arch = {"bloom", "BloomForCausalLM", build, NULL};
