/* Access to tokenizer.json. */
#include "text/doc.h"

#include "text/parse.h"
#include "text/utf8.h"

#include <stdarg.h>
#include <stdio.h>
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

tn_status doc_fail(doc_reader *r, const char *format, ...)
{
    char text[sizeof r->err->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (r->status == TN_OK)
        r->status = tn_fail(r->err, TN_E_INPUT, r->at.file, "%s: %s", r->at.component, text);
    return r->status;
}

tn_status doc_no_memory(doc_reader *r)
{
    if (r->status == TN_OK)
        r->status = tn_fail(r->err, TN_E_MEMORY, r->at.file, "out of memory");
    return r->status;
}

static void wrong_type(const char *key, const char *type, doc_reader *r)
{
    doc_fail(r, "'%s' is not %s; correct the file", key, type);
}

void doc_get_flag(const doc_node *node, const char *key, bool *value, doc_reader *r)
{
    const doc_node *member = doc_get(node, key);
    if (member && !is(member, PARSE_TRUE) && !is(member, PARSE_FALSE))
        wrong_type(key, "true or false", r);
    else if (member)
        *value = is(member, PARSE_TRUE);
}

void doc_get_integer(const doc_node *node, const char *key, int64_t *value, doc_reader *r)
{
    const doc_node *member = doc_get(node, key);
    if (member && !doc_integer(member, value))
        wrong_type(key, "an integer", r);
}

void doc_get_text(const doc_node *node, const char *key, const char **text, size_t *length, doc_reader *r)
{
    const doc_node *member = doc_get(node, key);
    if (member && !is(member, PARSE_TEXT))
        wrong_type(key, "a string", r);
    else if (member)
        *text = doc_text(member, length);
}

static void need(const doc_node *node, const char *key, doc_reader *r)
{
    if (!doc_get(node, key))
        doc_fail(r, "'%s' of %s is missing; correct the file", key, doc_type(node));
}

void doc_need_flag(const doc_node *node, const char *key, bool *value, doc_reader *r)
{
    need(node, key, r);
    doc_get_flag(node, key, value, r);
}

void doc_need_integer(const doc_node *node, const char *key, int64_t *value, doc_reader *r)
{
    need(node, key, r);
    doc_get_integer(node, key, value, r);
    if (*value < 0)
        doc_fail(r, "'%s' is negative; correct the file", key);
}

void doc_need_text(const doc_node *node, const char *key, const char **text, size_t *length, doc_reader *r)
{
    need(node, key, r);
    doc_get_text(node, key, text, length, r);
}

void doc_need_character(const doc_node *node, const char *key, const char **text, size_t *length, doc_reader *r)
{
    doc_need_text(node, key, text, length, r);
    if (*length == 0 || utf8_read(*text, *length).length != *length)
        doc_fail(r, "'%s' of %s is not one character; correct the file", key, doc_type(node));
}

const doc_node *doc_need_list(const doc_node *node, const char *key, doc_reader *r)
{
    const doc_node *list = doc_get(node, key);
    if (doc_is_list(list))
        return list;
    doc_fail(r, "'%s' is missing or no list; correct the file", key);
    return NULL;
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

void doc_only(const doc_node *node, const char *names, doc_reader *r)
{
    const char *key, *type = doc_type(node);
    const doc_node *value;
    size_t length;
    for (void *it = NULL; doc_next(node, &it, &key, &length, &value);)
        if (strcmp(key, "type") != 0 && !is_listed(names, key) && !is(value, PARSE_NULL) && !is(value, PARSE_FALSE))
            doc_fail(r, "'%.60s'%s%s is not known; use a newer version or remove it", key, *type ? " of " : "", type);
}

const char *doc_type(const doc_node *node)
{
    size_t length;
    const char *type = doc_text(doc_get(node, "type"), &length);
    return type ? type : "";
}

tn_status doc_unsupported(const doc_node *node, const char *supported, doc_reader *r)
{
    if (!doc_is_object(node))
        return doc_fail(r, "not an object; correct the file");
    return doc_fail(r, "type '%s' is not supported; supported are %s", doc_type(node), supported);
}
