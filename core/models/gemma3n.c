/* modeling_gemma3n: Gemma3nForCausalLM. Several residual streams, sparse gates, keys and values shared by the last
 * layers, inputs of each layer beside h. */
#include "models/altup.h"
#include "models/gemma_parts.h"

#include <math.h>

static const decoder_classes classes = {.scope = "modeling_gemma3n",
                                        .model = "Gemma3nTextModel",
                                        .layer = "Gemma3nTextDecoderLayer",
                                        .attention = "Gemma3nTextAttention",
                                        .mlp = "Gemma3nTextMLP",
                                        .norm = "Gemma3nRMSNorm",
                                        .rotary = "Gemma3nRotaryEmbedding",
                                        .embedding = "Gemma3nTextScaledWordEmbedding"};

static bool slides(const config_reader *config, int64_t i)
{
    return decoder_slides(config, i, (i + 1) % 5 != 0);
}

/* The list of one value for each layer; its length, or -1 where there is none. */
static int64_t check_list(const config_reader *config, const char *key, int64_t layers, bool or_one)
{
    int64_t count = config_list(config, key);
    if (count >= 0 && count != layers && !(or_one && count == 1))
        config_fail(config, key, "has %lld entries, num_hidden_layers is %lld", (long long)count, (long long)layers);
    return count;
}

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    const char *pattern = "activation_sparsity_pattern";
    int64_t layers = config_i64(config, "num_hidden_layers", 0, 0, INT32_MAX);
    gemma_parts_layer_type(layer, slides(config, i));
    gemma_parts_share(config, i, config_i64(config, "num_kv_shared_layers", 15, 0, layers), slides, &layer->attention);
    int64_t count = check_list(config, "intermediate_size", layers, true);
    layer->mlp.inter = count < 0 ? 16384 : config_list_i64(config, "intermediate_size", count == 1 ? 0 : i);
    if (layer->mlp.inter < 1 || layer->mlp.inter > 1 << 24)
        config_fail(config, "intermediate_size", "is %lld for layer %lld, which is out of range",
                    (long long)layer->mlp.inter, (long long)i);
    bool given = check_list(config, pattern, layers, false) >= 0;
    layer->mlp.sparsity = given ? config_list_f64(config, pattern, i) : layers > 10 && i < 10 ? 0.95 : 0;
    if (!(layer->mlp.sparsity >= 0 && layer->mlp.sparsity < 1))
        config_fail(config, pattern, "is %g for layer %lld, it must be 0 or more and below 1", layer->mlp.sparsity,
                    (long long)i);
}

static altup_spec read_altup(const config_reader *config, const decoder_spec *s)
{
    altup_spec a = {.altup_class = "Gemma3nTextAltUp", .laurel_class = "Gemma3nTextLaurelBlock", .norm = &s->norm};
    a.hidden = s->hidden;
    a.streams = config_i64(config, "altup_num_inputs", 4, 1, ALTUP_MAX_STREAMS);
    a.active = config_i64(config, "altup_active_idx", 0, 0, a.streams > 0 ? a.streams - 1 : 0);
    a.rank = config_i64(config, "laurel_rank", 64, 1, 1 << 20);
    a.scaled = config_bool(config, "altup_correct_scale", true);
    a.inputs = (layer_inputs_spec){.embedding_class = classes.embedding,
                                   .norm = &s->norm,
                                   .hidden = s->hidden,
                                   .layers = s->layers,
                                   .vocab = config_i64(config, "vocab_size_per_layer_input", 262144, 1, 1 << 24),
                                   .width = config_i64(config, "hidden_size_per_layer_input", 256, 1, 1 << 20),
                                   .partial = true,
                                   .rounded = true,
                                   .act = s->layer.mlp.act};
    return a;
}

/* Files of the whole model have the text model one level down. */
static const build_alias aliases[] = {{"model.", "model.language_model."}, {0}};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .act_key = "hidden_activation",
                      .act = "gelu_pytorch_tanh",
                      .norm.variant = TN_NORM_W_F32,
                      .kv_heads = 2,
                      .head_dim = 256,
                      .intermediates = true,
                      .tied = true,
                      .differ = differ,
                      .first = &altup_first,
                      .last = &altup_last};
    decoder_read(config, &s);
    gemma_parts_ropes(&s);
    s.rope[GEMMA_LOCAL].site.roundings = true; /* which gates are above the cut of their row                    */
    gqa_spec *attention = &s.layer.attention;
    parts_norm_kind plain = s.norm;
    plain.variant = TN_NORM_NO_WEIGHT;
    attention->scale = 1;
    attention->window = decoder_window(config, 512);
    attention->head_norm = &s.norm;
    attention->v_norm = &plain;
    attention->qkv_bias = attention->o_bias = config_bool(config, "attention_bias", false);
    s.embed_scale = sqrt((double)s.hidden);
    s.logit_softcap = decoder_positive(config, "final_logit_softcapping", 30);
    const altup_spec altup = read_altup(config, &s);
    s.layer.whole = &altup_layer;
    s.layer.whole_spec = s.stage_spec = &altup;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch gemma3n_text_arch = {"gemma3n_text", "Gemma3nForCausalLM", build, NULL};
