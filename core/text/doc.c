/* Access to tokenizer.json; the only file of core/text that includes jansson. */
#include "text/doc.h"

#include "base/file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The largest file published is about 35 MB; a parsed one takes some ten times its size. */
#define DOC_LIMIT ((size_t)256 << 20)

/* A doc is the parsed root, a doc_node any value: both are jansson's own objects behind another name. */
static const json_t *value_of(const doc_node *node)
{
    return (const json_t *)(const void *)node;
}

static const doc_node *node_of(const json_t *value)
{
    return (const doc_node *)(const void *)value;
}

doc *doc_open(const char *path, tn_error *err)
{
    size_t size;
    char *data;
    if (file_read(path, DOC_LIMIT, &data, &size, err) != TN_OK)
        return NULL;
    json_error_t error;
    json_t *root = json_loadb(data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    free(data);
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
