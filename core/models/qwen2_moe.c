/* modeling_qwen2_moe: Qwen2MoeForCausalLM. Qwen2 with softmax-routed experts and a gated shared expert in all layers
 * but those that the file excepts. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("qwen2_moe", "Qwen2Moe")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Qwen2Moe", "SparseMoeBlock", "TopKRouter"),
                                      MOE_PARTS_SHARED("shared_expert", "Qwen2Moe"),
                                      .shared_gate = "shared_expert_gate"};

/* Dense layers as Qwen3's; every other one of the lower layers slides unless the file says which. */
static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    int64_t first = config_i64(config, "max_window_layers", 28, 0, INT32_MAX);
    if (!decoder_slides(config, i, i % 2 == 0 && i < first))
        layer->attention.window = 0;
    decoder_sparse(config, i, layer);
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .kv_heads = 16, .differ = differ};
    decoder_read(config, &s);
    s.layer.attention.window = decoder_window_in_use(config);
    s.layer.attention.qkv_bias = config_bool(config, "qkv_bias", true);
    s.layer.moe = decoder_experts(config, &s, &names, 60, 4);
    s.layer.moe.inter = config_i64(config, "moe_intermediate_size", 1408, 1, 1 << 20);
    s.layer.moe.shared_inter = config_i64(config, "shared_expert_intermediate_size", 5632, 1, 1 << 20);
    s.layer.moe.route_features = config_bool(config, "norm_topk_prob", false) ? TN_HAS_RENORM : 0;
    return decoder_build(b, config, &s);
}

const model_arch qwen2_moe_arch = {"qwen2_moe", "Qwen2MoeForCausalLM", build, NULL};
