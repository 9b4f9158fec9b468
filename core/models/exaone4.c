/* modeling_exaone4: Exaone4ForCausalLM. Norms behind both halves; where layers have a window, only those rotate. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("exaone4", "Exaone4")};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    gqa_spec *attention = &layer->attention;
    if (!attention->window)
        return;
    if (decoder_slides_by(config, i, 4))
        return;
    attention->window = 0;
    attention->rope = GQA_NO_ROPE;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes,
        .norm.eps = 1e-5,
        .norms = {.after_attention = "post_attention_layernorm", .after_mlp = "post_feedforward_layernorm"},
        .kv_heads = 32,
        .differ = differ};
    decoder_read(config, &s);
    s.layer.attention.head_norm = &s.norm;
    s.layer.attention.window = decoder_window(config, 4096);
    return decoder_build(b, config, &s);
}

const model_arch exaone4_arch = {"exaone4", "Exaone4ForCausalLM", build, NULL};
