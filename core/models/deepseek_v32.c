/* modeling_deepseek_v32: DeepseekV32ForCausalLM. DeepSeek-V3 with an indexer in every layer, which chooses the keys
 * that take part in attention. */
#include "models/mla.h"
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("deepseek_v32", "DeepseekV32")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("DeepseekV32", "MoE", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "DeepseekV32"),
                                      .correction = "e_score_correction_bias"};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    routed_by_type(config, i, 3, layer);
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .ignore_head_dim = true, .differ = differ};
    mla_spec attention = {
        .q_rank = 1536, .kv_rank = 512, .nope = 128, .rope = 64, .v = 128, .indexer.class_name = "DeepseekV32Indexer"};
    moe_parts_spec experts = {.names = &names,
                              .experts = 256,
                              .top_k = 8,
                              .inter = 2048,
                              .shared_inter = 1,
                              .scale = 2.5,
                              .groups = 8,
                              .top_groups = 4};
    decoder_read(config, &s);
    mla_read_indexed(config, &s, &attention, 64, false);
    routed_sigmoid(config, &s, &experts);
    return decoder_build(b, config, &s);
}

const model_arch deepseek_v32_arch = {"deepseek_v32", "DeepseekV32ForCausalLM", build, NULL};
