/* modeling_gemma4: Gemma4ForCausalLM. Heads of another size in layers without a window, values that may be the keys,
 * keys and values shared by the last layers, inputs of each layer beside h, experts beside the MLP. */
#include "models/gemma4_parts.h"

#include <math.h>

static const decoder_classes classes = {.scope = "modeling_gemma4",
                                        .model = "Gemma4TextModel",
                                        .layer = "Gemma4TextDecoderLayer",
                                        .attention = "Gemma4TextAttention",
                                        .mlp = "Gemma4TextMLP",
                                        .norm = "Gemma4RMSNorm",
                                        .rotary = "Gemma4TextRotaryEmbedding",
                                        .embedding = "Gemma4TextScaledWordEmbedding"};

static const moe_parts_names names = {MOE_PARTS_STACKED, .router_class = "Gemma4TextRouter",
                                      .experts_class = "Gemma4TextExperts", .router_linear = "proj",
                                      .expert_scale = "per_expert_scale"};

/* Whatever the file says, the last layer has no window. */
static bool slides(const config_reader *config, int64_t i)
{
    bool last = i == config_i64(config, "num_hidden_layers", 0, 0, INT32_MAX) - 1;
    return decoder_slides(config, i, (i + 1) % 6 != 0) && !last;
}

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    gqa_spec *attention = &layer->attention;
    bool slide = slides(config, i);
    gemma_parts_layer_type(layer, slide);
    attention->k_is_v = attention->k_is_v && !slide;
    gemma4_parts_heads(config, i, slide, attention);
    gemma_parts_share(config, i, config_i64(config, "num_kv_shared_layers", 0, 0, INT32_MAX), slides, attention);
    if (attention->borrows && config_bool(config, "use_double_wide_mlp", false)) {
        layer->mlp.inter *= 2;
        layer->feed_spec = &((const gemma4_spec *)layer->feed_spec)[1];
    }
}

static moe_parts_spec read_experts(const config_reader *config, const decoder_spec *s)
{
    moe_parts_spec moe = {.names = &names, .hidden = s->hidden, .act = s->layer.mlp.act};
    moe.route_features = TN_HAS_RENORM | TN_HAS_F32_ROUTING;
    moe.experts = config_need_i64(config, "num_experts", 1, 1 << 16);
    moe.top_k = config_need_i64(config, "top_k_experts", 1, moe.experts > 0 ? moe.experts : 1);
    moe.inter = config_need_i64(config, "moe_intermediate_size", 1, 1 << 20);
    return moe;
}

/* The rotations, each with the heads of the first layer of its type. */
static void read_ropes(const config_reader *config, const rope_params *absent, decoder_spec *s)
{
    static const char *const variants[] = {"sliding_attention", "full_attention"};
    gemma_parts_ropes(s);
    for (int kind = GEMMA_LOCAL; kind <= GEMMA_GLOBAL; kind++) {
        decoder_rope *rope = &s->rope[kind];
        gqa_spec heads = s->layer.attention;
        gemma4_parts_heads_of_type(config, kind == GEMMA_LOCAL, slides, s->layers, &heads);
        rope->site = s->rope[GEMMA_LOCAL].site;
        rope->site.variant = variants[kind];
        rope->site.head_dim = rope->config.head_dim = heads.head_dim;
        rope->site.kv_heads = heads.kv_heads;
        rope->config.absent = kind == GEMMA_LOCAL ? NULL : absent;
    }
}

static void read_attention(const config_reader *config, const parts_norm_kind *v_norm, decoder_spec *s)
{
    gqa_spec *attention = &s->layer.attention;
    static const config_word attended[] = {{"vision", false}, {"all", true}, {0}};
    attention->scale = 1;
    attention->window = decoder_window(config, 512);
    attention->both_sides = config_choice(config, "use_bidirectional_attention", "vision", attended);
    if (attention->both_sides && attention->window) /* the file counts both sides, and its end, unlike Gemma 3's */
        attention->window = attention->window / 2 + 2;
    attention->head_norm = &s->norm;
    attention->v_norm = v_norm;
    attention->k_is_v = config_bool(config, "attention_k_eq_v", false);
    attention->qkv_bias = attention->o_bias = config_bool(config, "attention_bias", false);
}

static void *build(graph_builder *b, const config_reader *config)
{
    const rope_params absent = {.kind = ROPE_PROPORTIONAL, .theta = 1000000, .partial = 0.25, .factor = 1};
    decoder_spec s = {.classes = &classes,
                      .act_key = "hidden_activation",
                      .act = "gelu_pytorch_tanh",
                      .norm.variant = TN_NORM_W_F32,
                      .norms = {.attention = "input_layernorm",
                                .after_attention = "post_attention_layernorm",
                                .mlp = "pre_feedforward_layernorm",
                                .after_mlp = "post_feedforward_layernorm"},
                      .kv_heads = 4,
                      .head_dim = 256,
                      .tied = true,
                      .differ = differ};
    decoder_read(config, &s);
    parts_norm_kind plain = s.norm;
    plain.variant = TN_NORM_NO_WEIGHT;
    read_attention(config, &plain, &s);
    read_ropes(config, &absent, &s);
    s.embed_scale = sqrt((double)s.hidden);
    s.logit_softcap = decoder_positive(config, "final_logit_softcapping", 0);
    gemma4_spec spec[2] = {{.inputs = gemma4_parts_read_inputs(config, &s, classes.embedding), .mlp = s.layer.mlp}};
    spec[0].norm = &s.norm;
    spec[0].plain = &plain;
    if (config_bool(config, "enable_moe_block", false))
        spec[0].moe = read_experts(config, &s);
    spec[1] = spec[0];
    spec[1].mlp.inter *= 2;
    s.layer.feed = spec->moe.experts > 0 ? &gemma4_parts_feed : NULL;
    s.layer.tail = &gemma4_parts_tail;
    s.first = spec->inputs.width > 0 ? &gemma4_parts_first : NULL;
    s.layer.feed_spec = s.layer.tail_spec = s.stage_spec = spec;
    return decoder_build(b, config, &s);
}

const model_arch gemma4_text_arch = {"gemma4_text", "Gemma4ForCausalLM", build, NULL};
