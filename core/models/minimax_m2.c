/* modeling_minimax_m2: MiniMaxM2ForCausalLM. Experts in every layer, chosen by sigmoid scores and a correction bias;
 * queries and keys are normed over all heads, a part of each is rotated. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES_SPARSE("minimax_m2", "MiniMaxM2")};

static const moe_parts_names names = {MOE_PARTS_NUMBERED,
                                      MOE_PARTS_CLASSES("MiniMaxM2", "SparseMoeBlock", "TopKRouter"),
                                      .correction = "e_score_correction_bias", .correction_of_block = true};

static const build_alias aliases[] = {{".mlp.", ".block_sparse_moe."}, {0}};

static const config_word scores[] = {{"sigmoid", TN_SCORE_SIGMOID}, {0}};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .theta = 5e6, .head_dim = 128, .kv_heads = 8};
    decoder_read(config, &s);
    /* Published files name the size of the rotated part. */
    int64_t rotary = config_i64(config, "rotary_dim", s.head_dim, 2, s.head_dim);
    s.rope[0].config.partial = (double)rotary / (double)s.head_dim;
    s.layer.attention.head_norm = &s.norm;
    s.layer.attention.norm_full = true;
    s.layer.moe = decoder_experts(config, &s, &names, 256, 8);
    s.layer.moe.score = (tn_score)config_choice(config, "scoring_func", "sigmoid", scores);
    s.layer.moe.route_features = TN_HAS_RENORM | TN_HAS_F32_ROUTING;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch minimax_m2_arch = {"minimax_m2", "MiniMaxM2ForCausalLM", build, NULL};
