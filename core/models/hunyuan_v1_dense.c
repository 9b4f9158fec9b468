/* modeling_hunyuan_v1_dense: HunYuanDenseV1ForCausalLM. Queries and keys are normed behind the rotation. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES("hunyuan_v1_dense", "HunYuanDenseV1")};

static const gqa_names attention_names = {"self_attn", "q_proj",          "k_proj",        "v_proj",
                                          "o_proj",    "query_layernorm", "key_layernorm", NULL};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5};
    decoder_read(config, &s);
    s.rope[0].config.ntk_alpha = true;
    s.layer.attention.names = &attention_names;
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    s.layer.attention.norm_last = true;
    return decoder_build(b, config, &s);
}

const model_arch hunyuan_v1_dense_arch = {"hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", build, NULL};
