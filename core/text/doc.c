/* Access to tokenizer.json. */
#include "text/doc.h"

#include "base/file.h"
#include "text/parse.h"

#include <stdlib.h>
#include <string.h>

/* The largest file published is about 35 MB; a parsed one takes about twice its size, at worst thirty times. */
#define DOC_LIMIT ((size_t)256 << 20)

struct doc {
    char *data; /* the file; texts lie in it                                                     */
    parse_tree tree;
};

static bool is(const doc_node *node, parse_kind kind)
{
    return node && node->kind == kind;
}

/* Reads data, which is taken: size bytes and a NUL. */
static doc *parse(char *data, size_t size, const char *path, tn_error *err)
{
    doc *document = calloc(1, sizeof *document);
    parse_error error;
    if (!document) {
        free(data);
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
        return NULL;
    }
    document->data = data;
    if (!parse_json(&document->tree, data, size, &error)) {
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

doc *doc_open(const char *path, tn_error *err)
{
    size_t size;
    char *data;
    return file_read(path, DOC_LIMIT, &data, &size, err) == TN_OK ? parse(data, size, path, err) : NULL;
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

bool doc_next(const doc_node *object, void **iterator, const char **key, const doc_node **value)
{
    if (!is(object, PARSE_OBJECT) || object->count == 0)
        return false;
    const doc_node *next = *iterator ? (const doc_node *)*iterator + 2 : object->is.children;
    if (next == object->is.children + 2 * (size_t)object->count)
        return false;
    *iterator = (void *)(uintptr_t)next;
    *key = next[0].is.text;
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
