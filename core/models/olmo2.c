/* modeling_olmo2: Olmo2ForCausalLM. Norms behind both halves of a layer, and of queries and keys over all heads at
 * once. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("olmo2", "Olmo2")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes,
        .norm = {.variant = TN_NORM_W_F32, .eps = 1e-5},
        .norms = {.after_attention = "post_attention_layernorm", .after_mlp = "post_feedforward_layernorm"}};
    decoder_read(config, &s);
    gqa_spec *attention = &s.layer.attention;
    attention->qkv_bias = attention->o_bias = config_bool(config, "attention_bias", false);
    attention->head_norm = &s.norm;
    attention->norm_full = true;
    return decoder_build(b, config, &s);
}

const model_arch olmo2_arch = {"olmo2", "Olmo2ForCausalLM", build, NULL};
