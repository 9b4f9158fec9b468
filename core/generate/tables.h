/* Inside core: what of a session's inputs follows the positions of its tokens: rotary tables and factors of queries. */
#ifndef TENON_CORE_GENERATE_TABLES_H
#define TENON_CORE_GENERATE_TABLES_H

#include "run/steps.h"

/* Host and device memory for one chunk. */
typedef struct position_tables {
    const device *device;
    const model_shape *shape;
    tn_dtype dtype;
    int64_t most;                /* tokens of a chunk, those of all rows                                  */
    int64_t length[MODEL_ROPES]; /* that the frequencies of each kind of table follow                     */
    float *host_scale;
    char *host; /* cos and sin of one kind                                                               */
    void *cos[MODEL_ROPES], *sin[MODEL_ROPES], *scale;
} position_tables;

/* dtype: the model's; most: tokens of a chunk. Close it after a failure, too. */
tn_status tables_init(position_tables *t, const device *device, const model_shape *shape, tn_dtype dtype, int64_t most,
                      tn_error *err);
void tables_close(position_tables *t);

/* A call whose largest position is length - 1 begins. */
void tables_follow(position_tables *t, int64_t length);
void tables_reset(position_tables *t);

/* Makes them for rows times tokens positions, of columns from column on. */
tn_status tables_upload(position_tables *t, int64_t rows, int64_t tokens, float (*positions)[ROPE_AXES], int64_t column,
                        tn_error *err);

/* The tensors of a run of r->rows times r->tokens tokens. */
void tables_set(const position_tables *t, graph_run *r);

#endif
