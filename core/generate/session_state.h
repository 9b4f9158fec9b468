/* What a session is: for session.c and session_chunk.c alone. */
#ifndef TENON_CORE_SESSION_STATE_H
#define TENON_CORE_SESSION_STATE_H

#include "generate/chunk.h"
#include "generate/head.h"
#include "generate/media.h"
#include "generate/past.h"
#include "open/model.h"
#include "run/cache.h"
#include "run/guest.h"
#include "run/observe.h"

struct tn_session {
    tn_model *model;
    const model_shape *shape;
    int64_t rows, context, chunk;
    int32_t threads; /* that the arena is sized for                                               */
    bool any_logits; /* NaN and infinity among logits are no error                                */
    guest_watch watch;
    kv_cache cache;
    media media;
    arena arena;
    run_observer observer;
    int64_t rope_length[MODEL_ROPES]; /* that the frequencies of each kind of table follow        */
    int64_t columns;                  /* tokens of a row so far, with padding                     */
    int64_t mutual_end;               /* ... at the end of the last picture, or prompt, whose tokens see each other */
    int64_t *first;                   /* [B] where that begins in the rows, if it is the chunk; else INT32_MAX */
    session_past past;
    chunk_inputs in; /* of one chunk                                                             */
    head head;
    int64_t number; /* of a parallel model: which session it is                                     */
    float *discard; /* on ranks but 0: room for logits that nobody wants (ranks.c); NULL: results are given */
};

/* session_chunk.c: the chunk of the call that begins at token begin: count tokens of each row, whose rows are stride
 * apart. outputs: of the whole call. */
tn_status session_chunk_run(tn_session *s, const tn_batch *batch, int64_t stride, const tn_outputs *outputs,
                            int64_t begin, int64_t *count, tn_error *err);

/* Runs the model over nothing to see how much of the arena a chunk of tokens needs of which so many are wanted, with
 * pictures or sounds in it or none. */
tn_status session_chunk_measure(tn_session *s, int64_t tokens, int64_t wanted, bool with_media, tn_error *err);

/* The same for the next call, of text of whose last token the logits are wanted: what ranks would exchange is in the
 * group's expected. */
tn_status session_chunk_expect(tn_session *s, int64_t tokens, tn_error *err);

#endif
