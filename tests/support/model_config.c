/* A published config.json with fewer layers: whatever has one entry for each layer follows. */
#include "model_config.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static void set_at_most(json_t *config, const char *key, int64_t most)
{
    json_t *value = json_object_get(config, key);
    if (json_is_integer(value) && json_integer_value(value) > most)
        json_integer_set(value, most);
}

/* Lists of one entry per layer; lists of layers. */
static void cut_list(const char *key, json_t *list, size_t old, size_t layers)
{
    static const char *const of_layers[] = {"moe_layers", "mlp_only_layers", "full_attn_idxs", "attn_layer_indices",
                                            "hybrid_layer_ids"};
    bool names_layers = false;
    for (size_t i = 0; i < sizeof of_layers / sizeof of_layers[0]; i++)
        names_layers = names_layers || !strcmp(key, of_layers[i]);
    bool per_layer = !names_layers && json_array_size(list) == old;
    for (size_t i = json_array_size(list); i-- > 0;)
        if (names_layers ? json_integer_value(json_array_get(list, i)) >= (json_int_t)layers : per_layer && i >= layers)
            json_array_remove(list, i);
}

static void cut_layers(json_t *config, int64_t layers)
{
    json_t *old = json_object_get(config, "num_hidden_layers");
    old = old ? old : json_object_get(config, "n_layer");
    if (!json_is_integer(old) || json_integer_value(old) <= layers)
        return;
    const char *key;
    json_t *value;
    json_object_foreach (config, key, value) {
        if (json_is_array(value))
            cut_list(key, value, (size_t)json_integer_value(old), (size_t)layers);
    }
    const char *pattern = json_string_value(json_object_get(config, "hybrid_override_pattern"));
    if (pattern && strlen(pattern) > (size_t)layers)
        json_object_set_new(config, "hybrid_override_pattern", json_stringn(pattern, (size_t)layers));
    json_integer_set(old, layers);
    set_at_most(config, "first_k_dense_replace", layers - 1);
    set_at_most(config, "moe_layer_end_index", layers - 1);
    /* Few layers may not have one of each type before those that share. */
    set_at_most(config, "num_kv_shared_layers", layers < 10 ? 0 : layers / 2);
    set_at_most(config, "max_window_layers", layers);
}

static void cut_vocab(json_t *config, int64_t vocab)
{
    static const char *const ids[] = {"pad_token_id", "bos_token_id", "eos_token_id"};
    set_at_most(config, "vocab_size", vocab);
    set_at_most(config, "vocab_size_per_layer_input", vocab);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        json_t *list = json_object_get(config, ids[i]);
        set_at_most(config, ids[i], vocab - 1);
        for (size_t k = 0; k < json_array_size(list); k++)
            if (json_integer_value(json_array_get(list, k)) >= vocab)
                json_integer_set(json_array_get(list, k), vocab - 1);
    }
}

/* The file's object, and those of the text model inside it. */
static void change(json_t *config, const model_config_changes *changes)
{
    static const char *const inner[] = {"text_config", "thinker_config"};
    json_t *deep = json_object_get(json_object_get(config, "vision_config"), "deepstack_visual_indexes");
    json_object_del(config, "quantization_config");
    if (changes->layers)
        cut_layers(config, changes->layers);
    while (changes->layers && (int64_t)json_array_size(deep) > changes->layers) /* each goes to a layer of its own */
        json_array_remove(deep, json_array_size(deep) - 1);
    if (changes->vocab)
        cut_vocab(config, changes->vocab);
    if (changes->dtype) {
        json_object_del(config, "dtype");
        json_object_set_new(config, "torch_dtype", json_string(changes->dtype));
    }
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++)
        if (json_is_object(json_object_get(config, inner[i])))
            change(json_object_get(config, inner[i]), changes);
}

tn_status model_config_copy(const char *file, const model_config_changes *changes, const char *folder, tn_error *err)
{
    char path[4096];
    json_error_t at;
    json_t *config = json_load_file(file, 0, &at);
    if (!json_is_object(config)) {
        json_decref(config);
        return tn_fail(err, TN_E_INPUT, file, "is no JSON object: line %d: %s", at.line, at.text);
    }
    change(config, changes);
    snprintf(path, sizeof path, "%s/config.json", folder);
    bool ok = json_dump_file(config, path, JSON_INDENT(2)) == 0;
    json_decref(config);
    return ok ? TN_OK : tn_fail(err, TN_E_INPUT, path, "cannot be written");
}
