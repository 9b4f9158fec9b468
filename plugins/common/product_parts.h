/* Small things that the files of the products share. */
#ifndef PRODUCT_PARTS_H
#define PRODUCT_PARTS_H

#include "product_mlp.h"

static inline int64_t product_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Bytes of an element in memory, and of native type. */
static inline int64_t product_element(const product_kernels *kernels)
{
    return kernels->dtype == TN_F32 ? 4 : 2;
}

static inline int64_t product_native_element(const product_kernels *kernels)
{
    return kernels->variant->native == TN_BF16 ? 2 : 4;
}

static inline const char *product_at(const product_kernels *kernels, const product_matrix *w, int64_t row)
{
    return (const char *)w->data + row * w->row_stride * product_element(kernels);
}

/* How far behind a row those lie that are fetched with it: a multiple of `block` rows, at least FETCH_AHEAD bytes. What
 * is nearer comes too late. */
enum { FETCH_AHEAD = 64 * 1024 };

static inline int64_t product_rows_ahead(int64_t block, int64_t row_bytes)
{
    int64_t bytes = block * row_bytes;
    return bytes > 0 ? (FETCH_AHEAD + bytes - 1) / bytes * block : block;
}

/* Up to `most` rows from `row` on, of those that a call does. */
static inline product_block product_block_of(const product_kernels *kernels, const product_matrix *w, int64_t k,
                                             int64_t row, const product_rows *rows, int64_t most)
{
    int64_t step = w->row_stride * product_element(kernels);
    int64_t ahead = product_rows_ahead(most, k * product_element(kernels));
    return (product_block){.w = product_at(kernels, w, row),
                           .step = step,
                           .next = row + ahead < rows->far ? ahead * step : 0,
                           .rows = (int32_t)product_least(rows->end - row, most),
                           .first = row < rows->begin + ahead};
}

/* n numbers of a bias in f32, in dst; NULL: there is none. */
static inline const float *product_widen_bias(const product_kernels *kernels, const void *bias, int64_t row, int64_t n,
                                              float *dst)
{
    if (!bias)
        return NULL;
    kernels->widen((const char *)bias + row * product_element(kernels), n, dst);
    return dst;
}

#endif
