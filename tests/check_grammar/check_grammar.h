/* A grammar of a file, and the tokens that it is tried with. */
#ifndef TEST_CHECK_GRAMMAR_H
#define TEST_CHECK_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <tenon/tenon.h>

typedef struct token {
    const char *bytes;
    size_t length;
    bool is_end;
} token;

typedef struct tokens {
    tn_tokenizer *tokenizer;
    tn_vocabulary *vocabulary;
    char *bytes;
    token *list;
    int64_t count, end; /* end: one past the tokenizer's ids, so that it is nothing else                          */
} tokens;

bool tokens_open(tokens *t, const char *folder, tn_error *err);
void tokens_close(tokens *t);

typedef struct checked {
    const char *name;
    const tokens *tokens;
    json_t *file, *schema; /* schema: the only part; or NULL                                                      */
    bool json;
    const char *regex;
    tn_grammar *grammar;
    uint64_t *bits;
    double seconds; /* of compiling                                                                              */
    char problem[1024];
} checked;

bool checked_open(checked *c, const char *folder, const char *name, const tokens *tokens);
void checked_close(checked *c);

/* Times the masks along the texts that pass, new ones and once more; then of all. */
void bench_grammar(const checked *c);
void bench_end(void);

#endif
