/* modeling_minimax: MiniMaxForCausalLM. Experts as Mixtral's behind full attention in some layers and linear attention
 * in the others; what is added to is the normed input, and both terms have factors. */
#include "models/decoder.h"
#include "models/lightning.h"

static const decoder_classes classes = {DECODER_CLASSES_SPARSE("minimax", "MiniMax")};

static const moe_parts_names names = {MOE_PARTS_NUMBERED, MOE_PARTS_CLASSES("MiniMax", "SparseMoeBlock", "TopKRouter")};

static const build_alias aliases[] = {{".mlp.", ".block_sparse_moe."}, {0}};

static double factor(const config_reader *config, const char *key)
{
    return config_f64(config, key, 1);
}

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    static const config_word types[] = {{"linear_attention", true}, {"full_attention", false}, {0}};
    bool linear = decoder_layer_type(config, i, types, i % 2 != 0);
    if (!linear)
        layer->mixer = NULL;
    layer->keep[0] = factor(config, linear ? "linear_attn_alpha_factor" : "full_attn_alpha_factor");
    layer->give[0] = factor(config, linear ? "linear_attn_beta_factor" : "full_attn_beta_factor");
    layer->keep[1] = factor(config, "mlp_alpha_factor");
    layer->give[1] = factor(config, "mlp_beta_factor");
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {
        .classes = &classes, .norm.eps = 1e-5, .theta = 1e6, .kv_heads = 8, .normed_residual = true, .differ = differ};
    decoder_read(config, &s);
    const gqa_spec *attention = &s.layer.attention;
    const lightning_spec mixer = {.hidden = s.hidden,
                                  .heads = attention->heads,
                                  .head = attention->head_dim,
                                  .layers = s.layers,
                                  .act = s.layer.mlp.act};
    s.layer.attention.window = decoder_window(config, 0);
    s.layer.mixer = &lightning;
    s.layer.mixer_spec = &mixer;
    s.layer.moe = decoder_experts(config, &s, &names, 8, 2);
    s.layer.moe.route_features = TN_HAS_RENORM | TN_HAS_F32_ROUTING;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch minimax_arch = {"minimax", "MiniMaxForCausalLM", build, NULL};
