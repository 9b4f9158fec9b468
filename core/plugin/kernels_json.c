/* JSON that says which kernels: what a value is, and errors that name the file and the key. */
#include "plugin/kernels_json.h"
#include "base/json_memory.h"
#include "base/nearest.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *kernels_json_type(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",    [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer",  [JSON_REAL] = "a number", [JSON_TRUE] = "true or false",
        [JSON_FALSE] = "true or false", [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

tn_status kernels_json_wrong_type(const char *path, const char *key, const char *want, const json_t *got, tn_error *err)
{
    return tn_fail(err, TN_E_KERNEL, path, "key '%s': expected %s, got %s", key, want, kernels_json_type(got));
}

tn_status kernels_json_no_memory(const char *path, tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, path, "out of memory");
}

tn_status kernels_json_strings(const json_t *list, const char *key, const char *path, tn_error *err)
{
    size_t i;
    json_t *item;
    if (!json_is_array(list))
        return kernels_json_wrong_type(path, key, "a list of strings", list, err);
    json_array_foreach (list, i, item) {
        if (!json_is_string(item))
            return tn_fail(err, TN_E_KERNEL, path, "key '%s': element %zu: expected a string, got %s", key, i,
                           kernels_json_type(item));
        if (json_string_length(item) == 0)
            return tn_fail(err, TN_E_KERNEL, path, "key '%s': element %zu is empty", key, i);
    }
    return TN_OK;
}

tn_status kernels_json_join(const json_t *list, const char *key, const char *path, char **joined, tn_error *err)
{
    tn_status status = kernels_json_strings(list, key, path, err);
    if (status != TN_OK)
        return status;
    size_t i, size = 1;
    json_t *item;
    json_array_foreach (list, i, item) {
        if (strchr(json_string_value(item), ','))
            return tn_fail(err, TN_E_KERNEL, path, "key '%s': element %zu contains a comma; make it two elements", key,
                           i);
        size += json_string_length(item) + 1;
    }
    char *at = *joined = malloc(size);
    if (!at)
        return kernels_json_no_memory(path, err);
    json_array_foreach (list, i, item) {
        if (i > 0)
            *at++ = ',';
        memcpy(at, json_string_value(item), json_string_length(item));
        at += json_string_length(item);
    }
    *at = '\0';
    return TN_OK;
}

tn_status kernels_json_parse(const char *text, size_t size, const char *path, const char *advice, json_t **root,
                             tn_error *err)
{
    json_error_t where;
    json_memory_watch();
    *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    if (json_memory_failed())
        return kernels_json_no_memory(path, err);
    if (!*root)
        return tn_fail(err, TN_E_KERNEL, path, "line %d, column %d: %s%s", where.line, where.column, where.text,
                       advice);
    return TN_OK;
}

tn_status kernels_json_unknown_key(const char *key, const char *inside, const char *const *names, size_t count,
                                   const char *path, tn_error *err)
{
    const char *near = nearest_of(key, names, count);
    return tn_fail(err, TN_E_KERNEL, path, "unknown key '%s'%s%s%s%s%s; correct or remove it", key,
                   inside ? " in " : "", inside ? inside : "", near ? ", did you mean '" : "", near ? near : "",
                   near ? "'?" : "");
}

tn_status kernels_json_as_key(tn_status status, const tn_error *why, const char *key, const char *path, tn_error *err)
{
    return status == TN_OK ? TN_OK : tn_fail(err, status, path, "key '%s': %s", key, why->message);
}

bool kernels_json_flag(const json_t *value, bool *flag)
{
    const char *word = json_string_value(value);
    *flag = json_is_true(value) || (word && !strcasecmp(word, "true"));
    return *flag || json_is_false(value) || (word && !strcasecmp(word, "false"));
}
