/* modeling_olmo3: Olmo3ForCausalLM. OLMo 2 with a window in three of four layers, whose rotation has parameters of
 * its own. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("olmo3", "Olmo3")};

enum { SLIDING = 1 };

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (decoder_slides(config, i, (i + 1) % 4 != 0))
        layer->attention.rope = SLIDING;
    else
        layer->attention.window = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes,
        .norm = {.variant = TN_NORM_W_F32, .eps = 1e-5},
        .norms = {.after_attention = "post_attention_layernorm", .after_mlp = "post_feedforward_layernorm"},
        .theta = 500000,
        .differ = differ};
    decoder_read(config, &s);
    gqa_spec *attention = &s.layer.attention;
    attention->qkv_bias = attention->o_bias = config_bool(config, "attention_bias", false);
    attention->head_norm = &s.norm;
    attention->norm_full = true;
    attention->window = decoder_window(config, 4096);
    s.rope[0].config.layer_type = "full_attention";
    s.rope[SLIDING] = s.rope[0];
    s.rope[SLIDING].site.function = NULL;
    s.rope[SLIDING].config.layer_type = "sliding_attention";
    s.rope_count = 2;
    return decoder_build(b, config, &s);
}

const model_arch olmo3_arch = {"olmo3", "Olmo3ForCausalLM", build, NULL};
