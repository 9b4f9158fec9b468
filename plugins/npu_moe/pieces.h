/* Work on rows that are sorted by group (tokens by expert): which pieces it falls into. Groups without rows cost
 * nothing; a piece is a range of one group's rows, cut where its tiles end, times a range of the weight's rows. No cut
 * changes a result, so how fine they are may depend on the number of threads. */
#ifndef PIECES_H
#define PIECES_H

#include "product_grad.h"

/* Tokens whose panel one thread packs for itself, about: it stays in the second cache. */
#define PIECE_TOKENS 256

typedef struct piece {
    int32_t group;
    int64_t first, tokens; /* of the group                                                                   */
    int64_t begin, end;    /* weight rows                                                                    */
} piece;

/* Up to this many rows of one group go by dots. io: the weights' rows lie side by side. */
int64_t pieces_few(const product_kernels *kernels, bool io);

/* Most tokens of a piece, and most pieces for so many rows. */
int64_t pieces_tokens(const product_kernels *kernels);
int64_t pieces_most(const product_kernels *kernels, int64_t groups, int64_t rows, int32_t threads);

/* Chunk i of the n rows of a group, i < pieces_chunks: whole tiles, at most pieces_tokens rows. */
int64_t pieces_chunks(const product_kernels *kernels, int64_t n);
void pieces_chunk(const product_kernels *kernels, int64_t n, int64_t i, int64_t *first, int64_t *tokens);

/* Cuts groups 0 .. groups - 1; group g has offsets[g + 1] - offsets[g] rows and a weight of width rows, except the
 * last one, which has last_width. Returns how many. */
int64_t pieces_cut(const product_kernels *kernels, const int64_t *offsets, int64_t groups, int64_t width,
                   int64_t last_width, int64_t few, int32_t threads, piece *pieces);

/* Rows of a gradient that are one piece, where there are so many rows in all. */
int64_t pieces_grad_rows(int64_t rows, int32_t threads);

/* A matrix without its first rows. */
static inline product_matrix pieces_rows_from(const product_kernels *kernels, const product_matrix *w, int64_t row)
{
    product_matrix rest = *w;
    rest.data = (const char *)w->data + row * w->row_stride * (int64_t)tn_dtype_size(kernels->dtype);
    if (w->bias)
        rest.bias = (const char *)w->bias + row * (int64_t)tn_dtype_size(kernels->dtype);
    return rest;
}

/* sums += weight * part, all f32. */
void pieces_add(const product_kernels *kernels, const float *part, float weight, int64_t n, float *sums);

/* n sums rounded to the kernels' dtype. */
void pieces_round(const product_kernels *kernels, const float *sums, int64_t n, void *y);

/* Zeros in every element, whatever the strides. */
void pieces_zero(const tn_tensor *t);

#endif
