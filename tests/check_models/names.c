/* Which tensors of the checkpoint the model has. */
#include "check.h"
#include "open/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text model's layer that a tensor is of, or -1. */
static int64_t layer_of(const char *name)
{
    const char *at = strstr(name, "model.layers.");
    return at ? strtoll(at + strlen("model.layers."), NULL, 10) : -1;
}

/* Masks that old files hold, and what follows from config.json. */
static bool is_mask(const char *name)
{
    static const char *const masks[] = {".attn.bias",
                                        ".attn.masked_bias",
                                        ".attention.bias",
                                        ".attention.masked_bias",
                                        ".self_attn.slope_rate",
                                        ".self_attn.query_decay",
                                        ".self_attn.key_decay",
                                        ".self_attn.diagonal_decay"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++)
        if (length > strlen(masks[i]) && !strcmp(name + length - strlen(masks[i]), masks[i]))
            return true;
    return false;
}

/* What transformers leaves in the file, too: old tables of frequencies; layers that predict more than one token ahead;
 * projections of layers that use those of another layer. */
static bool is_ignored(const char *name, int64_t layers, int64_t first_shared)
{
    static const char *const shared[] = {"k_proj.", "v_proj.", "k_norm.", "v_norm."};
    int64_t layer = layer_of(name);
    if (strstr(name, "rotary_emb.inv_freq") || !strncmp(name, "mtp.", 4) || layer >= layers || is_mask(name))
        return true;
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        if (layer >= first_shared && strstr(name, "self_attn.") && strstr(name, shared[i]))
            return true;
    return false;
}

static int64_t first_shared_layer(const tn_model *model)
{
    tn_status status = TN_OK;
    tn_error err = TN_ERROR_INIT;
    config_reader c = model_config(model, &status, &err);
    return model->info.layers - config_i64(&c, "num_kv_shared_layers", 0, 0, model->info.layers);
}

void check_names(const golden *g, const tn_model *model)
{
    char text[256];
    const char *left = NULL;
    size_t count = shards_count(model->weights), taken = 0, missing = 0;
    int64_t first_shared = first_shared_layer(model);
    for (size_t i = 0; i < count; i++) {
        const char *name = shards_name(model->weights, i);
        if (shards_taken(model->weights, i)) {
            taken++;
        } else if (!is_ignored(name, model->info.layers, first_shared) &&
                   !(model->wrapper && models_leaves(model->arch->model_type, model->info.layers, name))) {
            left = left ? left : name;
            missing++;
        }
    }
    snprintf(text, sizeof text, "%zu of %zu tensors are the model's%s%s", taken, count,
             left ? "; not among them: " : "", left ? left : "");
    check_report(g, "names", "-", missing == 0, text);
}
