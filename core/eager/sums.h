/* Inside core/eager: sums over rows. Rows are taken in blocks that follow from their number alone; every block is
 * summed by one thread, row after row, and the blocks' sums are then added in order: the same bits for every number of
 * threads. Sums are kept in double, so that their error does not grow with the number of rows. */
#ifndef TENON_CORE_EAGER_SUMS_H
#define TENON_CORE_EAGER_SUMS_H

#include "eager/rows.h"

#define SUMS_ROWS 16   /* least rows of a block: what makes clearing and adding its sums cheap     */
#define SUMS_BLOCKS 64 /* most blocks                                                              */

typedef struct sums {
    double *partial; /* [blocks, width]; NULL: not wanted                                          */
    int64_t rows, width, blocks, block_rows;
} sums;

static inline sums sums_shape(int64_t rows, int64_t width)
{
    int64_t blocks = (rows + SUMS_ROWS - 1) / SUMS_ROWS;
    blocks = blocks < 1 ? 1 : blocks < SUMS_BLOCKS ? blocks : SUMS_BLOCKS;
    int64_t block_rows = (rows + blocks - 1) / blocks;
    if (block_rows > 0)
        blocks = (rows + block_rows - 1) / block_rows;
    return (sums){.rows = rows, .width = width, .blocks = blocks, .block_rows = block_rows};
}

static inline size_t sums_bytes(const sums *s)
{
    return rows_align((size_t)s->blocks * (size_t)s->width * sizeof(double));
}

/* One past the last row of a block; the first is block * block_rows. */
static inline int64_t sums_end(const sums *s, int64_t block)
{
    int64_t end = (block + 1) * s->block_rows;
    return end < s->rows ? end : s->rows;
}

/* sums.c: a block's sums set to 0; x added to them from column at on. Nothing where they are not wanted. */
void sums_clear(const sums *s, int64_t block);
void sums_add(const sums *s, int64_t block, int64_t at, const float *x, int64_t n);

/* The blocks' sums added and rounded to the type of out, [width]. No rows: zeros. */
void sums_store(const sums *s, const tn_tensor *out);

/* The sum over the rows of t. scratch: sums_bytes. */
void sums_of_rows(const tn_tensor *t, void *scratch, const tn_tensor *out);

#endif
