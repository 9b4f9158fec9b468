/* modeling_deepseek_v2: DeepseekV2ForCausalLM. Latent attention rotated by complex products; softmax-routed experts,
 * of the best groups where the file says so, behind a few dense layers. */
#include "models/mla.h"
#include "models/routed.h"

static const decoder_classes classes = {DECODER_CLASSES("deepseek_v2", "DeepseekV2")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("DeepseekV2", "Moe", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "DeepseekV2")};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    routed_first_dense(config, i, 0, layer);
}

/* "greedy" chooses among all experts, whatever groups the file has. */
static bool in_groups(const config_reader *config)
{
    static const config_word methods[] = {{"greedy", false}, {"group_limited_greedy", true}, {0}};
    return config_choice(config, "topk_method", "greedy", methods) != 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    static const config_word scores[] = {{"softmax", TN_SCORE_SOFTMAX}, {0}};
    decoder_spec s = {.classes = &classes, .ignore_head_dim = true, .differ = differ};
    mla_spec attention = {.q_rank = 1536, .kv_rank = 512, .nope = 128, .rope = 64, .v = 128, .complex_rope = true};
    moe_parts_spec experts = {.names = &names,
                              .experts = 64,
                              .inter = 1407,
                              .shared_inter = 2,
                              .scale = 1,
                              .score = (tn_score)config_choice(config, "scoring_func", "softmax", scores),
                              .route_features = TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING};
    decoder_read(config, &s);
    mla_read(config, &s, &attention);
    routed_read(config, &s, &experts);
    if (!in_groups(config))
        s.layer.moe.groups = 0;
    else if (s.layer.moe.groups < 1)
        config_fail(config, "n_group", "is missing, and topk_method group_limited_greedy needs it");
    s.layer.mlp.bias = s.layer.moe.shared_bias = config_bool(config, "mlp_bias", false);
    return decoder_build(b, config, &s);
}

const model_arch deepseek_v2_arch = {"deepseek_v2", "DeepseekV2ForCausalLM", build, NULL};
