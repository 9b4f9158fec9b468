/* Inside core: the tokens of a session that may have to be computed again, since rotary frequencies that change with
 * the length leave keys in the cache that no longer fit. */
#ifndef TENON_CORE_PAST_H
#define TENON_CORE_PAST_H

#include <tenon/tenon.h>

typedef struct session_past {
    int64_t rows, capacity;          /* columns that are kept: those that a longer call starts again from; 0: none */
    int64_t *ids, *positions, *mask; /* [rows,capacity] each                                                  */
    int64_t count;                   /* columns kept                                                          */
} session_past;

tn_status past_init(session_past *p, int64_t rows, int64_t capacity, tn_error *err);
void past_close(session_past *p);

/* Keeps the tokens of a chunk, as far as there is room: ids, positions and index (-1: padding) are [rows,tokens];
 * of positions the first axis is kept. */
void past_keep(session_past *p, int64_t tokens, const int64_t *ids, float (*positions)[3], const int32_t *index);

/* Must a call of tokens more, after columns before, begin with computing those again? */
bool past_restarts(const session_past *p, int64_t columns, int64_t tokens);

/* What is kept as a batch, whose rows are capacity apart. */
tn_batch past_batch(const session_past *p);

#endif
