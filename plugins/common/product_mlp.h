/* A gated MLP, y = down(act(gate(x)) * up(x)), in pieces that a thread performs: what the kernels for MLPs and for
 * experts are put together from. All pieces are serial; a range of features or outputs may be split anywhere at a
 * multiple of product_unit without changing a result. */
#ifndef PRODUCT_MLP_H
#define PRODUCT_MLP_H

#include "product.h"

#include <stdatomic.h>

/* Element (row, i) is at data + (row * row_stride + i * k_stride) elements. Borrowed. */
typedef struct product_matrix {
    const void *data;
    int64_t row_stride, k_stride;
    const void *bias; /* one per row, of the matrix' dtype, or NULL                                */
} product_matrix;

typedef struct product_mlp {
    product_matrix gate, up, down;
    int64_t inter;
} product_mlp;

/* Rows begin .. end - 1 of a matrix, or features, or outputs; those from end to far - 1 are what this thread will most
 * likely want next, and are fetched meanwhile. */
typedef struct product_rows {
    int64_t begin, end, far;
} product_rows;

/* Nothing is known to follow. */
static inline product_rows product_rows_of(int64_t begin, int64_t end)
{
    return (product_rows){begin, end, end};
}

/* Where ranges of rows may be split: whole vectors of dots and whole tiles. */
enum { product_unit = 16 };

/* Distance of rows of k elements brought into scratch: odd in cache lines, so that they do not fall into the same sets.
 */
static inline int64_t product_row_space(int64_t k)
{
    return ((k * 4 + 63) / 64 | 1) * 64;
}

/* Scratch of one thread for products with rows of at most k elements. */
size_t product_scratch_size(const product_kernels *kernels, int64_t k);

/* Tokens of a panel for so many tokens, with those that fill up the last tile. The tile that begins at token t begins
 * t * product_panel_token bytes into its panel. */
static inline int64_t product_padded_tokens(const product_kernels *kernels, int64_t tokens)
{
    int64_t padded = (tokens + kernels->variant->lanes - 1) / kernels->variant->lanes * kernels->variant->lanes;
    return padded < kernels->variant->min_tokens ? kernels->variant->min_tokens : padded;
}

/* Tiles of a panel. */
static inline int64_t product_tiles(const product_kernels *kernels, int64_t tokens)
{
    return tokens <= kernels->variant->max_tokens
               ? tokens > 0
               : 1 + (tokens - kernels->variant->max_tokens + kernels->variant->tile_tokens - 1) /
                         kernels->variant->tile_tokens;
}

/* Packs tiles begin .. end - 1 of the panel of rows x[0 .. tokens - 1]. */
void product_pack(const product_kernels *kernels, const void *const *x, int64_t tokens, int64_t k, int64_t begin,
                  int64_t end, void *panel);

/* Many tokens: features of h, a panel, from the panel of x; outputs of y, of type out, which is dtype or TN_F32. */
void product_glu_tiles(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                       const void *x, int64_t tokens, product_rows features, void *h, void *scratch);
void product_out_tiles(const product_kernels *kernels, const product_matrix *w, int64_t k, const void *x,
                       int64_t tokens, product_rows outputs, tn_dtype out, void *const *y, void *scratch);

/* Element (i, column) of a matrix is at data + (i * stride + column) elements of the kernels' dtype. Borrowed. */
typedef struct product_columns {
    const void *data;
    int64_t stride;
} product_columns;

/* y[r][c] = sum over i < k of a's row r times b's column c, for rows 0 .. rows - 1 and columns begin .. end - 1; y[r]
 * is where column 0 is, of type out. k runs along the rows of a and down the columns of b, which is laid into panels on
 * the way. a's bias is not used. Columns may be split anywhere at a multiple of product_unit. */
size_t product_lines_scratch_size(const product_kernels *kernels, int64_t k);
void product_lines(const product_kernels *kernels, const product_matrix *a, int64_t rows, const product_columns *b,
                   int64_t k, int64_t begin, int64_t end, tn_dtype out, void *const *y, void *scratch);

/* Up to PRODUCT_FEW_TOKENS tokens: the same from rows of native type to rows of type out: for h native or TN_F32, for y
 * dtype or TN_F32. */
void product_glu_few(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                     const void *const *x, int32_t tokens, product_rows features, tn_dtype out, void *const *h);
void product_out_few(const product_kernels *kernels, const product_matrix *w, int64_t k, const void *const *x,
                     int32_t tokens, product_rows outputs, tn_dtype out, void *const *y);

/* Rows of native type for the few-token functions: x itself, or a copy in memory for n rows of k elements. */
void product_native_rows(const product_kernels *kernels, const void *const *x, int64_t n, int64_t k, void *memory,
                         const void **rows);

/* ---- tensors of a call -------------------------------------------------------------------------------- */

/* The row of token t of a tensor [..., features] with its leading dims folded. */
void *product_row(const tn_tensor *tensor, int64_t t);
int64_t product_tokens(const tn_tensor *tensor);

/* ---- threads ------------------------------------------------------------------------------------------- */

/* The piece begin .. end - 1 of count units that a thread does. */
static inline void product_share(int64_t count, int32_t thread, int32_t threads, int64_t *begin, int64_t *end)
{
    *begin = count * thread / threads;
    *end = count * (thread + 1) / threads;
}

/* The same for rows, cut at multiples of product_unit. */
static inline void product_share_rows(int64_t rows, int32_t thread, int32_t threads, int64_t *begin, int64_t *end)
{
    product_share((rows + product_unit - 1) / product_unit, thread, threads, begin, end);
    *begin *= product_unit;
    *end = *end * product_unit < rows ? *end * product_unit : rows;
}

/* Work that threads take piece by piece: whoever is free takes the next, so a thread that the system holds up does not
 * hold up the others. Starts as zero and serves once, or again after a reset between two barriers that lie behind all
 * of the old work and before all of the new. */
typedef struct product_queue {
    atomic_llong next;
} product_queue;

/* The same of rows, divided into as many ranges as there are threads: each goes through its own, whose next rows it has
 * fetched, and then helps with those of others. */
enum { PRODUCT_RANGES = 16 };

typedef struct product_ranges {
    atomic_llong taken[PRODUCT_RANGES]; /* pieces                                                     */
} product_ranges;

/* By one thread. */
static inline void product_ranges_reset(product_ranges *ranges)
{
    for (int i = 0; i < PRODUCT_RANGES; i++)
        atomic_store_explicit(&ranges->taken[i], 0, memory_order_relaxed);
}

/* Rows that a piece had better have: tiles of long rows go through the tokens' panel anew for each piece. */
enum { product_piece_rows = 128 };

/* Four to eight pieces for each thread. */
static inline int64_t product_pieces(int64_t rows, int32_t threads)
{
    int64_t least = 4 * (int64_t)threads, pieces = rows / product_piece_rows;
    pieces = pieces < least ? least : pieces > 2 * least ? 2 * least : pieces;
    return threads > 1 ? pieces : 1;
}

/* The next piece of so many rows, cut at multiples of product_unit; false when nothing is left. What follows it is the
 * rest of the thread's range, or unknown where the range is another's. */
static inline bool product_take_rows(product_ranges *all, int64_t rows, int32_t thread, int32_t threads,
                                     product_rows *piece)
{
    int64_t units = (rows + product_unit - 1) / product_unit, pieces = product_pieces(rows, threads);
    int32_t ranges = threads < PRODUCT_RANGES ? threads : PRODUCT_RANGES;
    pieces = pieces < units ? pieces : units;
    for (int32_t i = 0; i < ranges && pieces > 0; i++) {
        int32_t r = (thread + i) % ranges;
        int64_t first = pieces * r / ranges, last = pieces * (r + 1) / ranges, p = last;
        if (first + atomic_load_explicit(&all->taken[r], memory_order_relaxed) < last)
            p = first + atomic_fetch_add_explicit(&all->taken[r], 1, memory_order_relaxed);
        if (p >= last)
            continue;
        int64_t end = units * (p + 1) / pieces * product_unit, far = units * last / pieces * product_unit;
        *piece = product_rows_of(units * p / pieces * product_unit, end < rows ? end : rows);
        if (i == 0)
            piece->far = far < rows ? far : rows;
        return true;
    }
    return false;
}

/* A barrier, except where a small call runs on one thread outside of the team. */
static inline void product_wait(int32_t threads)
{
    if (threads > 1)
        tn_barrier();
}

#endif
