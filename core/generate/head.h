/* Inside core: the results of a run on their way to the caller, as floats of the host. */
#ifndef TENON_CORE_HEAD_H
#define TENON_CORE_HEAD_H

#include "open/model.h"

enum { HEAD_ROWS = GRAPH_WIDE_TRIED }; /* of logits that are made at once                          */

typedef struct head {
    const tn_model *model;
    const model_shape *shape;
    void *staging; /* of a device without host memory: one block of results, else NULL; owned       */
    size_t staging_bytes;
} head;

/* rows: the most that are fetched at once, beside HEAD_ROWS. head_close is due also after a failure. */
tn_status head_init(head *h, const tn_model *model, const model_shape *shape, int64_t rows, tn_error *err);
void head_close(head *h);

/* n elements of the device. */
tn_status head_fetch(const head *h, const void *from, float *to, int64_t n, tn_error *err);

/* Moves a row of the run's result to where an earlier one was: rows side by side read the head's weights once. */
void head_move(const head *h, graph_run *r, int64_t from, int64_t to);

/* Logits of count rows of the run's result, beginning at row, to out; of a run that measures nothing is written. */
void head_block(const head *h, graph_run *r, int64_t row, int64_t count, float *out);

/* Logits of a real token must be numbers: else the run fails with what brought them. */
void head_check(const head *h, graph_run *r, const float *logits, int64_t row, int64_t token);

#endif
