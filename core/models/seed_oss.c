/* modeling_seed_oss: SeedOssForCausalLM. Biases of queries, keys and values, and that of the output, by keys of their
 * own. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("seed_oss", "SeedOss")};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .kv_heads = 8, .head_dim = 128};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = config_bool(config, "attention_bias", true);
    s.layer.attention.o_bias = config_bool(config, "attention_out_bias", false);
    s.layer.mlp.bias = config_bool(config, "mlp_bias", false);
    return decoder_build(b, config, &s);
}

const model_arch seed_oss_arch = {"seed_oss", "SeedOssForCausalLM", build, NULL};
