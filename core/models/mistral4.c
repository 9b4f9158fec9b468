/* modeling_mistral4: Mistral4ForCausalLM. Latent attention with queries that grow with the position; experts by softmax
 * scores of the model's type, behind dense layers where the file has any. */
#include "models/mla.h"
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("mistral4", "Mistral4")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("Mistral4", "MoE", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "Mistral4")};

static const rope_params no_rope = {.kind = ROPE_YARN,
                                    .theta = 10000,
                                    .factor = 128,
                                    .original = 8192,
                                    .fast = 32,
                                    .slow = 1,
                                    .truncate = true,
                                    .mscale_all = 1,
                                    .scaling_given = true,
                                    .scaling = 1};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    routed_first_dense(config, i, 0, layer);
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .ignore_head_dim = true, .differ = differ};
    mla_spec attention = {.q_rank = 1024,
                          .kv_rank = 256,
                          .nope = 64,
                          .rope = 64,
                          .v = 128,
                          .no_rope = &no_rope,
                          .partial_head = true,
                          .scale_q = true};
    moe_parts_spec experts = {.names = &names,
                              .experts = 128,
                              .top_k = 4,
                              .inter = 2048,
                              .shared_inter = 1,
                              .scale = 1,
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    mla_read(config, &s, &attention);
    experts.route_features = config_bool(config, "norm_topk_prob", true) ? TN_HAS_RENORM : 0;
    routed_read(config, &s, &experts);
    if (s.layer.moe.groups > 1)
        s.layer.moe.route_features |= TN_HAS_GROUP_PAIRS;
    s.q_scale = rope_config_q_scale(config, &s.rope[0].config, 0.1);
    return decoder_build(b, config, &s);
}

const model_arch mistral4_arch = {"mistral4", "Mistral4ForCausalLM", build, NULL};
