/* Inside core: pieces of several texts in one run of the model. */
#ifndef TENON_CORE_COMPUTE_H
#define TENON_CORE_COMPUTE_H

#include "engine/held.h"
#include "generate/chunk.h"
#include "generate/head.h"
#include "generate/media.h"
#include "run/guest.h"

/* The next tokens of a text, which its cache has room for. */
typedef struct compute_part {
    held_text *text;
    int64_t tokens;
    int64_t wanted; /* the last so many, whose logits are handed out                                  */
    media *media;   /* what tokens of its prompt stand for; NULL: for themselves                       */
} compute_part;

/* Logits behind the token at position of parts[part]; they may be changed. err: why they are no numbers; NULL: they
 * are. */
typedef void compute_sink(void *ctx, int64_t part, int64_t position, float *logits, const tn_error *err);

typedef struct compute {
    tn_model *model;
    const model_shape *shape;
    int64_t most_parts, most_tokens; /* of a run                                                     */
    int32_t threads;                 /* that the arena is sized for                                     */
    guest_watch watch;
    arena arena;
    chunk_inputs in;
    head head;
    float *logits;        /* [HEAD_ROWS, vocab]                                                          */
    run_segment *segment; /* [most_parts]                                                              */
    chunk_part *part;     /* [most_parts]                                                              */
    int64_t *first;       /* [most_parts]: where a picture begins whose tokens see each other            */
} compute;

/* full: a cache made as those of the texts are, whose views are used up. compute_close is due also after a failure. */
tn_status compute_init(compute *c, tn_model *model, kv_cache *full, int64_t most_parts, int64_t most_tokens,
                       tn_error *err);
void compute_close(compute *c);

/* Makes the features of pictures and sounds, if they are not there. media_drop lets go of them. */
tn_status compute_see(compute *c, media *m, int64_t context, tn_error *err);

/* Feeds the parts. Of pictures and sounds at most one has any among its tokens, whose features are there; tokens that
 * see each other are a part. Those whose logits are wanted had better be the last ones, since what comes behind the
 * first wanted token is computed to the end. After an error the texts' caches are worth nothing. */
tn_status compute_run(compute *c, const compute_part *parts, int64_t count, compute_sink *sink, void *ctx,
                      tn_error *err);

#endif
