/* Inside core: tokens with the keys and states that were made of their beginning. */
#ifndef TENON_CORE_TEXT_OF_ENGINE_H
#define TENON_CORE_TEXT_OF_ENGINE_H

#include "open/model.h"
#include "run/cache.h"

/* States behind so many tokens, made by passes over a prompt alone. */
typedef struct text_snapshot {
    int64_t length;
    void *states; /* owned                                                                           */
} text_snapshot;

enum { TEXT_SNAPSHOTS = 4 };

typedef struct text {
    int64_t *tokens; /* owned                                                                        */
    int64_t count, capacity;
    int64_t fed; /* of the tokens, those that the cache holds                                       */
    uint64_t salt;
    kv_cache cache; /* of one row; device NULL: there is none                                       */
    int64_t rope_length[MODEL_ROPES];
    text_snapshot snapshot[TEXT_SNAPSHOTS]; /* the last ones, the latest first                       */
    int64_t snapshots;
    size_t snapshot_bytes; /* of one                                                                */
    uint64_t used;         /* by what step last                                                     */
} text;

/* What texts of an engine have in common. */
typedef struct text_maker {
    const tn_model *model;
    const model_shape *shape;
    int64_t context, chunk;
} text_maker;

tn_status text_append(text *t, const int64_t *ids, int64_t count, tn_error *err);
void text_close(text *t);

tn_status text_open_cache(text *t, const text_maker *maker, tn_error *err);
void text_drop_cache(text *t); /* and what was made of its tokens                                    */

/* Bytes of keys, values and states that it holds, and would with so many tokens. */
size_t text_held(const text *t);
size_t text_would_hold(const text *t, int64_t tokens);

/* How many of the tokens that both begin with could be taken from `from` for `to`, which is to go on with at least one
 * more. */
int64_t text_shared(const text_maker *maker, const text *from, const text *to);

/* Of tokens that both begin with alone, whatever can be taken. */
int64_t text_common(const text *a, const text *b);

/* `to` goes on behind the first length tokens: with keys of from's own, which has none afterwards, or with copies.
 * TN_DECLINED: these cannot be taken. */
tn_status text_take(text *to, text *from, int64_t length, tn_error *err);
tn_status text_copy(text *to, const text_maker *maker, const text *from, int64_t length, tn_error *err);

/* Notes the states behind what is fed. */
tn_status text_note_states(text *t, tn_error *err);

#endif
