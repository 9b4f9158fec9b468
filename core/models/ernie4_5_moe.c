/* modeling_ernie4_5_moe: Ernie4_5_MoeForCausalLM. Experts chosen by softmax scores and a correction bias, in f32, with
 * a shared MLP beside them; neighbouring elements are rotated in f32. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("ernie4_5_moe", "Ernie4_5_Moe")};

static const moe_parts_names names = {MOE_PARTS_USUAL,
                                      MOE_PARTS_CLASSES("Ernie4_5_Moe", "SparseMoeBlock", "TopKRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "Ernie4_5_Moe"),
                                      .correction = "e_score_correction_bias",
                                      .statics = "moe_statics",
                                      .statics_class = "Ernie4_5_MoeStatics"};

static const build_alias aliases[] = {{".gate.moe_statics.", ".moe_statics."}, {0}};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    int64_t first = config_i64(config, "moe_layer_start_index", 1, 0, INT32_MAX);
    int64_t last = config_i64(config, "moe_layer_end_index", -1, -1, INT32_MAX);
    int64_t interval = config_i64(config, "moe_layer_interval", 1, 1, INT32_MAX);
    if (i < first || (last >= 0 && i > last) || (i + 1) % interval != 0)
        layer->moe.experts = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes, .norm.eps = 1e-5, .theta = 5e5, .kv_heads = 4, .tied = true, .differ = differ};
    decoder_read(config, &s);
    s.rope[0].site.style = TN_ROPE_COMPLEX;
    bool bias = config_bool(config, "use_bias", false);
    s.head_bias = bias;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = s.layer.mlp.bias = bias;
    moe_parts_spec *moe = &s.layer.moe;
    *moe = decoder_experts_of(config, &s, &names, "moe_num_experts", 64, "moe_k", 6);
    moe->inter = config_i64(config, "moe_intermediate_size", 1536, 1, 1 << 20);
    moe->shared_inter = moe->inter * config_i64(config, "moe_num_shared_experts", 2, 0, 1 << 10);
    moe->shared_bias = bias;
    moe->route_features = TN_HAS_RENORM | TN_HAS_F32_ROUTER;
    moe->least_sum = config_f64(config, "moe_norm_min", 1e-12);
    moe->f32_router = moe->f32_correction = true;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch ernie4_5_moe_arch = {"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", build, NULL};
