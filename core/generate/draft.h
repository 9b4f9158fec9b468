/* Inside core: what may come next, copied from what the text already said. A draft costs little where it is wrong: it
 * is checked together with the token before it, in one call. */
#ifndef TENON_CORE_DRAFT_H
#define TENON_CORE_DRAFT_H

#include <tenon/error.h>

#include <stdint.h>

typedef struct draft {
    int64_t most;            /* tokens of a draft; 0: there are none                                        */
    int64_t *text;           /* of one row, with what was generated                                    */
    int64_t count, capacity; /* tokens of it                                                           */
    int64_t length;          /* of the next draft, which follows what the last ones were worth                */
    int64_t pause, failures; /* tokens until the next one, more after each that was of no use                */
    int64_t made, kept;      /* tokens drafted, and those of them that were what came                         */
} draft;

/* most: at most so many tokens at a time; capacity: of the text. draft_close is due also after a failure. */
tn_status draft_init(draft *d, int64_t most, int64_t capacity, tn_error *err);
void draft_close(draft *d);

/* Tokens of the text in order. Those beyond its capacity are not looked at. */
void draft_see(draft *d, const int64_t *ids, int64_t count);

/* Up to `room` tokens that followed the longest passage that the text ends with, where it came before, the last time.
 * Returns how many, 0 where nothing is to be tried now; ids has room for `most`. */
int64_t draft_make(draft *d, int64_t room, int64_t *ids);

/* So many of a draft's tokens were what came. */
void draft_learn(draft *d, int64_t made, int64_t kept);

#endif
