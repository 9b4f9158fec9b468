/* Access to tokenizer.json; the only file of core/text that includes jansson. */
#include "text/doc.h"

#include "text/tokenizer.h"

#include <jansson.h>
#include <string.h>

/* A doc is the parsed root, a doc_node any value: both are jansson's own objects behind another name. */
static const json_t *value_of(const doc_node *node)
{
    return (const json_t *)(const void *)node;
}

static const doc_node *node_of(const json_t *value)
{
    return (const doc_node *)(const void *)value;
}

doc *doc_parse(const char *text, size_t size, const char *path, tn_error *err)
{
    json_error_t error;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!root) {
        bool memory = json_error_code(&error) == json_error_out_of_memory;
        tn_fail(err, memory ? TN_E_MEMORY : TN_E_INPUT, path,
                "not valid JSON at line %d, column %d: %s; fetch it again", error.line, error.column, error.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        tn_fail(err, TN_E_INPUT, path, "holds no JSON object; fetch it again");
        json_decref(root);
        return NULL;
    }
    return (doc *)(void *)root;
}

void doc_close(doc *document)
{
    json_decref((json_t *)(void *)document);
}

const doc_node *doc_root(const doc *document)
{
    return (const doc_node *)(const void *)document;
}

const doc_node *doc_get(const doc_node *node, const char *key)
{
    const json_t *value = json_object_get(value_of(node), key);
    return value && !json_is_null(value) ? node_of(value) : NULL;
}

bool doc_is_object(const doc_node *node)
{
    return json_is_object(value_of(node));
}

bool doc_is_list(const doc_node *node)
{
    return json_is_array(value_of(node));
}

size_t doc_count(const doc_node *node)
{
    return doc_is_list(node) ? json_array_size(value_of(node)) : json_object_size(value_of(node));
}

const doc_node *doc_at(const doc_node *list, size_t index)
{
    return node_of(json_array_get(value_of(list), index));
}

bool doc_next(const doc_node *object, void **iterator, const char **key, const doc_node **value)
{
    json_t *self = (json_t *)(uintptr_t)value_of(object); /* jansson's iterators take it unconst; they only read */
    *iterator = *iterator ? json_object_iter_next(self, *iterator) : json_object_iter(self);
    if (!*iterator)
        return false;
    *key = json_object_iter_key(*iterator);
    *value = node_of(json_object_iter_value(*iterator));
    return true;
}

const char *doc_text(const doc_node *node, size_t *length)
{
    *length = json_string_length(value_of(node));
    return json_string_value(value_of(node));
}

bool doc_integer(const doc_node *node, int64_t *value)
{
    if (!json_is_integer(value_of(node)))
        return false;
    *value = json_integer_value(value_of(node));
    return true;
}

bool doc_number(const doc_node *node, double *value)
{
    if (!json_is_number(value_of(node)))
        return false;
    *value = json_number_value(value_of(node));
    return true;
}

static tn_status wrong_type(const char *key, const char *type, place at, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, at.file, "%s: '%s' is not %s; correct the file", at.component, key, type);
}

tn_status doc_get_flag(const doc_node *node, const char *key, bool *value, place at, tn_error *err)
{
    const doc_node *member = doc_get(node, key);
    if (!member)
        return TN_OK;
    if (!json_is_boolean(value_of(member)))
        return wrong_type(key, "true or false", at, err);
    *value = json_is_true(value_of(member));
    return TN_OK;
}

tn_status doc_get_integer(const doc_node *node, const char *key, int64_t *value, place at, tn_error *err)
{
    const doc_node *member = doc_get(node, key);
    if (member && !doc_integer(member, value))
        return wrong_type(key, "an integer", at, err);
    return TN_OK;
}

tn_status doc_get_text(const doc_node *node, const char *key, const char **text, size_t *length, place at,
                       tn_error *err)
{
    const doc_node *member = doc_get(node, key);
    if (!member)
        return TN_OK;
    if (!json_is_string(value_of(member)))
        return wrong_type(key, "a string", at, err);
    *text = doc_text(member, length);
    return TN_OK;
}

static tn_status need(const doc_node *node, const char *key, place at, tn_error *err)
{
    if (doc_get(node, key))
        return TN_OK;
    return tn_fail(err, TN_E_INPUT, at.file, "%s: '%s' of %s is missing; correct the file", at.component, key,
                   doc_type(node));
}

tn_status doc_need_flag(const doc_node *node, const char *key, bool *value, place at, tn_error *err)
{
    tn_status status = need(node, key, at, err);
    return status == TN_OK ? doc_get_flag(node, key, value, at, err) : status;
}

tn_status doc_need_integer(const doc_node *node, const char *key, int64_t *value, place at, tn_error *err)
{
    tn_status status = need(node, key, at, err);
    if (status == TN_OK)
        status = doc_get_integer(node, key, value, at, err);
    if (status == TN_OK && *value < 0)
        status = tn_fail(err, TN_E_INPUT, at.file, "%s: '%s' is negative; correct the file", at.component, key);
    return status;
}

tn_status doc_need_text(const doc_node *node, const char *key, const char **text, size_t *length, place at,
                        tn_error *err)
{
    tn_status status = need(node, key, at, err);
    return status == TN_OK ? doc_get_text(node, key, text, length, at, err) : status;
}

tn_status doc_need_character(const doc_node *node, const char *key, const char **text, size_t *length, place at,
                             tn_error *err)
{
    tn_status status = doc_need_text(node, key, text, length, at, err);
    if (status == TN_OK && (*length == 0 || utf8_read(*text, *length).length != *length))
        status = tn_fail(err, TN_E_INPUT, at.file, "%s: '%s' of %s is not one character; correct the file",
                         at.component, key, doc_type(node));
    return status;
}

/* Is name among the words of a list? */
static bool is_listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *word = list; *word; word += *word == ' ') {
        size_t n = strcspn(word, " ");
        if (n == length && memcmp(word, name, n) == 0)
            return true;
        word += n;
    }
    return false;
}

tn_status doc_only(const doc_node *node, const char *names, place at, tn_error *err)
{
    const char *key;
    const doc_node *value;
    for (void *it = NULL; doc_next(node, &it, &key, &value);)
        if (strcmp(key, "type") != 0 && !is_listed(names, key) && !json_is_null(value_of(value)) &&
            !json_is_false(value_of(value)))
            return tn_fail(err, TN_E_INPUT, at.file, "%s: '%.60s' of %s is not known; use a newer version or remove it",
                           at.component, key, doc_type(node));
    return TN_OK;
}

const char *doc_type(const doc_node *node)
{
    size_t length;
    const char *type = doc_text(doc_get(node, "type"), &length);
    return type ? type : "";
}

tn_status doc_unsupported(const doc_node *node, const char *supported, place at, tn_error *err)
{
    if (!doc_is_object(node))
        return tn_fail(err, TN_E_INPUT, at.file, "%s: not an object; correct the file", at.component);
    return tn_fail(err, TN_E_INPUT, at.file, "%s: type '%s' is not supported; supported are %s", at.component,
                   doc_type(node), supported);
}
