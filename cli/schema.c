/* A schema over what a model says. */
#include "schema.h"

#include <stdlib.h>
#include <string.h>

static bool is_inline(const char *given)
{
    return given[strspn(given, " \t\n")] == '{';
}

tn_status schema_open(schema_limit *l, const char *given, const tn_tokenizer *tokenizer, const tn_model_info *info,
                      tn_error *err)
{
    static const tn_grammar_part part = TN_GRAMMAR_SCHEMA;
    char *text = NULL;
    size_t length;
    tn_status status = is_inline(given) ? TN_OK : read_prompt_text(given, &text, &length, err);
    if (status != TN_OK)
        return status;
    const char *schema = text ? text : given;
    l->endless = info->eos_total == 0;
    l->vocabulary = tn_vocabulary_new(tokenizer, info->vocab, info->eos_ids, (size_t)info->eos_total, err);
    if (l->vocabulary)
        l->grammar = tn_grammar_new(l->vocabulary, &part, &schema, 1, err);
    if (l->grammar)
        l->state = tn_grammar_state_new(l->grammar, err);
    free(text);
    return l->state ? TN_OK : err->code;
}

void schema_close(schema_limit *l)
{
    tn_grammar_state_free(l->state);
    tn_grammar_free(l->grammar);
    tn_vocabulary_free(l->vocabulary);
}

bool schema_token(schema_limit *l, int64_t id)
{
    return !l->state ||
           (tn_grammar_accept(l->state, id, NULL) == TN_OK && !(l->endless && tn_grammar_is_done(l->state)));
}
