/* modeling_mimo_v2_flash: MiMoV2FlashForCausalLM. Layers with a window have twice the key heads, sinks, and a rotation
 * of their own; heads of values are narrower than those of keys, and scaled; experts by sigmoid scores and a correction
 * bias, in f32, in all but the first layer. */
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("mimo_v2_flash", "MiMoV2Flash")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("MiMoV2Flash", "MoE", "TopkRouter"),
                                      .correction = "e_score_correction_bias"};

static const build_alias aliases[] = {{".self_attn.sinks", ".self_attn.attention_sink_bias"}, {0}};

enum { FULL, SLIDING };

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    gqa_spec *attention = &layer->attention;
    routed_by_type(config, i, 1, layer);
    if (decoder_slides(config, i, i > 0 && (i + 1) % 6 != 0)) {
        attention->rope = SLIDING;
        attention->kv_heads *= 2;
        attention->sinks = true;
    } else {
        attention->window = 0;
    }
}

/* Both with the same defaults but for theta. */
static void read_ropes(decoder_spec *s)
{
    static const char *const types[] = {"full_attention", "sliding_attention"};
    static const double thetas[] = {5e6, 1e4};
    s->rope[SLIDING] = s->rope[FULL];
    s->rope[SLIDING].site.kv_heads *= 2;
    for (int kind = FULL; kind <= SLIDING; kind++) {
        s->rope[kind].site.variant = s->rope[kind].config.layer_type = types[kind];
        s->rope[kind].config.theta = thetas[kind];
    }
    s->rope_count = 2;
}

static void read_attention(const config_reader *config, decoder_spec *s)
{
    gqa_spec *attention = &s->layer.attention;
    /* The file of the Hub counts the keys before the query. */
    const char *before = "sliding_window_size";
    attention->window =
        config_has(config, before) ? config_i64(config, before, 0, 1, INT32_MAX - 1) + 1 : decoder_window(config, 129);
    attention->qkv_bias = config_bool(config, "attention_bias", false);
    attention->v_dim = config_i64(config, "v_head_dim", 128, 1, ROPE_MAX_DIM);
    attention->v_scale = decoder_positive(config, "attention_value_scale", 0.707);
    if (attention->heads % (2 * attention->kv_heads))
        config_fail(config, "num_attention_heads", "is %lld, no multiple of twice num_key_value_heads %lld",
                    (long long)attention->heads, (long long)attention->kv_heads);
    read_ropes(s);
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes, .norm.eps = 1e-5, .head_dim = 192, .kv_heads = 4, .partial = 0.334, .differ = differ};
    moe_parts_spec experts = {
        .names = &names, .experts = 256, .top_k = 8, .inter = 2048, .scale = 1, .groups = 1, .top_groups = 1};
    decoder_read(config, &s);
    read_attention(config, &s);
    routed_sigmoid(config, &s, &experts);
    s.layer.moe.shared_inter = 0; /* the class has none, whatever the file says                      */
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch mimo_v2_flash_arch = {"mimo_v2_flash", "MiMoV2FlashForCausalLM", build, NULL};
