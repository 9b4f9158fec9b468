/* config.json: the only reader of it. */
#include "checkpoint/checkpoint.h"
#include "checkpoint/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG (16u << 20)

struct config_node {
    config_file *file;
    const config_node *parent;
    const json_t *object;
    char *path; /* "" or "rope_scaling." : what stands before a key in messages */
    config_node *next;
};

struct config_file {
    char *path;
    json_t *json;
    config_node *nodes; /* the root is the last one */
    config_node *root;
};

static config_node *add_node(config_file *file, const config_node *parent, const char *key, const json_t *object)
{
    config_node *node = calloc(1, sizeof *node);
    size_t size = parent ? strlen(parent->path) + strlen(key) + 2 : 1;
    char *path = malloc(size);
    if (!node || !path) {
        free(node);
        free(path);
        return NULL;
    }
    snprintf(path, size, "%s%s%s", parent ? parent->path : "", parent ? key : "", parent ? "." : "");
    *node = (config_node){.file = file, .parent = parent, .object = object, .path = path, .next = file->nodes};
    file->nodes = node;
    return node;
}

static tn_status parse(config_file *file, tn_error *err)
{
    char *text = NULL;
    size_t size = 0;
    tn_status status = file_read(file->path, MAX_CONFIG, &text, &size, err);
    if (status != TN_OK)
        return status;
    json_error_t at;
    file->json = json_loadb(text, size, 0, &at);
    free(text);
    if (!file->json)
        return tn_fail(err, TN_E_INPUT, file->path, "is not valid JSON: line %d, column %d: %s", at.line, at.column,
                       at.text);
    if (!json_is_object(file->json))
        return tn_fail(err, TN_E_INPUT, file->path, "is not a JSON object");
    file->root = add_node(file, NULL, "", file->json);
    return file->root ? TN_OK : tn_fail(err, TN_E_MEMORY, file->path, "out of memory");
}

config_file *config_open(const char *path, tn_error *err)
{
    config_file *file = calloc(1, sizeof *file);
    if (file && (file->path = strdup(path))) {
        if (parse(file, err) == TN_OK)
            return file;
    } else {
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    }
    config_close(file);
    return NULL;
}

void config_close(config_file *file)
{
    if (!file)
        return;
    for (config_node *node = file->nodes, *next; node; node = next) {
        next = node->next;
        free(node->path);
        free(node);
    }
    json_decref(file->json);
    free(file->path);
    free(file);
}

const config_node *config_root(const config_file *file)
{
    return file->root;
}

/* The value of key, or NULL when it is absent or null. */
static const json_t *find(const config_node *node, const char *key)
{
    const json_t *value = json_object_get(node->object, key);
    return json_is_null(value) ? NULL : value;
}

bool config_has(const config_node *node, const char *key)
{
    return find(node, key) != NULL;
}

bool config_is_null(const config_node *node, const char *key)
{
    return json_is_null(json_object_get(node->object, key));
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

/* index < 0: the value itself, else an element of the list that it is. */
static tn_status fail_type(const config_node *node, const char *key, int64_t index, const json_t *value,
                           const char *expected, tn_error *err)
{
    if (index < 0)
        return tn_fail(err, TN_E_INPUT, node->file->path, "key '%s%s' must be %s, it is %s", node->path, key, expected,
                       type_name(value));
    return tn_fail(err, TN_E_INPUT, node->file->path, "key '%s%s', element %" PRId64 " must be %s, it is %s",
                   node->path, key, index, expected, type_name(value));
}

const config_node *config_child(const config_node *node, const char *key, tn_error *err)
{
    const json_t *value = find(node, key);
    if (!value)
        return NULL;
    if (!json_is_object(value)) {
        fail_type(node, key, -1, value, "an object", err);
        return NULL;
    }
    for (const config_node *known = node->file->nodes; known; known = known->next)
        if (known->parent == node && known->object == value)
            return known;
    const config_node *child = add_node(node->file, node, key, value);
    if (!child)
        tn_fail(err, TN_E_MEMORY, node->file->path, "out of memory");
    return child;
}

/* Numbers such as 1e6 or 4096.0, which some writers make of integers, count as integers. */
static bool read_i64(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double real = json_real_value(value);
    if (!json_is_real(value) || real != trunc(real) || fabs(real) > 0x1p53)
        return false;
    *out = (int64_t)real;
    return true;
}

tn_status config_i64(const config_node *node, const char *key, int64_t min, int64_t max, int64_t *out, tn_error *err)
{
    const json_t *value = find(node, key);
    int64_t number;
    if (!value)
        return TN_OK;
    if (!read_i64(value, &number))
        return fail_type(node, key, -1, value, "an integer", err);
    if (number < min || number > max)
        return tn_fail(err, TN_E_INPUT, node->file->path,
                       "key '%s%s' is %" PRId64 ", it must lie between %" PRId64 " and %" PRId64, node->path, key,
                       number, min, max);
    *out = number;
    return TN_OK;
}

tn_status config_need_i64(const config_node *node, const char *key, int64_t min, int64_t max, int64_t *out,
                          tn_error *err)
{
    if (!find(node, key))
        return tn_fail(err, TN_E_INPUT, node->file->path, "key '%s%s' is missing", node->path, key);
    return config_i64(node, key, min, max, out, err);
}

tn_status config_f64(const config_node *node, const char *key, double *out, tn_error *err)
{
    const json_t *value = find(node, key);
    if (!value)
        return TN_OK;
    if (!json_is_number(value))
        return fail_type(node, key, -1, value, "a number", err);
    *out = json_number_value(value);
    return TN_OK;
}

tn_status config_bool(const config_node *node, const char *key, bool *out, tn_error *err)
{
    const json_t *value = find(node, key);
    if (!value)
        return TN_OK;
    if (!json_is_boolean(value))
        return fail_type(node, key, -1, value, "a boolean", err);
    *out = json_is_true(value);
    return TN_OK;
}

tn_status config_str(const config_node *node, const char *key, const char **out, tn_error *err)
{
    const json_t *value = find(node, key);
    if (!value)
        return TN_OK;
    if (!json_is_string(value))
        return fail_type(node, key, -1, value, "a string", err);
    *out = json_string_value(value);
    return TN_OK;
}

int64_t config_list(const config_node *node, const char *key)
{
    const json_t *value = find(node, key);
    if (!value)
        return -1;
    return json_is_array(value) ? (int64_t)json_array_size(value) : 1;
}

static const json_t *find_element(const config_node *node, const char *key, int64_t index, tn_error *err)
{
    const json_t *value = find(node, key);
    if (json_is_array(value))
        value = index < 0 ? NULL : json_array_get(value, (size_t)index);
    else if (index != 0)
        value = NULL;
    if (!value)
        tn_fail(err, TN_E_INPUT, node->file->path, "key '%s%s' has no element %" PRId64, node->path, key, index);
    return value;
}

tn_status config_list_i64(const config_node *node, const char *key, int64_t index, int64_t *out, tn_error *err)
{
    const json_t *value = find_element(node, key, index, err);
    if (!value)
        return TN_E_INPUT;
    return read_i64(value, out) ? TN_OK : fail_type(node, key, index, value, "an integer", err);
}

tn_status config_list_f64(const config_node *node, const char *key, int64_t index, double *out, tn_error *err)
{
    const json_t *value = find_element(node, key, index, err);
    if (!value)
        return TN_E_INPUT;
    if (!json_is_number(value))
        return fail_type(node, key, index, value, "a number", err);
    *out = json_number_value(value);
    return TN_OK;
}

tn_status config_list_str(const config_node *node, const char *key, int64_t index, const char **out, tn_error *err)
{
    const json_t *value = find_element(node, key, index, err);
    if (!value)
        return TN_E_INPUT;
    if (!json_is_string(value))
        return fail_type(node, key, index, value, "a string", err);
    *out = json_string_value(value);
    return TN_OK;
}
