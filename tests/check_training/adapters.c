/* Adapters of a golden case: losses and gradients of their factors. */
#include "check.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void check_adapter(options *o, const golden *g, const char *adapter)
{
    tn_error err = TN_ERROR_INIT;
    char line[1200];
    const tn_model_options mo = {.size = sizeof mo, .dtype = "f32", .training = true, .adapter = adapter};
    tn_model *model = tn_model_open(g->model, &mo, &err);
    for (int i = 0; model && i < o->spec_count; i++)
        check_spec(o, g, model, o->specs[i], true);
    if (!model) {
        snprintf(line, sizeof line, "%s: %s", err.where, err.message);
        check_say(o, g->name, g->kind, "-", false, line);
    }
    tn_model_close(model);
}

void check_adapters(options *o, const char *folder, const char *name)
{
    static const char *const batches[] = {"padded", "packed"}, *const kinds[] = {"zero", "b", "per_expert"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int i = 0; i < 2; i++) {
            golden g;
            char kind[64], adapter[4096 + 64];
            struct stat st;
            snprintf(kind, sizeof kind, "%s.%s", batches[i], kinds[k]);
            snprintf(adapter, sizeof adapter, "%s/adapter_%s", folder, kinds[k]);
            if (stat(adapter, &st) != 0)
                continue;
            if (golden_open(&g, folder, name, batches[i], "lora", kind))
                check_adapter(o, &g, adapter);
            else
                check_say(o, name, kind, "-", false, "is no case");
            golden_close(&g);
        }
}
