/* modeling_gpt_oss: GptOssForCausalLM. Every other layer slides, scores have sinks; experts with biases and a clamped
 * activation of gates and ups that take turns. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES_SPARSE("gpt_oss", "GptOss")};

static const moe_parts_names names = {MOE_PARTS_STACKED, MOE_PARTS_CLASSES("GptOss", "MLP", "TopKRouter")};

/* Of files without any. */
static const rope_params absent = {
    .kind = ROPE_YARN, .theta = 150000, .factor = 32, .original = 4096, .fast = 32, .slow = 1, .truncate = false};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (!decoder_slides(config, i, i % 2 == 0))
        layer->attention.window = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .norm = {.variant = TN_NORM_W_F32, .eps = 1e-5},
                      .theta = 150000,
                      .head_dim = 64,
                      .kv_heads = 8,
                      .differ = differ};
    decoder_read(config, &s);
    s.rope[0].site.style = TN_ROPE_HALF_NARROW;
    s.rope[0].config.absent = &absent;
    s.layer.attention.window = decoder_window(config, 128);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", true);
    s.layer.attention.sinks = true;
    moe_parts_spec *moe = &s.layer.moe;
    *moe = decoder_experts_of(config, &s, &names, "num_local_experts", 128, "num_experts_per_tok", 4);
    moe->score = TN_SCORE_TOPK_SOFTMAX;
    moe->stacked = TN_LAYOUT_PAIRS_IO;
    moe->router_bias = moe->bias = true;
    moe->act = TN_ACT_CLAMPED_SWIGLU;
    moe->limit = decoder_positive(config, "swiglu_limit", 7);
    moe->alpha = config_f64(config, "swiglu_alpha", 1.702);
    return decoder_build(b, config, &s);
}

const model_arch gpt_oss_arch = {"gpt_oss", "GptOssForCausalLM", build, NULL};
