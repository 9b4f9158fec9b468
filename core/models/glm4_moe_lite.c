/* modeling_glm4_moe_lite: Glm4MoeLiteForCausalLM. Latent attention; experts by sigmoid scores with a correction bias in
 * the layers that the file names. */
#include "models/mla.h"
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("glm4_moe_lite", "Glm4MoeLite")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Glm4MoeLite", "MoE", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "Glm4MoeLite"),
                                      .correction = "e_score_correction_bias"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    static const config_word types[] = {{"dense", false}, {"sparse", true}, {0}};
    bool listed = config_list(config, "mlp_layer_types") >= 0;
    if (!(listed ? config_list_choice(config, "mlp_layer_types", i, types) : i > 0))
        layer->moe.experts = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .partial = 1, .ignore_head_dim = true, .differ = differ};
    mla_spec attention = {.q_rank = 768, .kv_rank = 512, .nope = 192, .rope = 64, .v = 256};
    moe_parts_spec experts = {.names = &names,
                              .experts = 64,
                              .top_k = 4,
                              .inter = 1536,
                              .shared_inter = 1,
                              .scale = 1.8,
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    mla_read(config, &s, &attention);
    routed_sigmoid(config, &s, &experts);
    return decoder_build(b, config, &s);
}

const model_arch glm4_moe_lite_arch = {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", build, NULL};
