/* Inside core: tokens with the keys and states that were made of their beginning. */
#ifndef TENON_CORE_HELD_H
#define TENON_CORE_HELD_H

#include "open/model.h"
#include "run/cache.h"

/* States behind so many tokens, made by passes over a prompt alone. */
typedef struct held_snapshot {
    int64_t length;
    void *states; /* owned                                                                           */
} held_snapshot;

enum { HELD_SNAPSHOTS = 4 };

typedef struct held_text {
    int64_t *tokens; /* owned                                                                        */
    int64_t count, capacity;
    int64_t fed; /* of the tokens, those that the cache holds                                       */
    uint64_t salt;
    kv_cache cache; /* of one row; device NULL: there is none                                       */
    int64_t rope_length[MODEL_ROPES];
    held_snapshot snapshot[HELD_SNAPSHOTS]; /* the last ones, the latest first                       */
    int64_t snapshots;
    size_t snapshot_bytes; /* of one                                                                */
    uint64_t used;         /* by what step last                                                     */
} held_text;

/* What texts of an engine have in common. */
typedef struct held_maker {
    const tn_model *model;
    const model_shape *shape;
    int64_t context, chunk;
} held_maker;

tn_status held_append(held_text *t, const int64_t *ids, int64_t count, tn_error *err);
void held_close(held_text *t);

tn_status held_open_cache(held_text *t, const held_maker *maker, tn_error *err);
void held_drop_cache(held_text *t); /* and what was made of its tokens                                    */

/* Bytes of keys, values and states that it holds, and would with so many tokens. */
size_t held_bytes(const held_text *t);
size_t held_would_hold(const held_text *t, int64_t tokens);

/* How many of the tokens that both begin with could be taken from `from` for `to`, which is to go on with at least one
 * more. */
int64_t held_shared(const held_maker *maker, const held_text *from, const held_text *to);

/* Of tokens that both begin with alone, whatever can be taken. */
int64_t held_common(const held_text *a, const held_text *b);

/* `to` goes on behind the first length tokens: with keys of from's own, which has none afterwards (of models whose
 * layers keep no states), or with copies. TN_DECLINED: these cannot be had. */
tn_status held_take(held_text *to, held_text *from, int64_t length, tn_error *err);
tn_status held_copy(held_text *to, const held_maker *maker, const held_text *from, int64_t length, tn_error *err);

/* Notes the states behind what is fed; of several the last ones are kept. */
tn_status held_note_states(held_text *t, tn_error *err);

#endif
