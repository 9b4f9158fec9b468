/* modeling_dots1: Dots1ForCausalLM. Qwen3's attention; experts by sigmoid scores and a correction bias, in f32, with a
 * shared MLP beside them in all but the first layers. */
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("dots1", "Dots1")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Dots1", "MoE", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "Dots1"),
                                      .correction = "e_score_correction_bias"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    routed_first_dense(config, i, 0, layer);
    if (!decoder_slides(config, i, i >= config_i64(config, "max_window_layers", 62, 0, INT32_MAX)))
        layer->attention.window = 0;
}

/* A published file has the word of its method of balancing there. */
static const config_word scores[] = {{"sigmoid", TN_SCORE_SIGMOID}, {"noaux_tc", TN_SCORE_SIGMOID}, {0}};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .kv_heads = 32, .differ = differ};
    moe_parts_spec experts = {.names = &names,
                              .route_features = TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING,
                              .f32_correction = true,
                              .inter = 1408,
                              .scale = 1,
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    s.layer.attention.window = decoder_window(config, 4096);
    experts.route_features |= config_bool(config, "norm_topk_prob", false) ? TN_HAS_RENORM : 0;
    experts.score = (tn_score)config_choice(config, "scoring_func", "sigmoid", scores);
    routed_read(config, &s, &experts);
    return decoder_build(b, config, &s);
}

const model_arch dots1_arch = {"dots1", "Dots1ForCausalLM", build, NULL};
