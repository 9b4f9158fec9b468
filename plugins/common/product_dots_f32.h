/* Dot products in f32 with few tokens: f32 itself, and bf16 and f16 after conversion. As product_dots.h. */
#ifndef PRODUCT_DOTS_F32_H
#define PRODUCT_DOTS_F32_H

#include "product_dots.h"

VEC_INLINE vec dots_load(const char *p, tn_dtype dtype, int64_t left)
{
    return left >= VEC_LANES ? vec_load(p, dtype) : vec_load_part(p, dtype, left);
}

/* One step along k: the next elements of each row with those of each token. */
VEC_INLINE void dots_step(const char *const *w, tn_dtype dtype, const char *const *x, int64_t i, int64_t left,
                          int tokens, vec sum[PRODUCT_STREAMS][DOTS_TOKENS])
{
    vec v[DOTS_TOKENS];
    for (int t = 0; t < tokens; t++)
        v[t] = dots_load(x[t] + 4 * i, TN_F32, left);
    for (int r = 0; r < PRODUCT_STREAMS; r++) {
        vec a = dots_load(w[r] + i * (dtype == TN_F32 ? 4 : 2), dtype, left);
        for (int t = 0; t < tokens; t++)
            sum[r][t] = vec_fma(a, v[t], sum[r][t]);
    }
}

VEC_INLINE void dots_stretch_f32(const char *const *w, tn_dtype dtype, int64_t k, const char *const *x, int tokens,
                                 bool first, vec *sums)
{
    vec sum[PRODUCT_STREAMS][DOTS_TOKENS];
    int64_t i = 0, size = dtype == TN_F32 ? 4 : 2;
    for (int r = 0; r < PRODUCT_STREAMS; r++)
        for (int t = 0; t < tokens; t++)
            sum[r][t] = sums[t * PRODUCT_STREAMS + r];
    for (; i + VEC_LANES <= k; i += VEC_LANES) {
        for (int r = 0; r < PRODUCT_STREAMS && first && i * size % 64 == 0; r++)
            __builtin_prefetch(w[r] + i * size + PRODUCT_AHEAD, 0, 3);
        dots_step(w, dtype, x, i, VEC_LANES, tokens, sum);
    }
    if (i < k)
        dots_step(w, dtype, x, i, k - i, tokens, sum);
    for (int r = 0; r < PRODUCT_STREAMS; r++)
        for (int t = 0; t < tokens; t++)
            sums[t * PRODUCT_STREAMS + r] = sum[r][t];
}

static void dots_f32(const void *const *w, int32_t rows, int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    dots_of(dots_stretch_f32, w, TN_F32, TN_F32, rows, k, x, tokens, sums);
}

static void dots_from_bf16(const void *const *w, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                           float *sums)
{
    dots_of(dots_stretch_f32, w, TN_BF16, TN_F32, rows, k, x, tokens, sums);
}

static void dots_from_f16(const void *const *w, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                          float *sums)
{
    dots_of(dots_stretch_f32, w, TN_F16, TN_F32, rows, k, x, tokens, sums);
}

#endif
