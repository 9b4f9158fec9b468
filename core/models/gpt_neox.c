/* modeling_gpt_neox: GPTNeoXForCausalLM. Halves side by side, each behind its LayerNorm, or one after the other; a part
 * of a head is rotated; q, k and v of each head side by side. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_gpt_neox",
                                        .model = "GPTNeoXModel",
                                        .layer = "GPTNeoXLayer",
                                        .attention = "GPTNeoXAttention",
                                        .mlp = "GPTNeoXMLP",
                                        .norm = "LayerNorm",
                                        .rotary = "GPTNeoXRotaryEmbedding"};

static const decoder_names names = {.embed = "embed_in", .head = "embed_out"};
static const gqa_names attention_names = {.module = "attention", .qkv = "query_key_value", .o = "dense"};
static const parts_mlp_names mlp_names = {.up = "dense_h_to_4h", .down = "dense_4h_to_h"};
static const build_alias aliases[] = {{"gpt_neox.", ""}, {0}};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .no_padding = true,
                      .name = "gpt_neox",
                      .names = &names,
                      .act = "gelu",
                      .eps_key = "layer_norm_eps",
                      .final_norm = "final_layer_norm",
                      .norm = {.eps = 1e-5, .layer_norm = true, .bias = true},
                      .theta = config_f64(config, "rotary_emb_base", 10000),
                      .partial = config_f64(config, "rotary_pct", 0.25),
                      .ignore_head_dim = true,
                      .parallel = config_bool(config, "use_parallel_residual", true)};
    decoder_read(config, &s);
    gqa_spec *attention = &s.layer.attention;
    attention->names = &attention_names;
    attention->by_head = attention->fused = true;
    attention->qkv_bias = attention->o_bias = config_bool(config, "attention_bias", true);
    s.layer.mlp.bias = true;
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    s.layer.mlp.names = &mlp_names;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch gpt_neox_arch = {"gpt_neox", "GPTNeoXForCausalLM", build, NULL};
