/* Access to tokenizer.json. */
#include "text/doc.h"

#include "text/parse.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

struct doc {
    char *data; /* the file; texts lie in it                                                     */
    parse_tree tree;
};

static bool is(const doc_node *node, parse_kind kind)
{
    return node && node->kind == kind;
}

doc *doc_parse(char *text, size_t size, const char *path, tn_error *err)
{
    doc *document = calloc(1, sizeof *document);
    parse_error error;
    if (!document) {
        free(text);
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
        return NULL;
    }
    document->data = text;
    if (!parse_json(&document->tree, text, size, &error)) {
        if (error.text)
            tn_fail(err, TN_E_INPUT, path, "not valid JSON at line %zu, byte %zu: %s; fetch it again", error.line,
                    error.column, error.text);
        else
            tn_fail(err, TN_E_MEMORY, path, "out of memory");
    } else if (!is(&document->tree.root, PARSE_OBJECT)) {
        tn_fail(err, TN_E_INPUT, path, "holds no JSON object; fetch it again");
    } else {
        return document;
    }
    doc_close(document);
    return NULL;
}

void doc_close(doc *document)
{
    parse_free(&document->tree);
    free(document->data);
    free(document);
}

const doc_node *doc_root(const doc *document)
{
    return &document->tree.root;
}

const doc_node *doc_get(const doc_node *node, const char *key)
{
    const doc_node *value = is(node, PARSE_OBJECT) ? parse_find(node, key, strlen(key)) : NULL;
    return value && value->kind != PARSE_NULL ? value : NULL;
}

bool doc_is_object(const doc_node *node)
{
    return is(node, PARSE_OBJECT);
}

bool doc_is_list(const doc_node *node)
{
    return is(node, PARSE_LIST);
}

size_t doc_count(const doc_node *node)
{
    return doc_is_list(node) || doc_is_object(node) ? node->count : 0;
}

const doc_node *doc_at(const doc_node *list, size_t index)
{
    return doc_is_list(list) && index < list->count ? &list->is.children[index] : NULL;
}

bool doc_next(const doc_node *object, void **iterator, const char **key, size_t *length, const doc_node **value)
{
    if (!is(object, PARSE_OBJECT) || object->count == 0)
        return false;
    const doc_node *next = *iterator ? (const doc_node *)*iterator + 2 : object->is.children;
    if (next == object->is.children + 2 * (size_t)object->count)
        return false;
    *iterator = (void *)(uintptr_t)next;
    *key = next[0].is.text;
    *length = next[0].count;
    *value = &next[1];
    return true;
}

const char *doc_text(const doc_node *node, size_t *length)
{
    *length = is(node, PARSE_TEXT) ? node->count : 0;
    return is(node, PARSE_TEXT) ? node->is.text : NULL;
}

bool doc_integer(const doc_node *node, int64_t *value)
{
    if (!is(node, PARSE_INTEGER))
        return false;
    *value = node->is.integer;
    return true;
}

bool doc_number(const doc_node *node, double *value)
{
    if (!is(node, PARSE_INTEGER) && !is(node, PARSE_REAL))
        return false;
    *value = is(node, PARSE_REAL) ? node->is.real : (double)node->is.integer;
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
    if (!is(member, PARSE_TRUE) && !is(member, PARSE_FALSE))
        return wrong_type(key, "true or false", at, err);
    *value = is(member, PARSE_TRUE);
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
    if (!is(member, PARSE_TEXT))
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
    const char *key, *type = doc_type(node);
    const doc_node *value;
    size_t length;
    for (void *it = NULL; doc_next(node, &it, &key, &length, &value);)
        if (strcmp(key, "type") != 0 && !is_listed(names, key) && !is(value, PARSE_NULL) && !is(value, PARSE_FALSE))
            return tn_fail(err, TN_E_INPUT, at.file, "%s: '%.60s'%s%s is not known; use a newer version or remove it",
                           at.component, key, *type ? " of " : "", type);
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
