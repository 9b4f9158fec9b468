/* modeling_glm_moe_dsa: GlmMoeDsaForCausalLM. As DeepSeek-V3.2, with indexers that rotate by pairs; layers may take
 * what the last indexer before them chose. */
#include "models/mla.h"
#include "models/routed.h"

#include <string.h>

static const decoder_classes classes = {DECODER_CLASSES("glm_moe_dsa", "GlmMoeDsa")};

static const moe_parts_names names = {MOE_PARTS_USUAL, MOE_PARTS_CLASSES("GlmMoeDsa", "MoE", "TopkRouter"),
                                      MOE_PARTS_SHARED("shared_experts", "GlmMoeDsa"),
                                      .correction = "e_score_correction_bias"};

/* Has layer i no indexer? By its type, by a letter of a pattern, or by turns. */
static bool borrows(const config_reader *c, int64_t i)
{
    static const config_word kinds[] = {{"full", false}, {"shared", true}, {0}};
    static const char *const types = "indexer_types", *const pattern = "index_topk_pattern";
    if (config_list(c, types) >= 0)
        return config_list_choice(c, types, i, kinds);
    if (config_list(c, pattern) >= 0)
        return config_list_choice(c, pattern, i, kinds);
    if (config_has(c, pattern)) {
        const char *letters = config_str(c, pattern, "");
        char letter = (int64_t)strlen(letters) > i ? letters[i] : '\0';
        if (letter != 'F' && letter != 'S')
            config_fail(c, pattern, "has no F or S for layer %lld", (long long)i);
        return letter == 'S';
    }
    int64_t turn = config_i64(c, "index_topk_freq", 1, 0, 1 << 12);
    int64_t after = i - config_i64(c, "index_skip_topk_offset", 2, 0, 1 << 12) + 1;
    return (after > 0 ? after : 0) % (turn > 1 ? turn : 1) != 0;
}

static void differ(const config_reader *config, int64_t i, decoder_layer_spec *layer)
{
    const mla_spec *attention = layer->mixer_spec;
    bool shared = borrows(config, i);
    routed_by_type(config, i, 3, layer);
    layer->mixer_spec = &attention[shared];
    if (shared && i == 0)
        config_fail(config, "indexer_types", "has shared for layer 0, before which no keys are chosen");
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .ignore_head_dim = true, .differ = differ};
    mla_spec attention[2] = {
        {.q_rank = 2048, .kv_rank = 512, .nope = 192, .rope = 64, .v = 256, .indexer.class_name = "GlmMoeDsaIndexer"}};
    moe_parts_spec experts = {.names = &names,
                              .experts = 256,
                              .top_k = 8,
                              .inter = 2048,
                              .shared_inter = 1,
                              .scale = 2.5,
                              .groups = 1,
                              .top_groups = 1};
    decoder_read(config, &s);
    mla_read_indexed(config, &s, &attention[0], 32, true);
    attention[1] = attention[0];
    attention[1].indexer.borrows = true;
    routed_sigmoid(config, &s, &experts);
    return decoder_build(b, config, &s);
}

const model_arch glm_moe_dsa_arch = {"glm_moe_dsa", "GlmMoeDsaForCausalLM", build, NULL};
