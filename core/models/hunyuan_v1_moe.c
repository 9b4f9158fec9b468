/* modeling_hunyuan_v1_moe: HunYuanMoEV1ForCausalLM. Softmax-routed experts beside a shared MLP in every layer; queries
 * and keys are normed behind the rotation. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES_SPARSE("hunyuan_v1_moe", "HunYuanMoEV1")};

static const gqa_names attention_names = {"self_attn", "q_proj",          "k_proj",        "v_proj",
                                          "o_proj",    "query_layernorm", "key_layernorm", NULL};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("HunYuanMoEV1", "Moe", "Gate"),
                                      MOE_PARTS_SHARED("shared_mlp", "HunYuanMoEV1"), .router_linear = "wg"};

/* Experts per token may be a list; that of a single number is that number. */
static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    int64_t count = config_list(config, "moe_topk"), top_k = layer->moe.top_k;
    if (count > 1 && i >= count)
        config_fail(config, "moe_topk", "has %lld entries, num_hidden_layers is larger", (long long)count);
    else if (count > 0)
        top_k = config_list_i64(config, "moe_topk", count > 1 ? i : 0);
    if (top_k < 1 || top_k > layer->moe.experts)
        config_fail(config, "moe_topk", "is %lld, of %lld experts", (long long)top_k, (long long)layer->moe.experts);
    layer->moe.top_k = top_k;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .differ = differ};
    decoder_read(config, &s);
    bool list = config_list(config, "moe_topk") > 0;
    s.rope[0].config.ntk_alpha = true;
    s.layer.attention.names = &attention_names;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    s.layer.attention.norm_last = true;
    s.layer.moe =
        decoder_experts_of(config, &s, &names, "num_experts", 1, list ? "num_experts_per_tok" : "moe_topk", 1);
    s.layer.moe.shared_inter = s.layer.moe.inter;
    s.layer.moe.route_features = TN_HAS_RENORM;
    return decoder_build(b, config, &s);
}

const model_arch hunyuan_v1_moe_arch = {"hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", build, NULL};
