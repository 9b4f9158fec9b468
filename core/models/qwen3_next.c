/* modeling_qwen3_next: Qwen3NextForCausalLM. Gated delta nets, every few layers gated attention of which a quarter of
 * each head rotates, and routed experts with a shared one. */
#include "models/decoder.h"
#include "models/delta_net.h"

static const decoder_classes classes = {DECODER_CLASSES("qwen3_next", "Qwen3Next")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Qwen3Next", "SparseMoeBlock", "TopKRouter"),
                                      MOE_PARTS_SHARED("shared_expert", "Qwen3Next"),
                                      .shared_gate = "shared_expert_gate"};

/* Dense layers as in Qwen3-MoE. */
static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    int64_t step = config_i64(config, "decoder_sparse_step", 1, 1, 1 << 12);
    if ((i + 1) % step != 0 || config_list_holds(config, "mlp_only_layers", i))
        layer->moe.experts = 0;
    if (!delta_net_is_layer(config, i))
        layer->mixer = NULL;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .norm.variant = TN_NORM_1_PLUS_W,
                      .head_dim = 256,
                      .kv_heads = 2,
                      .partial = 0.25,
                      .differ = differ};
    decoder_read(config, &s);
    delta_net_spec delta = {.class_name = "Qwen3NextGatedDeltaNet",
                            .norm_class = "Qwen3NextRMSNormGated",
                            .hidden = s.hidden,
                            .eps = s.norm.eps,
                            .act = s.layer.mlp.act,
                            .fused = true};
    delta_net_read(config, &delta);
    s.layer.mixer = &delta_net;
    s.layer.mixer_spec = &delta;
    s.layer.attention.gated = true;
    s.layer.attention.head_norm = &s.norm;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.moe = decoder_experts(config, &s, &names, 512, 10);
    s.layer.moe.inter = config_i64(config, "moe_intermediate_size", 512, 1, 1 << 20);
    s.layer.moe.shared_inter = config_i64(config, "shared_expert_intermediate_size", 512, 1, 1 << 20);
    s.layer.moe.route_features = config_bool(config, "norm_topk_prob", true) ? TN_HAS_RENORM : 0;
    return decoder_build(b, config, &s);
}

const model_arch qwen3_next_arch = {"qwen3_next", "Qwen3NextForCausalLM", build, NULL};
