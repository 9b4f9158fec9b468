/* modeling_qwen3_5: Qwen3_5ForCausalLM. Gated delta nets, every few layers gated attention of which a quarter of each
 * head rotates, with tables of three axes. */
#include "models/qwen3_5_text.h"

static const decoder_classes classes = {.scope = "modeling_qwen3_5",
                                        .model = "Qwen3_5TextModel",
                                        .layer = "Qwen3_5DecoderLayer",
                                        .attention = "Qwen3_5Attention",
                                        .mlp = "Qwen3_5MLP",
                                        .norm = "Qwen3_5RMSNorm",
                                        .rotary = "Qwen3_5TextRotaryEmbedding"};

static const qwen3_5_names names = {&classes, "Qwen3_5GatedDeltaNet", "Qwen3_5RMSNormGated", 4};

const build_alias qwen3_5_text_aliases[] = {{"model.", "model.language_model."}, {0}};

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    if (!delta_net_is_layer(config, i))
        layer->mixer = NULL;
}

void qwen3_5_text_shared(const config_reader *config, const qwen3_5_names *n, decoder_spec *s, delta_net_spec *delta)
{
    s->classes = n->classes;
    s->norm.variant = TN_NORM_1_PLUS_W;
    s->head_dim = 256;
    s->kv_heads = n->kv_heads;
    s->partial = 0.25;
    s->differ = differ;
    decoder_read(config, s);
    s->rope[0].site.merged = true;
    *delta = (delta_net_spec){.class_name = n->delta,
                              .norm_class = n->delta_norm,
                              .hidden = s->hidden,
                              .eps = s->norm.eps,
                              .act = s->layer.mlp.act};
    delta_net_read(config, delta);
    s->layer.mixer = &delta_net;
    s->layer.mixer_spec = delta;
    s->layer.attention.gated = true;
    s->layer.attention.head_norm = &s->norm;
    s->layer.attention.qkv_bias = s->layer.attention.o_bias = config_bool(config, "attention_bias", false);
}

void qwen3_5_text_read(const config_reader *config, decoder_spec *s, delta_net_spec *delta)
{
    qwen3_5_text_shared(config, &names, s, delta);
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {0};
    delta_net_spec delta;
    b->aliases = qwen3_5_text_aliases;
    qwen3_5_text_read(config, &s, &delta);
    return decoder_build(b, config, &s);
}

const model_arch qwen3_5_text_arch = {"qwen3_5_text", "Qwen3_5ForCausalLM", build, NULL};
