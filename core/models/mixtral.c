/* modeling_mixtral: MixtralForCausalLM. Experts in every layer, whose tensors have names of their own; their weights
 * stay f32. */
#include "models/decoder.h"

static const decoder_classes classes = {DECODER_CLASSES_SPARSE("mixtral", "Mixtral")};

static const moe_parts_names names = {MOE_PARTS_NUMBERED, MOE_PARTS_CLASSES("Mixtral", "SparseMoeBlock", "TopKRouter")};

static const build_alias aliases[] = {{".mlp.", ".block_sparse_moe."}, {0}};

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes, .norm.eps = 1e-5, .theta = 1e6};
    decoder_read(config, &s);
    s.layer.attention.window = decoder_window(config, 0);
    s.layer.moe = decoder_experts(config, &s, &names, 8, 2);
    s.layer.moe.route_features = TN_HAS_RENORM | TN_HAS_F32_ROUTING;
    b->aliases = aliases;
    return decoder_build(b, config, &s);
}

const model_arch mixtral_arch = {"mixtral", "MixtralForCausalLM", build, NULL};
