/* /completions: texts that go on where a prompt ends. */
#ifndef TENON_SERVE_COMPLETIONS_H
#define TENON_SERVE_COMPLETIONS_H

#include "reply.h"

void completions_answer(api *a, exchange *x);

/* What /completions and /embeddings take: a string, an array of strings, token ids, or an array of arrays of ids.
 * special: what the tokenizer puts around texts of its own accord is wanted. false: e says what is wrong. */
bool completions_prompts(const api *a, const json_t *given, const char *name, reply_prompt **prompts, size_t *count,
                         request_error *e);
void completions_free(reply_prompt *prompts, size_t count);

#endif
