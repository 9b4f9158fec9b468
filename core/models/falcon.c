/* modeling_falcon: FalconForCausalLM. Four designs by their keys: one key head for all queries (7B), groups of queries
 * with their key and value side by side, with two norms (40B) or one (11B) before both halves, and ALiBi with one half
 * after the other (RW). */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_falcon",
                                        .model = "FalconModel",
                                        .layer = "FalconDecoderLayer",
                                        .attention = "FalconAttention",
                                        .mlp = "FalconMLP",
                                        .norm = "LayerNorm",
                                        .rotary = "FalconRotaryEmbedding"};

static const decoder_names names = {.embed = "word_embeddings",
                                    .layers = "h",
                                    .hidden_key = "n_embed",
                                    .layers_key = "n_layer",
                                    .heads_key = "n_head",
                                    .inter_key = "ffn_hidden_size"};
static const gqa_names attention_names = {.module = "self_attention", .qkv = "query_key_value", .o = "dense"};
static const parts_mlp_names mlp_names = {.up = "dense_h_to_4h", .down = "dense_4h_to_h"};
static const build_alias aliases[] = {{"transformer.", ""}, {0}};

static decoder_norms read_norms(const config_reader *config, bool grouped, bool parallel)
{
    int64_t count = config_i64(config, "num_ln_in_parallel_attn", grouped ? 2 : 1, 1, 2);
    if (grouped && !parallel)
        config_fail(config, "parallel_attn", "is false, which new_decoder_architecture does not go with");
    if (parallel && count == 2 && !grouped)
        config_fail(config, "num_ln_in_parallel_attn", "is 2, which needs new_decoder_architecture");
    if (parallel && count == 2)
        return (decoder_norms){.attention = "ln_attn", .mlp = "ln_mlp"};
    return (decoder_norms){.attention = "input_layernorm", .mlp = parallel ? NULL : "post_attention_layernorm"};
}

/* Slopes times positions are rounded to bf16 whatever the model's type is, and divided with the scores. */
static void use_alibi(decoder_spec *s)
{
    s->rope_count = 0;
    s->layer.attention.rope = GQA_NO_ROPE;
    s->layer.attention.alibi = TN_BF16;
    s->layer.attention.alibi_scale = s->layer.attention.scale;
}

static void *build(graph_builder *b, const config_reader *config)
{
    bool grouped = config_bool(config, "new_decoder_architecture", false), bias = config_bool(config, "bias", false);
    bool parallel = config_bool(config, "parallel_attn", true), alibi = config_bool(config, "alibi", false);
    bool one_key = !grouped && config_bool(config, "multi_query", true);
    decoder_names keys = names;
    keys.kv_key = grouped ? "num_kv_heads" : NULL;
    decoder_spec s = {.classes = &classes,
                      .no_padding = true,
                      .name = "transformer",
                      .names = &keys,
                      .act_key = "activation",
                      .act = "gelu",
                      .eps_key = "layer_norm_epsilon",
                      .final_norm = "ln_f",
                      .norm = {.eps = 1e-5, .layer_norm = true, .bias = true},
                      .norms = read_norms(config, grouped, parallel),
                      .kv_heads = one_key ? 1 : 0,
                      .ignore_head_dim = true,
                      .no_intermediate = true,
                      .inter_times = 4,
                      .parallel = parallel,
                      .tied = true};
    decoder_read(config, &s);
    gqa_spec *attention = &s.layer.attention;
    attention->names = &attention_names;
    attention->by_head = attention->fused = true;
    attention->qkv_bias = attention->o_bias = s.layer.mlp.bias = bias;
    if (alibi)
        use_alibi(&s);
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    s.layer.mlp.names = &mlp_names;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch falcon_arch = {"falcon", "FalconForCausalLM", build, NULL};
