/* The list of architectures. */
#include "models/models.h"

#include <stdio.h>
#include <string.h>

static const model_arch *const archs[] = {
#define ARCHITECTURE(name) &name##_arch,
#include "models/architectures.h"
#undef ARCHITECTURE
};

enum { ARCH_COUNT = sizeof archs / sizeof archs[0] };

const model_arch *models_find(const char *model_type, tn_error *err)
{
    char known[2048] = "";
    size_t used = 0;
    for (size_t i = 0; i < ARCH_COUNT; i++) {
        if (!strcmp(archs[i]->model_type, model_type))
            return archs[i];
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", archs[i]->model_type);
    }
    tn_fail(err, TN_E_INPUT, "config.json", "model_type '%s' is not supported; known are %s", model_type, known);
    return NULL;
}
