/* Types under which models are published around one that is built here. */
#include "models/models.h"
#include "models/tower.h"

#include <string.h>

/* Files older than transformers 5, and those since. */
static const build_alias beside_towers[] = {{"model.", "language_model.model."},
                                            {"model.", "model.language_model."},
                                            {"lm_head.", "language_model.lm_head."},
                                            {0}};

static const build_alias thinker[] = {{"", "thinker."}, {0}};

/* With a tower of whole pictures. */
#define SEEING_BY(tower, type, name, inner, key, id)                                                                   \
    {                                                                                                                  \
        type, name "ForConditionalGeneration", "text_config", inner, beside_towers, true, tower, key, id               \
    }
#define SEEING(type, name, inner, key, id) SEEING_BY(&vision_vit, type, name, inner, key, id)

static const model_wrapper wrappers[] = {
    SEEING("gemma3", "Gemma3", "gemma3_text", "image_token_index", 262144),
    SEEING_BY(&vision_gemma3n, "gemma3n", "Gemma3n", "gemma3n_text", "image_token_id", 262145),
    SEEING_BY(&vision_gemma4, "gemma4", "Gemma4", "gemma4_text", "image_token_id", 258880),
    SEEING("internvl", "InternVL", "qwen2", "image_token_id", 151667),
    SEEING("llama4", "Llama4", "llama4_text", "image_token_index", 200092),
    SEEING("llava", "Llava", "llama", "image_token_index", 32000),
    SEEING("llava_next", "LlavaNext", "llama", "image_token_index", 32000),
    SEEING("mistral3", "Mistral3", "mistral", "image_token_index", 10),
    SEEING("paligemma", "PaliGemma", "gemma", "image_token_index", 256000),
    {"qwen2_5_omni", "Qwen2_5OmniModel", "thinker_config", "qwen2_5_omni_thinker", thinker, false, NULL, NULL, 0},
};

enum { WRAPPERS = sizeof wrappers / sizeof *wrappers };

const char *models_wrapper_name(size_t i)
{
    return i < WRAPPERS ? wrappers[i].model_type : NULL;
}

const model_wrapper *models_wrapper(const char *model_type)
{
    for (size_t i = 0; i < WRAPPERS; i++)
        if (!strcmp(wrappers[i].model_type, model_type))
            return &wrappers[i];
    return NULL;
}

bool models_stands_beside(const char *name)
{
    static const char *const parts[] = {"vision_tower.", "vision_model.", "multi_modal_projector.", "embed_vision.",
                                        "image_newline"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i]))
            return true;
    return false;
}
