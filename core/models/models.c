/* The list of architectures. */
#include "models/models.h"

#include "base/nearest.h"
#include "models/multimodal.h"
#include "models/stages.h"

#include <string.h>

static const model_arch *const archs[] = {
#define ARCHITECTURE(name) &name##_arch,
#include "models/architectures.h"
#undef ARCHITECTURE
};

enum { ARCH_COUNT = sizeof archs / sizeof archs[0] };

const model_arch *models_find(const char *model_type, tn_error *err)
{
    const char *names[ARCH_COUNT + 32];
    size_t count = 0;
    for (; count < ARCH_COUNT; count++) {
        if (!strcmp(archs[count]->model_type, model_type))
            return archs[count];
        names[count] = archs[count]->model_type;
    }
    for (size_t i = 0; count < sizeof names / sizeof *names && models_wrapper_name(i); i++)
        names[count++] = models_wrapper_name(i);
    const char *near = nearest_of(model_type, names, count);
    tn_fail(err, TN_E_INPUT, "config.json", "model_type '%s' is not supported%s%s%s; docs/models.md lists what is",
            model_type, near ? ", the nearest that is known is '" : "", near ? near : "", near ? "'" : "");
    return NULL;
}

void *models_build(const model_arch *arch, const model_wrapper *around, graph_builder *b, const config_reader *config,
                   const config_reader *inner)
{
    if (around && around->vision && !arch->media)
        return multimodal_beside(b, config, inner, around, arch);
    return arch->media ? multimodal_build(b, inner, arch->media) : arch->build(b, inner);
}

const model_flow *models_flow(const model_arch *arch, const model_wrapper *around)
{
    return arch->media || (around && around->vision) ? &multimodal_flow : &decoder_flow;
}

void models_forward(const model_flow *flow, graph_run *r, const void *state)
{
    model_walk walk;
    const model_shape *shape = flow->shape(state);
    flow->begin(r, state, &walk);
    for (int64_t i = 0; i < shape->layers; i++) {
        if (stages_here(shape, i) || r->everywhere)
            flow->layer(r, state, i, &walk);
        stages_hand_on(r, shape, i, &walk);
    }
    flow->end(r, state, &walk);
}

bool models_balances(const char *model_type)
{
    static const char *const types[] = {"ernie4_5_moe",
                                        "glm4v_moe",
                                        "gpt_oss",
                                        "granitemoe",
                                        "granitemoehybrid",
                                        "minimax",
                                        "minimax_m2",
                                        "mixtral",
                                        "olmoe",
                                        "phimoe",
                                        "qwen2_moe",
                                        "qwen3_5_moe",
                                        "qwen3_5_moe_text",
                                        "qwen3_moe",
                                        "qwen3_next",
                                        "qwen3_omni_moe",
                                        "qwen3_omni_moe_thinker",
                                        "qwen3_vl_moe"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i], model_type))
            return true;
    return false;
}
