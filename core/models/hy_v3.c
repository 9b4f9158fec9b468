/* modeling_hy_v3: HYV3ForCausalLM. Norms of heads; experts by sigmoid scores and a correction bias, in f32, with a
 * shared MLP beside them, in all but the first layer. */
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("hy_v3", "HYV3")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("HYV3", "MoE", "TopKRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "HYV3"),
                                      .correction = "e_score_correction_bias", .correction_of_block = true};

static const build_alias aliases[] = {{".mlp.gate.", ".mlp.router.gate."},
                                      {".mlp.e_score_correction_bias", ".mlp.expert_bias"},
                                      {".mlp.shared_experts.", ".mlp.shared_mlp."},
                                      {0}};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    routed_by_type(config, i, 1, layer);
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes, .norm.eps = 1e-5, .theta = 11158840, .kv_heads = 8, .head_dim = 128, .differ = differ};
    moe_parts_spec experts = {.names = &names,
                              .experts = 192,
                              .top_k = 8,
                              .inter = 1536,
                              .shared_inter = 1,
                              .scale = config_f64(config, "router_scaling_factor", 2.826),
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    s.layer.attention.head_norm = &s.norm;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.mlp.bias = config_bool(config, "mlp_bias", false);
    routed_sigmoid(config, &s, &experts);
    s.layer.moe.shared_bias = s.layer.mlp.bias;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch hy_v3_arch = {"hy_v3", "HYV3ForCausalLM", build, NULL};
