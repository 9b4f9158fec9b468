/* config.json as text: what a file holds, or a program hands over. */
#include "checkpoint/checkpoint.h"
#include "base/json_infinity.h"
#include "base/json_memory.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

json_t *config_parse(const char *path, char *text, size_t size, tn_error *err)
{
    json_error_t at;
    json_infinity_spell(text, size);
    json_memory_watch();
    json_t *json = json_loadb(text, size, 0, &at);
    if (json && !json_memory_failed())
        return json;
    if (json_memory_failed())
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    else
        tn_fail(err, TN_E_INPUT, path, "is not valid JSON: line %d, column %d: %s", at.line, at.column, at.text);
    json_decref(json);
    return NULL;
}

config_file *config_open_text(const char *path, const char *text, tn_error *err)
{
    size_t size = strlen(text);
    if (size > CONFIG_MOST) {
        tn_fail(err, TN_E_INPUT, path, "has %zu bytes, which no configuration has", size);
        return NULL;
    }
    char *copy = strdup(text);
    if (!copy) {
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
        return NULL;
    }
    json_t *json = config_parse(path, copy, size, err);
    free(copy);
    return json ? config_open_object(path, json, err) : NULL;
}
