/* modeling_solar_open: SolarOpenForCausalLM. Experts in every layer by sigmoid scores and a correction bias, in f32,
 * with a shared MLP beside them. */
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES_SPARSE("solar_open", "SolarOpen")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("SolarOpen", "MoE", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "SolarOpen"),
                                      .correction = "e_score_correction_bias"};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .norm.eps = 1e-5,
                      .theta = 1e6,
                      .partial = 1,
                      .kv_heads = 8,
                      .head_dim = 128,
                      .no_intermediate = true};
    moe_parts_spec experts = {.names = &names,
                              .experts = 128,
                              .top_k = 8,
                              .inter = 1280,
                              .shared_inter = 1,
                              .scale = 1,
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = config_bool(config, "attention_bias", false);
    routed_sigmoid(config, &s, &experts);
    return decoder_build(b, config, &s);
}

const model_arch solar_open_arch = {"solar_open", "SolarOpenForCausalLM", build, NULL};
