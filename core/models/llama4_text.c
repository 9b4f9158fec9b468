/* modeling_llama4: Llama4ForCausalLM, the text model. Layers with a rotation see their chunk, the others everything,
 * with queries that grow with their position; experts get inputs times a sigmoid, beside a shared one. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("llama4", "Llama4Text")};

static const gqa_names attention_names = {"self_attn", "q_proj",  "k_proj",  "v_proj",
                                          "o_proj",    "qk_norm", "qk_norm", NULL};

static const moe_parts_names names = {MOE_PARTS_STACKED, MOE_PARTS_SHARED("shared_expert", "Llama4Text"),
                                      .block_class = "Llama4TextMoe", .router_class = "Llama4Router",
                                      .experts_class = "Llama4TextExperts"};

/* Does layer i rotate? */
static bool rotates(const config_reader *config, int64_t i)
{
    int64_t count = config_list(config, "no_rope_layers");
    int64_t interval = config_i64(config, "no_rope_layer_interval", 4, 1, INT32_MAX);
    if (count > 0 && i >= count)
        config_fail(config, "no_rope_layers", "has %lld entries, num_hidden_layers is larger", (long long)count);
    return count > 0 && i < count ? config_list_i64(config, "no_rope_layers", i) != 0 : (i + 1) % interval != 0;
}

static bool has_experts(const config_reader *config, int64_t i)
{
    int64_t step = config_i64(config, "interleave_moe_layer_step", 1, 1, INT32_MAX);
    if (config_list(config, "moe_layers") >= 0)
        return config_list_holds(config, "moe_layers", i);
    return (i + 1) % step == 0;
}

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    static const config_word types[] = {{"full_attention", false}, {"chunked_attention", true}, {0}};
    bool rope = rotates(config, i);
    if (!decoder_layer_type(config, i, types, rope))
        layer->attention.chunk = 0;
    layer->attention.scale_q = !rope && config_bool(config, "attn_temperature_tuning", true);
    if (!rope) {
        layer->attention.rope = GQA_NO_ROPE;
        layer->attention.head_norm = NULL;
    }
    if (!has_experts(config, i))
        layer->moe.experts = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes, .norm.eps = 1e-5, .theta = 5e5, .head_dim = 128, .kv_heads = 8, .differ = differ};
    decoder_read(config, &s);
    const parts_norm_kind qk_norm = {.class_name = "Llama4TextL2Norm", .variant = TN_NORM_NO_WEIGHT, .eps = s.norm.eps};
    gqa_spec *attention = &s.layer.attention;
    s.rope[0].site.style = TN_ROPE_COMPLEX;
    s.rope[0].site.function = "apply_rotary_emb";
    s.q_scale = (q_scale_params){.kind = Q_SCALE_COLUMN,
                                 .beta = config_f64(config, "attn_scale", 0.1),
                                 .span = decoder_positive(config, "floor_scale", 8192)};
    attention->names = &attention_names;
    attention->chunk = config_i64(config, "attention_chunk_size",
                                  config_is_null(config, "attention_chunk_size") ? 0 : 8192, 1, INT32_MAX);
    attention->qkv_bias = attention->o_bias = config_bool(config, "attention_bias", false);
    attention->head_norm = config_bool(config, "use_qk_norm", true) ? &qk_norm : NULL;
    attention->norm_last = true;
    s.layer.mlp_name = "feed_forward";
    s.layer.moe = decoder_experts_of(config, &s, &names, "num_local_experts", 16, "num_experts_per_tok", 1);
    s.layer.moe.score = TN_SCORE_TOPK_SIGMOID;
    s.layer.moe.route_features = TN_HAS_INPUT_SCALE;
    s.layer.moe.stacked = TN_LAYOUT_STACKED_IO;
    s.layer.moe.shared_inter = s.layer.moe.inter;
    s.layer.mlp.inter = config_i64(config, "intermediate_size_mlp", 16384, 1, 1 << 20);
    return decoder_build(b, config, &s);
}

const model_arch llama4_text_arch = {"llama4_text", "Llama4ForCausalLM", build, NULL};
