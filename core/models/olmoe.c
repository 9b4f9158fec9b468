/* modeling_olmoe: OlmoeForCausalLM. Softmax-routed experts in every layer; queries and keys are normed over all heads,
 * and with values cut off where the file says so. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES_SPARSE("olmoe", "Olmoe")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Olmoe", "SparseMoeBlock", "TopKRouter")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    s.layer.attention.norm_full = true;
    s.layer.attention.clip = decoder_positive(config, "clip_qkv", 0);
    s.layer.moe = decoder_experts(config, &s, &names, 64, 8);
    s.layer.moe.route_features = config_bool(config, "norm_topk_prob", false) ? TN_HAS_RENORM : 0;
    return decoder_build(b, config, &s);
}

const model_arch olmoe_arch = {"olmoe", "OlmoeForCausalLM", build, NULL};
