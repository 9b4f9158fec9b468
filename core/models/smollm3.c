/* modeling_smollm3: SmolLM3ForCausalLM. Layers without rotation. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("smollm3", "SmolLM3")};

/* "no_rope_layers" has 1 where a layer rotates. */
static bool rotates(const config_reader *config, int64_t i)
{
    if (config_list(config, "no_rope_layers") >= 0)
        return config_list_i64(config, "no_rope_layers", i) != 0;
    return (i + 1) % config_i64(config, "no_rope_layer_interval", 4, 1, 1 << 12) != 0;
}

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    bool rope = rotates(config, i);
    if (!rope)
        layer->attention.rope = GQA_NO_ROPE;
    if (!decoder_slides(config, i, !rope))
        layer->attention.window = 0;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .theta = 2000000, .kv_heads = 4, .tied = true, .differ = differ};
    decoder_read(config, &s);
    if (config_list(config, "no_rope_layers") >= 0 && config_list(config, "no_rope_layers") != s.layers)
        config_fail(config, "no_rope_layers", "has %lld entries, num_hidden_layers is %lld",
                    (long long)config_list(config, "no_rope_layers"), (long long)s.layers);
    s.layer.attention.window = config_bool(config, "use_sliding_window", false) ? decoder_window(config, 0) : 0;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.mlp.bias = config_bool(config, "mlp_bias", false);
    return decoder_build(b, config, &s);
}

const model_arch smollm3_arch = {"smollm3", "SmolLM3ForCausalLM", build, NULL};
