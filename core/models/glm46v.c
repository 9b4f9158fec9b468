/* modeling_glm46v: Glm46VForConditionalGeneration, the parts of GLM-4V under another class. */
#include "models/glm4v.h"

static const multimodal_spec spec = {.model_class = "Glm46VModel", GLM4V_SPEC};

const model_arch glm46v_arch = {"glm46v", "Glm46VForConditionalGeneration", NULL, &spec};
