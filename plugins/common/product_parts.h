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
