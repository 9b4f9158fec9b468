/* Inside core/eager: a tensor seen as rows of its last dimension, whatever the strides of the others. */
#ifndef TENON_CORE_EAGER_ROWS_H
#define TENON_CORE_EAGER_ROWS_H

#include "eager/eager.h"

#include <string.h>

static inline int64_t rows_width(const tn_tensor *t)
{
    return t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
}

static inline int64_t rows_count(const tn_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i + 1 < t->ndim; i++)
        count *= t->shape[i];
    return count;
}

/* Address of a row, 0 <= row < rows_count. */
static inline char *rows_at(const tn_tensor *t, int64_t row)
{
    int64_t offset = 0;
    for (int32_t i = t->ndim - 2; i >= 0; i--) {
        offset += row % t->shape[i] * t->stride[i];
        row /= t->shape[i];
    }
    return (char *)t->data + offset * (int64_t)tn_dtype_size(t->dtype);
}

/* Address of element (i, j, k) of the first three dimensions. */
static inline char *rows_at3(const tn_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return (char *)t->data +
           (i * t->stride[0] + j * t->stride[1] + k * t->stride[2]) * (int64_t)tn_dtype_size(t->dtype);
}

/* Zeros everywhere. */
static inline void rows_clear(const tn_tensor *t)
{
    for (int64_t row = 0; row < rows_count(t); row++)
        memset(rows_at(t, row), 0, (size_t)rows_width(t) * tn_dtype_size(t->dtype));
}

/* The single tensor of a role, or NULL. */
static inline const tn_tensor *rows_param(const tn_site *site, tn_role role)
{
    return site->param[role].count > 0 ? site->param[role].tensors : NULL;
}

/* Bytes up to the next multiple of 64: how scratch is laid out. */
static inline size_t rows_align(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* The next bytes of a scratch that begins at base (NULL: only to add up its size). */
static inline char *rows_take(char *base, size_t *used, size_t bytes)
{
    char *at = base ? base + *used : NULL;
    *used += rows_align(bytes);
    return at;
}

/* Rows of a piece of work, such that one piece is worth waking a thread for. */
static inline int64_t rows_grain(int64_t width)
{
    int64_t grain = 8192 / (width > 0 ? width : 1);
    return grain > 0 ? grain : 1;
}

#endif
