/* Grammars of files, and tokens. */
#include "check_grammar.h"

#include "base/clock.h"
#include "text/token_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tokens_open(tokens *t, const char *folder, tn_error *err)
{
    buffer bytes = {0};
    *t = (tokens){.tokenizer = tn_tokenizer_open(folder, err)};
    if (!t->tokenizer)
        return false;
    t->end = tn_tokenizer_size(t->tokenizer);
    t->count = t->end + 1;
    t->list = calloc((size_t)t->count, sizeof *t->list);
    size_t *starts = calloc((size_t)t->count + 1, sizeof *starts);
    tn_status status = TN_OK;
    for (int64_t id = 0; id < t->count && status == TN_OK; id++) {
        token_kind kind;
        starts[id] = bytes.size;
        status = token_bytes(t->tokenizer, id, &bytes, &kind, err);
        t->list[id].length = bytes.size - starts[id];
    }
    t->bytes = bytes.data;
    for (int64_t id = 0; id < t->count; id++)
        t->list[id].bytes = t->bytes + starts[id];
    t->list[t->end].is_end = true;
    free(starts);
    t->vocabulary = status == TN_OK ? tn_vocabulary_new(t->tokenizer, t->count, &t->end, 1, err) : NULL;
    return t->vocabulary != NULL;
}

void tokens_close(tokens *t)
{
    tn_vocabulary_free(t->vocabulary);
    tn_tokenizer_free(t->tokenizer);
    free(t->list);
    free(t->bytes);
}

static tn_grammar_part part_of(const char *name)
{
    static const char *const names[] = {"literal", "schema", "object", "regex", "or"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return (tn_grammar_part)i;
    return (tn_grammar_part)-1;
}

static bool compile(checked *c, json_t *parts)
{
    enum { MOST_PARTS = 16 };
    tn_grammar_part kinds[MOST_PARTS];
    char *texts[MOST_PARTS];
    size_t count = json_array_size(parts) < MOST_PARTS ? json_array_size(parts) : MOST_PARTS;
    tn_error err = TN_ERROR_INIT;
    for (size_t i = 0; i < count; i++) {
        json_t *part = json_array_get(parts, i), *text = json_array_get(part, 1);
        kinds[i] = part_of(json_string_value(json_array_get(part, 0)));
        texts[i] = kinds[i] == TN_GRAMMAR_SCHEMA ? json_dumps(text, JSON_ENCODE_ANY)
                   : text                        ? strdup(json_string_value(text))
                                                 : NULL;
        c->json = count == 1 && (kinds[i] == TN_GRAMMAR_SCHEMA || kinds[i] == TN_GRAMMAR_OBJECT);
        c->regex = count == 1 && kinds[i] == TN_GRAMMAR_REGEX ? json_string_value(text) : NULL;
    }
    double start = clock_seconds();
    c->grammar = tn_grammar_new(c->tokens->vocabulary, kinds, (const char *const *)texts, count, &err);
    c->seconds = clock_seconds() - start;
    for (size_t i = 0; i < count; i++)
        free(texts[i]);
    snprintf(c->problem, sizeof c->problem, "%s", err.message);
    return c->grammar != NULL;
}

bool checked_open(checked *c, const char *folder, const char *name, const tokens *tokens)
{
    char path[1024];
    json_error_t at;
    *c = (checked){.name = name, .tokens = tokens};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    c->file = json_load_file(path, 0, &at);
    c->bits = calloc(tn_vocabulary_words(tokens->vocabulary), sizeof *c->bits);
    snprintf(c->problem, sizeof c->problem, "%s", at.text);
    if (!c->file || json_object_get(c->file, "refused"))
        return c->file != NULL;
    c->schema = json_object_get(c->file, "schema");
    json_t *parts =
        c->schema ? json_pack("[[s,O]]", "schema", c->schema) : json_incref(json_object_get(c->file, "parts"));
    bool good = compile(c, parts);
    json_decref(parts);
    return good;
}

void checked_close(checked *c)
{
    tn_grammar_free(c->grammar);
    json_decref(c->file);
    free(c->bits);
}
