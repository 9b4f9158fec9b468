/* Inside core: what comes between the embedding of tokens and the first layer of models before rotary embeddings: a
 * Linear to the width of the layers, learnt positions, a norm. */
#ifndef TENON_CORE_EMBED_STAGE_H
#define TENON_CORE_EMBED_STAGE_H

#include "models/decoder.h"

typedef struct embed_stage_spec {
    int64_t hidden;
    const char *projection; /* from the embedding's width; NULL: it is that of the layers              */
    int64_t width;
    const char *positions, *positions_class; /* a table that is added; NULL: none                     */
    learnt_positions learnt;
    const char *norm; /* NULL: none                                                                   */
    const parts_norm_kind *norm_kind;
} embed_stage_spec;

extern const stage_kind embed_stage;

#endif
