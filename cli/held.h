/* What a session holds of a conversation, of which only what is new is computed. */
#ifndef TENON_HELD_H
#define TENON_HELD_H

#include "attached.h"

typedef struct held {
    const options *o;
    tn_session *session; /* owned                                                                    */
    int64_t *ids;        /* [context] tokens, of which the session holds those before count; owned   */
    int64_t count;
    uint64_t files; /* the state of the conversation's files that it was given                          */
    int64_t seen;   /* tokens of the prompt that came with them                                        */
} held;

void held_close(held *h);
void held_forget(held *h);

/* Goes back to what the session and the new text have in common; returns how many tokens that are. One token at least
 * is left to compute, since the answer follows from it. Files are given with the whole text alone: where there are new
 * ones, or the text differs before they end, nothing is in common. */
int64_t held_reuse(held *h, const attached *files, const int64_t *ids, int64_t count);

/* Gives the session the rest of ids, and draws the answer to out. */
tn_status held_feed(held *h, const attached *files, const int64_t *ids, int64_t count, const tn_generate_options *g,
                    int64_t *out, tn_generate_result *r, tn_error *err);

/* What the session holds after a call: a beginning of ids and of the answer. */
void held_remember(held *h, const int64_t *ids, int64_t count, const int64_t *answer, int64_t written);

#endif
