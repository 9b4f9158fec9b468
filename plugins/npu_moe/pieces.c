/* Cutting grouped work into pieces of about equal cost. */
#include "pieces.h"
#include <string.h>

/* What reading a weight is worth, in tokens. */
#define READING 16

/* Pieces per thread: whoever is free takes the next, so none waits for long at the end. */
#define PER_THREAD 8

/* Below so many weight rows, packing the tokens again costs more than another thread brings. */
#define LEAST_ROWS 64

int64_t pieces_few(const product_kernels *kernels, bool io)
{
    return io && kernels->variant->few_tokens > PRODUCT_FEW_COLUMNS ? PRODUCT_FEW_COLUMNS
                                                                    : kernels->variant->few_tokens;
}

static int64_t tiles_of_piece(const product_kernels *kernels)
{
    int64_t tiles = PIECE_TOKENS / kernels->variant->tile_tokens;
    return tiles > 0 ? tiles : 1;
}

int64_t pieces_tokens(const product_kernels *kernels)
{
    /* The last tile of a group may be wider than the others. */
    return tiles_of_piece(kernels) * kernels->variant->tile_tokens + PRODUCT_MAX_TOKENS;
}

int64_t pieces_chunks(const product_kernels *kernels, int64_t n)
{
    int64_t each = tiles_of_piece(kernels);
    return (product_tiles(kernels, n) + each - 1) / each;
}

void pieces_chunk(const product_kernels *kernels, int64_t n, int64_t i, int64_t *first, int64_t *tokens)
{
    int64_t tiles = product_tiles(kernels, n), chunks = pieces_chunks(kernels, n);
    int64_t end = i + 1 < chunks ? tiles * (i + 1) / chunks * kernels->variant->tile_tokens : n;
    *first = tiles * i / chunks * kernels->variant->tile_tokens;
    *tokens = end - *first;
}

int64_t pieces_most(const product_kernels *kernels, int64_t groups, int64_t rows, int32_t threads)
{
    int64_t used = groups < rows ? groups : rows, chunk = tiles_of_piece(kernels) * kernels->variant->tile_tokens;
    return rows / chunk + 2 * used + PER_THREAD * threads + 1;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t pieces_cut(const product_kernels *kernels, const int64_t *offsets, int64_t groups, int64_t width,
                   int64_t last_width, int64_t few, int32_t threads, piece *pieces)
{
    int64_t total = 0, count = 0;
    for (int64_t g = 0; g < groups; g++) {
        int64_t n = offsets[g + 1] - offsets[g];
        total += n ? (n + READING) * (g + 1 < groups ? width : last_width) : 0;
    }
    int64_t wanted = total / (PER_THREAD * threads) + 1;
    for (int64_t g = 0; g < groups; g++) {
        int64_t n = offsets[g + 1] - offsets[g], rows = g + 1 < groups ? width : last_width;
        int64_t chunks = n <= few ? n > 0 : pieces_chunks(kernels, n);
        for (int64_t i = 0; i < chunks; i++) {
            piece p = {.group = (int32_t)g, .first = 0, .tokens = n};
            if (n > few)
                pieces_chunk(kernels, n, i, &p.first, &p.tokens);
            int64_t units = (rows + product_unit - 1) / product_unit, most = rows / LEAST_ROWS;
            int64_t parts = threads > 1 ? (p.tokens + READING) * rows / wanted + 1 : 1;
            parts = least(parts, most > 1 ? most : 1);
            for (int64_t j = 0; j < parts; j++) {
                p.begin = units * j / parts * product_unit;
                p.end = least(units * (j + 1) / parts * product_unit, rows);
                pieces[count++] = p;
            }
        }
    }
    return count;
}

int64_t pieces_grad_rows(int64_t rows, int32_t threads)
{
    int64_t piece = rows / (4 * threads) / product_unit * product_unit;
    return piece < 2 * product_unit ? 2 * product_unit : piece > 256 ? 256 : piece;
}

void pieces_add(const product_kernels *kernels, const float *part, float weight, int64_t n, float *sums)
{
    const void *parts[] = {sums, part};
    const float weights[] = {1.0f, weight};
    const product_combine c = {.part_dtype = TN_F32, .dtype = TN_F32, .count = 2, .part = parts, .weight = weights};
    kernels->combine(&c, n, sums);
}

void pieces_round(const product_kernels *kernels, const float *sums, int64_t n, void *y)
{
    const void *parts[] = {sums};
    const float one = 1.0f;
    const product_combine c = {
        .part_dtype = TN_F32, .dtype = kernels->dtype, .count = 1, .part = parts, .weight = &one};
    kernels->combine(&c, n, y);
}

void pieces_zero(const tn_tensor *t)
{
    for (int64_t i = 0, rows = product_tokens(t); i < rows; i++)
        memset(product_row(t, i), 0, (size_t)t->shape[t->ndim - 1] * tn_dtype_size(t->dtype));
}
