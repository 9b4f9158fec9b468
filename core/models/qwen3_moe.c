/* modeling_qwen3_moe: Qwen3MoeForCausalLM. Qwen3 with softmax-routed experts in all layers but those that the file
 * excepts. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("qwen3_moe", "Qwen3Moe")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Qwen3Moe", "SparseMoeBlock", "TopKRouter")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .differ = decoder_sparse};
    decoder_read(config, &s);
    s.layer.attention.window = decoder_window_in_use(config);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    s.layer.moe = decoder_experts(config, &s, &names, 128, 8);
    s.layer.moe.inter = config_i64(config, "moe_intermediate_size", 768, 1, 1 << 20);
    s.layer.moe.route_features = config_bool(config, "norm_topk_prob", false) ? TN_HAS_RENORM : 0;
    return decoder_build(b, config, &s);
}

const model_arch qwen3_moe_arch = {"qwen3_moe", "Qwen3MoeForCausalLM", build, NULL};
