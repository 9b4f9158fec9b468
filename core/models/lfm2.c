/* modeling_lfm2: Lfm2ForCausalLM. Gated short convolutions, and attention in some layers. */
#include "models/lfm2.h"

static const decoder_classes classes = {DECODER_CLASSES("lfm2", "Lfm2")};

static const gqa_names attention = {"self_attn", "q_proj",      "k_proj",      "v_proj",
                                    "out_proj",  "q_layernorm", "k_layernorm", NULL};
static const parts_mlp_names mlp = {"w1", "w3", "w2"};

void lfm2_differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    static const config_word types[] = {{"full_attention", false}, {"conv", true}, {0}};
    bool conv = config_list(config, "full_attn_idxs") >= 0 && !config_list_holds(config, "full_attn_idxs", i);
    if (!decoder_layer_type(config, i, types, conv))
        layer->mixer = NULL;
}

/* Two thirds of what the file says, times a factor, up to a whole multiple; or as it is. */
static int64_t intermediate(const config_reader *config)
{
    int64_t given = config_i64(config, "intermediate_size", 12288, 1, 1 << 20);
    int64_t size = config_i64(config, "block_ff_dim", given, 1, 1 << 20);
    if (!config_bool(config, "block_auto_adjust_ff_dim", true))
        return size;
    size = 2 * size / 3;
    if (config_is_null(config, "block_ffn_dim_multiplier"))
        return size;
    int64_t multiple = config_i64(config, "block_multiple_of", 256, 1, 1 << 20);
    double scaled = decoder_positive(config, "block_ffn_dim_multiplier", 1) * (double)size;
    if (!(scaled >= 0 && scaled <= 1 << 24)) {
        config_fail(config, "block_ffn_dim_multiplier", "gives an intermediate size of %g, which is out of range",
                    scaled);
        return size;
    }
    size = (int64_t)scaled;
    return (size + multiple - 1) / multiple * multiple;
}

void lfm2_read(const config_reader *config, const char *conv_class, decoder_spec *s, gated_conv_spec *conv)
{
    s->eps_key = "norm_eps";
    s->norm.eps = 1e-5;
    s->final_norm = "embedding_norm";
    s->norms = (decoder_norms){.attention = "operator_norm", .mlp = "ffn_norm"};
    s->theta = 1000000;
    s->kv_heads = 8;
    s->tied = true;
    decoder_read(config, s);
    *conv = (gated_conv_spec){.class_name = conv_class,
                              .hidden = s->hidden,
                              .taps = config_i64(config, "conv_L_cache", 3, 1, 1 << 12),
                              .bias = config_bool(config, "conv_bias", false)};
    if (conv->bias)
        s->q_scale.kind = Q_SCALE_REAL;
    s->tied = config_bool(config, "tie_embedding", s->tied);
    s->layer.mixer = &gated_conv;
    s->layer.mixer_spec = conv;
    s->layer.attention.names = &attention;
    s->layer.attention.head_norm = &s->norm;
    s->layer.mlp_name = "feed_forward";
    s->layer.mlp.names = &mlp;
    s->layer.mlp.act = TN_ACT_SILU;
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .no_intermediate = true, .differ = lfm2_differ};
    gated_conv_spec conv;
    lfm2_read(config, "Lfm2ShortConv", &s, &conv);
    s.layer.mlp.inter = intermediate(config);
    return decoder_build(b, config, &s);
}

const model_arch lfm2_arch = {"lfm2", "Lfm2ForCausalLM", build, NULL};
