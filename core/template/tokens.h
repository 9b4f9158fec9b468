/* Inside core: the tokens of a template, with its white space already as trim_blocks, lstrip_blocks and the signs in
 * tags want it. */
#ifndef TENON_CORE_TOKENS_H
#define TENON_CORE_TOKENS_H

#include "template/value.h"

typedef enum token_kind {
    TOKEN_END,
    TOKEN_DATA,
    TOKEN_PRINT, /* {{ and }} */
    TOKEN_PRINT_END,
    TOKEN_BLOCK, /* {% and %} */
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_NUMBER,
    TOKEN_OPERATOR
} token_kind;

typedef struct token {
    token_kind kind;
    int line;
    char symbol[3]; /* OPERATOR                                  */
    value content;  /* DATA, NAME and STRING: a text; NUMBER: its value */
} token;

typedef struct token_list {
    token *items;
    size_t count, capacity;
} token_list;

/* All tokens of a source in UTF-8, END the last. */
void tokens_read(sandbox *s, const char *source, size_t size, token_list *tokens);

/* What a token is, for messages. */
const char *tokens_show(sandbox *s, const token *t);

#endif
