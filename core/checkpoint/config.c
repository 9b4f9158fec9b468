/* config.json: the only reader of it. */
#include "checkpoint/checkpoint.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_infinity.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG (16u << 20)

struct config_node {
    config_file *file;
    const config_node *parent;
    const json_t *object; /* NULL: absent                                */
    json_t *own;          /* the same, where it was made of a list          */
    char *path;           /* "" or "rope_scaling." : what stands before a key in messages */
    const char *name;     /* the last part of path                       */
    config_node *next;
};

struct config_file {
    char *path;
    json_t *json;
    config_node *nodes; /* the root is the last one */
    config_node *root;
};

uint64_t config_hash(const config_file *file)
{
    char *text = json_dumps(file->json, JSON_SORT_KEYS | JSON_COMPACT);
    uint64_t hash = text ? hash_bytes(HASH_START, text, strlen(text)) : 0;
    free(text);
    return hash;
}

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
    node->name = path + (parent ? strlen(parent->path) : 0);
    file->nodes = node;
    return node;
}

static tn_status parse(config_file *file, tn_error *err)
{
    char *text = NULL;
    size_t size = 0;
    tn_status status = file_read(file->path, MAX_CONFIG, &text, &size, err);
    tn_error why = TN_ERROR_INIT;
    if (status != TN_OK)
        return status;
    file->json = json_infinity_load(file->path, text, size, &why);
    free(text);
    return file->json ? TN_OK : tn_fail(err, why.code, why.where, "%s", why.message);
}

/* A list as an object whose keys are its numbers; NULL: out of memory. Owned. */
static json_t *number_keys(const json_t *list)
{
    json_t *object = json_object(), *value;
    size_t i;
    bool failed = !object;
    json_array_foreach (list, i, value) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        failed = failed || json_object_set(object, key, value) != 0;
    }
    if (failed)
        json_decref(object);
    return failed ? NULL : object;
}

/* What a file holds must be an object; or a list, which becomes one whose keys are its numbers. */
static tn_status take_form(config_file *file, bool list, tn_error *err)
{
    if (list ? !json_is_array(file->json) : !json_is_object(file->json))
        return tn_fail(err, TN_E_INPUT, file->path, "is not a JSON %s", list ? "list" : "object");
    json_t *object = list ? number_keys(file->json) : json_incref(file->json);
    if (!object)
        return tn_fail(err, TN_E_MEMORY, file->path, "out of memory");
    json_decref(file->json);
    file->json = object;
    return TN_OK;
}

/* Of object, which is taken, or of what the file holds where it is NULL. */
static config_file *make(const char *path, json_t *object, bool list, tn_error *err)
{
    config_file *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        json_decref(object);
        free(file);
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
        return NULL;
    }
    file->json = object;
    tn_status status = object ? TN_OK : parse(file, err);
    if (status == TN_OK)
        status = take_form(file, list, err);
    if (status == TN_OK && !(file->root = add_node(file, NULL, "", file->json)))
        status = tn_fail(err, TN_E_MEMORY, path, "out of memory");
    if (status == TN_OK)
        return file;
    config_close(file);
    return NULL;
}

config_file *config_open(const char *path, tn_error *err)
{
    return make(path, NULL, false, err);
}

config_file *config_open_list(const char *path, tn_error *err)
{
    return make(path, NULL, true, err);
}

config_file *config_open_object(const char *path, json_t *object, tn_error *err)
{
    return make(path, object, false, err);
}

config_file *config_open_text(const char *path, const char *text, tn_error *err)
{
    char *copy = strdup(text);
    json_t *json = NULL;
    if (copy)
        json = json_infinity_load(path, copy, strlen(copy), err);
    else
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    free(copy);
    return json ? make(path, json, false, err) : NULL;
}

void config_close(config_file *file)
{
    if (!file)
        return;
    for (config_node *node = file->nodes, *next; node; node = next) {
        next = node->next;
        json_decref(node->own);
        free(node->path);
        free(node);
    }
    json_decref(file->json);
    free(file->path);
    free(file);
}

config_reader config_root(const config_file *file, tn_status *status, tn_error *err)
{
    return (config_reader){file->root, status, err};
}

/* ---- failing ------------------------------------------------------------------------------------ */

static void fail(const config_reader *c, tn_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void fail(const config_reader *c, tn_status code, const char *format, ...)
{
    char text[sizeof((tn_error *)0)->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (*c->status == TN_OK)
        *c->status = tn_fail(c->err, code, c->node->file->path, "%s", text);
}

void config_fail(const config_reader *c, const char *key, const char *format, ...)
{
    char text[sizeof((tn_error *)0)->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail(c, TN_E_INPUT, "key '%s%s' %s", c->node->path, key, text);
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number", [JSON_TRUE] = "a boolean",
        [JSON_FALSE] = "a boolean",    [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

/* index < 0: the value itself, else an element of the list that it is. */
static void fail_type(const config_reader *c, const char *key, int64_t index, const json_t *value, const char *expected)
{
    if (index < 0)
        config_fail(c, key, "must be %s, it is %s", expected, type_name(value));
    else
        fail(c, TN_E_INPUT, "key '%s%s', element %" PRId64 " must be %s, it is %s", c->node->path, key, index, expected,
             type_name(value));
}

/* ---- objects ------------------------------------------------------------------------------------ */

/* The value of key, or NULL when it is absent or null, or after an error. */
static const json_t *find(const config_reader *c, const char *key)
{
    const json_t *value = *c->status == TN_OK ? json_object_get(c->node->object, key) : NULL;
    return json_is_null(value) ? NULL : value;
}

bool config_has(const config_reader *c, const char *key)
{
    return find(c, key) != NULL;
}

const char *config_either(const config_reader *c, const char *key, const char *other)
{
    return key && (config_has(c, key) || !config_has(c, other)) ? key : other;
}

bool config_is_null(const config_reader *c, const char *key)
{
    return json_is_null(json_object_get(c->node->object, key));
}

const char *config_key(const config_reader *c, int64_t index)
{
    json_t *object = *c->status == TN_OK ? (json_t *)c->node->object : NULL;
    void *at = json_object_iter(object);
    while (at && index-- > 0)
        at = json_object_iter_next(object, at);
    return json_object_iter_key(at);
}

/* The node of key that is there already, or NULL. */
static const config_node *find_node(const config_reader *c, const char *key)
{
    size_t length = strlen(key);
    for (const config_node *known = c->node->file->nodes; known; known = known->next)
        if (known->parent == c->node && !strncmp(known->name, key, length) && !strcmp(known->name + length, "."))
            return known;
    return NULL;
}

config_reader config_child(const config_reader *c, const char *key)
{
    const json_t *value = find(c, key);
    if (value && !json_is_object(value))
        fail_type(c, key, -1, value, "an object");
    if (*c->status != TN_OK)
        return *c;
    const config_node *child = find_node(c, key);
    if (!child && !(child = add_node(c->node->file, c->node, key, value)))
        fail(c, TN_E_MEMORY, "out of memory");
    return (config_reader){child ? child : c->node, c->status, c->err};
}

config_reader config_child_list(const config_reader *c, const char *key)
{
    const json_t *value = find(c, key);
    if (value && !json_is_array(value))
        fail_type(c, key, -1, value, "a list");
    const config_node *known = *c->status == TN_OK ? find_node(c, key) : c->node;
    if (known)
        return (config_reader){known, c->status, c->err};
    json_t *object = value ? number_keys(value) : NULL;
    config_node *child = object || !value ? add_node(c->node->file, c->node, key, object) : NULL;
    if (child)
        child->own = object;
    else {
        json_decref(object);
        fail(c, TN_E_MEMORY, "out of memory");
    }
    return (config_reader){child ? child : c->node, c->status, c->err};
}

bool config_is_object(const config_reader *c, const char *key)
{
    return json_is_object(find(c, key));
}

config_reader config_around(const config_reader *c)
{
    return (config_reader){c->node->parent ? c->node->parent : c->node, c->status, c->err};
}

/* ---- values ------------------------------------------------------------------------------------- */

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

int64_t config_i64(const config_reader *c, const char *key, int64_t fallback, int64_t min, int64_t max)
{
    const json_t *value = find(c, key);
    int64_t number = fallback;
    if (!value)
        return fallback;
    if (!read_i64(value, &number))
        fail_type(c, key, -1, value, "an integer");
    else if (number < min || number > max)
        config_fail(c, key, "is %" PRId64 ", it must lie between %" PRId64 " and %" PRId64, number, min, max);
    else
        return number;
    return fallback;
}

int64_t config_need_i64(const config_reader *c, const char *key, int64_t min, int64_t max)
{
    if (!find(c, key))
        config_fail(c, key, "is missing");
    return config_i64(c, key, min, min, max);
}

/* Numbers, and the objects {"__float__": "Infinity"} that transformers writes since version 5. */
static bool read_f64(const json_t *value, double *out)
{
    double infinite = json_infinity(json_string_value(json_object_get(value, "__float__")));
    if (infinite != 0)
        *out = infinite;
    else if (json_is_number(value))
        *out = json_number_value(value);
    return infinite != 0 || json_is_number(value);
}

double config_f64(const config_reader *c, const char *key, double fallback)
{
    const json_t *value = find(c, key);
    double number = fallback;
    if (value && !read_f64(value, &number))
        fail_type(c, key, -1, value, "a number");
    return number;
}

bool config_bool(const config_reader *c, const char *key, bool fallback)
{
    const json_t *value = find(c, key);
    if (value && !json_is_boolean(value))
        fail_type(c, key, -1, value, "a boolean");
    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

const char *config_str(const config_reader *c, const char *key, const char *fallback)
{
    const json_t *value = find(c, key);
    if (value && !json_is_string(value))
        fail_type(c, key, -1, value, "a string");
    return json_is_string(value) ? json_string_value(value) : fallback;
}

bool config_is_str(const config_reader *c, const char *key)
{
    return json_is_string(find(c, key));
}

static bool is_nothing(const json_t *value, double nothing)
{
    return !value || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == nothing);
}

bool config_says(const config_reader *c, const char *key, double nothing, char *text, size_t size)
{
    static const size_t FLAGS = JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6);
    static const char cut[] = "...";
    const json_t *value = find(c, key);
    if (is_nothing(value, nothing))
        return false;
    memset(text, 0, size);
    if (json_dumpb(value, text, size - sizeof cut, FLAGS) > size - sizeof cut)
        strcat(text, cut);
    return true;
}

/* What "silu" means among words; an error at key (or its element index) that lists them where it means nothing. */
static int32_t choose(const config_reader *c, const char *key, const char *text, const config_word *words)
{
    char known[256] = "";
    for (size_t i = 0, used = 0; words[i].name; i++) {
        if (!strcmp(text, words[i].name))
            return words[i].value;
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", words[i].name);
    }
    config_fail(c, key, "is '%s'; supported are %s", text, known);
    return words[0].value;
}

int32_t config_choice(const config_reader *c, const char *key, const char *fallback, const config_word *words)
{
    return choose(c, key, config_str(c, key, fallback), words);
}

/* ---- lists -------------------------------------------------------------------------------------- */

int64_t config_list(const config_reader *c, const char *key)
{
    const json_t *value = find(c, key);
    if (!value)
        return -1;
    return json_is_array(value) ? (int64_t)json_array_size(value) : 1;
}

/* NULL after an error too. */
static const json_t *find_element(const config_reader *c, const char *key, int64_t index)
{
    const json_t *value = find(c, key);
    if (json_is_array(value))
        value = index < 0 ? NULL : json_array_get(value, (size_t)index);
    else if (index != 0)
        value = NULL;
    if (!value)
        config_fail(c, key, "has no element %" PRId64, index);
    return value;
}

int64_t config_list_i64(const config_reader *c, const char *key, int64_t index)
{
    const json_t *value = find_element(c, key, index);
    int64_t number = 0;
    if (value && !read_i64(value, &number))
        fail_type(c, key, index, value, "an integer");
    return number;
}

int64_t config_list_pair(const config_reader *c, const char *key, int64_t index, int axis)
{
    const json_t *value = find_element(c, key, index);
    int64_t number = 0;
    if (value && (json_array_size(value) != 2 || !read_i64(json_array_get(value, (size_t)axis), &number)))
        fail_type(c, key, index, value, "two integers");
    return number;
}

double config_list_f64(const config_reader *c, const char *key, int64_t index)
{
    const json_t *value = find_element(c, key, index);
    double number = 0;
    if (value && !read_f64(value, &number))
        fail_type(c, key, index, value, "a number");
    return number;
}

const char *config_list_str(const config_reader *c, const char *key, int64_t index)
{
    const json_t *value = find_element(c, key, index);
    if (value && !json_is_string(value))
        fail_type(c, key, index, value, "a string");
    return json_is_string(value) ? json_string_value(value) : "";
}

int32_t config_list_choice(const config_reader *c, const char *key, int64_t index, const config_word *words)
{
    const char *text = config_list_str(c, key, index);
    return *c->status == TN_OK ? choose(c, key, text, words) : words[0].value;
}

bool config_list_holds(const config_reader *c, const char *key, int64_t number)
{
    for (int64_t i = 0, count = config_list(c, key); i < count; i++)
        if (config_list_i64(c, key, i) == number)
            return *c->status == TN_OK;
    return false;
}

static bool is_among(const char *key, const char *const *keys)
{
    for (size_t i = 0; keys[i]; i++)
        if (!strcmp(key, keys[i]))
            return true;
    return false;
}

void config_only(const config_reader *c, const char *const *keys)
{
    const char *key;
    json_t *value;
    char known[256] = "";
    for (size_t i = 0, used = 0; keys[i] && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", keys[i]);
    if (*c->status != TN_OK || !c->node->object)
        return;
    json_object_foreach ((json_t *)c->node->object, key, value)
        if (!is_among(key, keys))
            config_fail(c, key, "is not supported here; what is: %s", known);
}
