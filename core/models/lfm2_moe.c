/* modeling_lfm2_moe: Lfm2MoeForCausalLM. LFM2's convolutions and attention; behind the first layers experts by sigmoid
 * scores, chosen with a bias. */
#include "models/lfm2.h"

static const decoder_classes classes = {DECODER_CLASSES("lfm2_moe", "Lfm2Moe")};

static const moe_parts_names biased = {MOE_PARTS_NUMBERED, MOE_PARTS_CLASSES("Lfm2Moe", "SparseMoeBlock", "TopKRouter"),
                                       .correction = "expert_bias", .correction_of_block = true};
static const moe_parts_names plain = {MOE_PARTS_NUMBERED, MOE_PARTS_CLASSES("Lfm2Moe", "SparseMoeBlock", "TopKRouter")};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    lfm2_differ(config, i, layer);
    if (i < config_i64(config, "num_dense_layers", 2, 0, INT32_MAX))
        layer->moe.experts = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .differ = differ};
    gated_conv_spec conv;
    lfm2_read(config, "Lfm2MoeShortConv", &s, &conv);
    moe_parts_spec *moe = &s.layer.moe;
    *moe = decoder_experts(config, &s, config_bool(config, "use_expert_bias", true) ? &biased : &plain, 32, 4);
    moe->inter = config_i64(config, "moe_intermediate_size", 1792, 1, 1 << 20);
    moe->score = TN_SCORE_SIGMOID;
    moe->scale = config_f64(config, "routed_scaling_factor", 1);
    moe->least_sum = 1e-6;
    moe->f32_correction = true;
    moe->route_features = config_bool(config, "norm_topk_prob", true) ? TN_HAS_RENORM : 0;
    return decoder_build(b, config, &s);
}

const model_arch lfm2_moe_arch = {"lfm2_moe", "Lfm2MoeForCausalLM", build, NULL};
