/* modeling_glm4_moe: Glm4MoeForCausalLM. Experts chosen by sigmoid scores and a correction bias, in f32, with a shared
 * MLP beside them in all but the first layers; half of each head is rotated. */
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("glm4_moe", "Glm4Moe")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Glm4Moe", "MoE", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "Glm4Moe"),
                                      .correction = "e_score_correction_bias"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    routed_first_dense(config, i, 1, layer);
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .partial = 0.5, .kv_heads = 8, .differ = differ};
    moe_parts_spec experts = {.names = &names,
                              .experts = 128,
                              .top_k = 8,
                              .inter = 1408,
                              .shared_inter = 1,
                              .scale = 1,
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = config_bool(config, "use_qk_norm", false) ? &s.norm : NULL;
    routed_sigmoid(config, &s, &experts);
    return decoder_build(b, config, &s);
}

const model_arch glm4_moe_arch = {"glm4_moe", "Glm4MoeForCausalLM", build, NULL};
