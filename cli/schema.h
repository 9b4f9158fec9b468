/* --schema: an answer that a JSON schema allows. */
#ifndef TENON_CLI_SCHEMA_H
#define TENON_CLI_SCHEMA_H

#include "cli.h"

typedef struct schema_limit {
    tn_vocabulary *vocabulary;
    tn_grammar *grammar;
    tn_grammar_state *state; /* NULL: no schema was given                                              */
    bool endless;            /* the model has no token that ends a text                                */
} schema_limit;

/* given: the schema itself, where it begins with a brace, or its file. schema_close is due also after a failure. */
tn_status schema_open(schema_limit *l, const char *given, const tn_tokenizer *tokenizer, const tn_model_info *info,
                      tn_error *err);
void schema_close(schema_limit *l);

/* A token that was drawn; false: nothing may follow it. */
bool schema_token(schema_limit *l, int64_t id);

#endif
