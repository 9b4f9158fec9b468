/* modeling_phimoe: PhimoeForCausalLM. LayerNorms, biases, and two experts in every layer that are chosen one after the
 * other. Its longrope never changes to the long factors. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_phimoe",
                                        .model = "PhimoeModel",
                                        .layer = "PhimoeDecoderLayer",
                                        .attention = "PhimoeAttention",
                                        .norm = "LayerNorm",
                                        .rotary = "PhimoeRotaryEmbedding"};

static const moe_parts_names names = {.router = "router",
                                      .experts = "experts",
                                      .gate = "w1",
                                      .up = "w3",
                                      .down = "w2",
                                      .all_gate_up = "gate_up_proj",
                                      .all_down = "down_proj",
                                      MOE_PARTS_CLASSES("Phimoe", "SparseMoeBlock", "TopKRouter")};

static const build_alias aliases[] = {{".mlp.", ".block_sparse_moe."}, {".router.", ".gate."}, {0}};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes, .norm = {.layer_norm = true, .bias = true, .eps = 1e-5}, .theta = 1e6, .kv_heads = 8};
    decoder_read(config, &s);
    s.rope[0].config.mscales = true;
    s.head_bias = config_bool(config, "lm_head_bias", false);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.window = decoder_window(config, 0);
    moe_parts_spec *moe = &s.layer.moe;
    *moe = decoder_experts_of(config, &s, &names, "num_local_experts", 16, "num_experts_per_tok", 2);
    moe->score = TN_SCORE_SPARSEMIXER;
    moe->margin = 2 * config_f64(config, "router_jitter_noise", 0.01);
    if (moe->top_k != 2)
        config_fail(config, "num_experts_per_tok", "is %lld, the class always takes 2", (long long)moe->top_k);
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch phimoe_arch = {"phimoe", "PhimoeForCausalLM", build, NULL};
