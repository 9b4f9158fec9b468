/* modeling_granitemoe: GraniteMoeForCausalLM. Granite with experts in every layer, chosen before the softmax; files
 * have all of them in two matrices. */
#include "models/granitemoe.h"

static const decoder_classes classes = {DECODER_CLASSES_SPARSE("granitemoe", "GraniteMoe")};

static const moe_parts_names names = {MOE_PARTS_STACKED, MOE_PARTS_CLASSES("GraniteMoe", "MoE", "TopKRouter")};

const build_alias granitemoe_aliases[] = {{".experts.gate_up_proj", ".input_linear.weight"},
                                          {".experts.down_proj", ".output_linear.weight"},
                                          {".router.weight", ".router.layer.weight"},
                                          {0}};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.mlp_name = "block_sparse_moe";
    decoder_granite_factors(config, &s);
    s.layer.moe = decoder_experts(config, &s, &names, 8, 2);
    s.layer.moe.score = TN_SCORE_TOPK_SOFTMAX;
    b->aliases = granitemoe_aliases;
    return decoder_build(b, config, &s);
}

const model_arch granitemoe_arch = {"granitemoe", "GraniteMoeForCausalLM", build, NULL};
