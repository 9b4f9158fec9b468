/* Log-probabilities of tokens: natural logarithms of the softmax of a model's raw logits. */
#ifndef TENON_SERVE_LIKELIHOOD_H
#define TENON_SERVE_LIKELIHOOD_H

#include "state.h"

/* Stands for what JSON lacks, minus infinity, and for all that is less. */
#define LIKELIHOOD_LEAST (-9999.0)

typedef struct likelihood {
    const api *api;
    int64_t top;   /* the likeliest tokens that are told                                           */
    bool chat;     /* entries in the form of chats; else of completions                            */
    float *logits; /* [info.vocab]: those of the next token                                        */
    bool seen;
} likelihood;

/* Takes raw logits. false: no memory. */
bool likelihood_see(likelihood *l, const float *logits);
void likelihood_free(likelihood *l);

/* What is said of a token, by the logits that were seen last: text is what it showed. Of chats {"token", "logprob",
 * "bytes", "top_logprobs"}, of completions {"token", "logprob", "top"}; there, where no logits were seen, the last two
 * are null. Owned; NULL: no memory. */
json_t *likelihood_entry(const likelihood *l, int64_t id, const char *text, size_t length);

#endif
