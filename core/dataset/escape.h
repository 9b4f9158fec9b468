/* Inside core: a tokenizer's special tokens in a text that people wrote, where they are none. */
#ifndef TENON_CORE_ESCAPE_H
#define TENON_CORE_ESCAPE_H

#include <tenon/text.h>

#include <jansson.h>

typedef struct escape_token {
    char *text; /* owned */
    size_t length;
    int64_t id;
} escape_token;

typedef struct escape {
    const tn_tokenizer *tokenizer;
    escape_token *tokens; /* the longest first */
    size_t count;
} escape;

/* The special tokens of more than one character. */
tn_status escape_open(escape *e, const tn_tokenizer *tokenizer, tn_error *err);
void escape_close(escape *e);

/* The text of JSON, or all texts in a value of it, in each of whose special tokens a zero-width space stands behind the
 * first character. Owned by the caller, and may be the value itself. NULL: TN_E_INPUT where the tokenizer finds a
 * special token nevertheless. */
json_t *escape_value(const escape *e, json_t *value, tn_error *err);

#endif
