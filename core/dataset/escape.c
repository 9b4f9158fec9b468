/* Special tokens broken by a zero-width space, as LLaMA-Factory breaks them: the longest first, each in what the ones
 * before have left. */
#include "dataset/escape.h"

#include "text/tokenizer.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

static const char SPACE[] = "\xe2\x80\x8b"; /* U+200B */

static int by_length(const void *a, const void *b)
{
    const escape_token *x = a, *y = b;
    return x->length != y->length ? (x->length < y->length ? 1 : -1) : strcmp(x->text, y->text);
}

tn_status escape_open(escape *e, const tn_tokenizer *tokenizer, tn_error *err)
{
    const added *all = &tokenizer->added;
    const vocab *v = &tokenizer->vocab;
    *e = (escape){.tokenizer = tokenizer, .tokens = calloc(all->count + 1, sizeof *e->tokens)};
    for (size_t i = 0; e->tokens && i < all->count; i++) {
        const added_token *t = &all->tokens[i];
        const vocab_token *named = t->id < v->size ? &v->tokens[t->id] : NULL;
        if (!t->special || !named || !named->present || named->length == 0)
            continue;
        const char *text = v->strings.data + named->offset;
        if (utf8_read(text, named->length).length == named->length)
            continue;
        escape_token *to = &e->tokens[e->count];
        *to = (escape_token){strndup(text, named->length), named->length, t->id};
        if (!to->text) {
            escape_close(e);
            break;
        }
        e->count++;
    }
    if (!e->tokens)
        return tn_fail(err, TN_E_MEMORY, "special tokens", "out of memory");
    qsort(e->tokens, e->count, sizeof *e->tokens, by_length);
    return TN_OK;
}

void escape_close(escape *e)
{
    for (size_t i = 0; i < e->count; i++)
        free(e->tokens[i].text);
    free(e->tokens);
    *e = (escape){0};
}

/* Breaks one token wherever it stands in b; false: no memory. */
static bool break_token(buffer *b, const escape_token *t, bool *any)
{
    const char *found = memmem(b->data, b->size, t->text, t->length);
    if (!found)
        return true;
    buffer out = {0};
    size_t at = 0, first = utf8_read(t->text, t->length).length;
    bool good = true;
    *any = true;
    for (; good && found; found = memmem(b->data + at, b->size - at, t->text, t->length)) {
        size_t place = (size_t)(found - b->data);
        good = buffer_add(&out, b->data + at, place - at + first) && buffer_add(&out, SPACE, sizeof SPACE - 1) &&
               buffer_add(&out, t->text + first, t->length - first);
        at = place + t->length;
    }
    good = good && buffer_add(&out, b->data + at, b->size - at);
    buffer_free(b);
    *b = out;
    return good;
}

/* Some tokenizers take the space away before they look for tokens. What else is special stands for the space itself. */
static tn_status check(const escape *e, const buffer *b, const char *before, size_t length, tn_error *err)
{
    int64_t *ids = NULL;
    size_t count = 0;
    tn_status status = tn_tokenizer_encode(e->tokenizer, b->data, b->size, false, &ids, &count, err);
    for (size_t k = 0; k < e->count && status == TN_OK; k++) {
        const escape_token *t = &e->tokens[k];
        bool there = memmem(before, length, t->text, t->length) != NULL, found = false;
        for (size_t i = 0; i < count && there; i++)
            found |= ids[i] == t->id;
        if (found)
            status = tn_fail(err, TN_E_INPUT, NULL,
                             "has the special token '%s' in a text, which the tokenizer sees through a zero-width "
                             "space; leave it out",
                             t->text);
    }
    free(ids);
    return status;
}

/* *any: the text has become another. */
static tn_status break_all(const escape *e, buffer *b, const char *before, size_t length, bool *any, tn_error *err)
{
    for (size_t i = 0; i < e->count && length > 0; i++)
        if (!break_token(b, &e->tokens[i], any))
            return tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    return *any ? check(e, b, before, length, err) : TN_OK;
}

json_t *escape_value(const escape *e, json_t *value, tn_error *err)
{
    bool any = false, text = json_is_string(value);
    buffer b = {0};
    char *dumped = text ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    const char *from = text ? json_string_value(value) : dumped;
    size_t length = text ? json_string_length(value) : from ? strlen(from) : 0;
    if (!from || !buffer_add(&b, from, length)) {
        free(dumped);
        tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
        return NULL;
    }
    tn_status status = break_all(e, &b, from, length, &any, err);
    free(dumped);
    json_t *made = NULL;
    if (status == TN_OK && any)
        made = text ? json_stringn(b.data, b.size) : json_loadb(b.data, b.size, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    else if (status == TN_OK)
        made = json_incref(value);
    if (status == TN_OK && !made)
        tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    buffer_free(&b);
    return made;
}
