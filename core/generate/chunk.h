/* Inside core: what a chunk of a session brings to the device: tokens, their places, tables made of their positions. */
#ifndef TENON_CORE_CHUNK_H
#define TENON_CORE_CHUNK_H

#include "device/inbox.h"
#include "run/steps.h"

typedef struct chunk_inputs {
    const device *device;
    tn_dtype dtype;
    const model_shape *shape;
    int64_t rows, chunk;
    /* Of one chunk, on the host; ids, positions and index [B*T] are for the session to fill. */
    int64_t *ids;
    float (*positions)[ROPE_AXES];
    int32_t *index; /* position among the row's tokens; -1: padding                                 */
    int32_t *near;  /* graph_run.near; has_near: there is one                                        */
    bool has_near;
    float *scale;
    int64_t *learnt; /* rows of a table of learnt positions                                            */
    int64_t *marks;  /* graph_run.marks, marked of them                                                */
    int32_t *mark_slot;
    int64_t marked;
    char *tables; /* [2][B,chunk,R] in the tables' dtype                                          */
    inbox box;    /* what goes to the device at once                                                  */
    void *device_ids, *device_index, *device_scale, *device_learnt, *device_near, *device_marks, *device_mark_slot,
        *device_cos[MODEL_ROPES], *device_sin[MODEL_ROPES];
} chunk_inputs;

/* beside: bytes of what others put into its box. */
tn_status chunk_init(chunk_inputs *in, const device *device, tn_dtype dtype, const model_shape *shape, int64_t rows,
                     int64_t chunk, size_t beside, tn_error *err);
void chunk_close(chunk_inputs *in);

/* Of tokens from at on that see each other, since the one at position first: where a window is shorter than they are,
 * none is further from the first one than it reaches; what lies before that is out of sight there. first INT32_MAX:
 * they do not. Sets has_near where it matters. */
void chunk_near(chunk_inputs *in, int64_t at, int64_t tokens, int64_t first);

/* Tokens of each row that follow one another and whose tables follow the same lengths: those of each kind of table.
 * columns: tokens of a row before them, with padding. */
typedef struct chunk_part {
    int64_t tokens;
    const int64_t *lengths;
    int64_t columns;
} chunk_part;

/* Brings what was filled in to the device, tables and factors made of it, and what is in the box already, which the
 * caller began. Of several parts there is one row. */
tn_status chunk_upload(chunk_inputs *in, const chunk_part *parts, int64_t count, tn_error *err);

/* Shows it to a run of so many tokens per row. */
void chunk_show(const chunk_inputs *in, int64_t tokens, graph_run *r);

#endif
