/* modeling_gptj: GPTJForCausalLM. Attention and MLP side by side behind one LayerNorm; neighbouring elements of a part
 * of a head are rotated in f32; the head has a bias. */
#include "models/decoder.h"

static const decoder_classes classes = {.scope = "modeling_gptj",
                                        .model = "GPTJModel",
                                        .layer = "GPTJBlock",
                                        .attention = "GPTJAttention",
                                        .mlp = "GPTJMLP",
                                        .norm = "LayerNorm"};

static const decoder_names names = {.embed = "wte",
                                    .layers = "h",
                                    .hidden_key = "n_embd",
                                    .layers_key = "n_layer",
                                    .heads_key = "n_head",
                                    .inter_key = "n_inner"};
static const gqa_names attention_names = {
    .module = "attn", .q = "q_proj", .k = "k_proj", .v = "v_proj", .o = "out_proj"};
static const parts_mlp_names mlp_names = {.up = "fc_in", .down = "fc_out"};
static const build_alias aliases[] = {{"transformer.", ""}, {0}};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .no_padding = true,
                      .name = "transformer",
                      .names = &names,
                      .act_key = "activation_function",
                      .act = "gelu_new",
                      .eps_key = "layer_norm_epsilon",
                      .final_norm = "ln_f",
                      .norm = {.eps = 1e-5, .layer_norm = true, .bias = true},
                      .norms = {.attention = "ln_1"},
                      .ignore_head_dim = true,
                      .no_intermediate = true,
                      .inter_times = 4,
                      .parallel = true,
                      .context = decoder_positions(config, 2048),
                      .head_bias = true};
    decoder_read(config, &s);
    int64_t head = s.head_dim, rotary = config_i64(config, "rotary_dim", 64, 2, head > 2 ? head : 2);
    if (config_is_null(config, "rotary_dim"))
        config_fail(config, "rotary_dim", "is null, it must be a number");
    /* A little more than the quotient, so that its product with the head is not rounded below rotary_dim. */
    s.rope[0].config.partial = rotary < head ? ((double)rotary + 0.5) / (double)head : 1;
    s.rope[0].site.style = TN_ROPE_COMPLEX;
    s.layer.attention.names = &attention_names;
    s.layer.mlp.bias = true;
    s.layer.mlp.layout = TN_LAYOUT_UP_DOWN;
    s.layer.mlp.names = &mlp_names;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch gptj_arch = {"gptj", "GPTJForCausalLM", build, NULL};
