/* modeling_exaone_moe: ExaoneMoeForCausalLM. Where layers have a window, only those rotate; experts by sigmoid scores
 * and a correction bias, in f32, with a shared MLP beside them in all but the first layers. */
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("exaone_moe", "ExaoneMoe")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("ExaoneMoe", "SparseMoEBlock", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "ExaoneMoe"),
                                      .correction = "e_score_correction_bias", .correction_of_block = true};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    gqa_spec *attention = &layer->attention;
    routed_by_type(config, i, 1, layer);
    if (attention->window && !decoder_slides_by(config, i, 4)) {
        attention->window = 0;
        attention->rope = GQA_NO_ROPE;
    }
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .kv_heads = 32, .differ = differ};
    moe_parts_spec experts = {.names = &names,
                              .experts = 64,
                              .top_k = 8,
                              .inter = 1024,
                              .shared_inter = 1,
                              .scale = 2.5,
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    s.layer.attention.head_norm = &s.norm;
    s.layer.attention.window = decoder_window(config, 4096);
    routed_sigmoid(config, &s, &experts);
    return decoder_build(b, config, &s);
}

const model_arch exaone_moe_arch = {"exaone_moe", "ExaoneMoeForCausalLM", build, NULL};
