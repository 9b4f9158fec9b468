/* The log-probabilities of generated tokens, for --json: those that the model computed, before penalty and temperature.
 */
#ifndef TENON_LOGPROBS_H
#define TENON_LOGPROBS_H

#include "cli.h"

enum { LOGPROBS_MOST = 20 };

typedef struct logprobs {
    const tn_tokenizer *tokenizer; /* NULL: there are no texts                                    */
    int64_t most, vocab;           /* how many of the likeliest are told                          */
    float *logits;                 /* [vocab] of the next token; owned                            */
    json_t *list;                  /* [{"id", "text", "logprob", "top": [{"id", "text", "logprob"}]}]; owned */
} logprobs;

/* most: at most LOGPROBS_MOST. logprobs_close is due also after a failure. */
tn_status logprobs_open(logprobs *l, int64_t most, int64_t vocab, const tn_tokenizer *tokenizer, tn_error *err);
void logprobs_close(logprobs *l);

/* What the next token is chosen from; the token that was. */
void logprobs_see(logprobs *l, const float *logits);
tn_status logprobs_token(logprobs *l, int64_t id, tn_error *err);

#endif
