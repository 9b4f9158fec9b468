/* Dot products in f32 with few tokens, written once for every width of vectors: include vec_<isa>.h first. DOTS_TOKENS
 * tokens with PRODUCT_STREAMS rows, and what they are multiplied from, fit into the registers. */
#ifndef PRODUCT_DOTS_H
#define PRODUCT_DOTS_H

#include "product.h"

/* More than DOTS_TOKENS tokens take k in stretches of which the rows stay in the first cache. */
enum { DOTS_STRETCH = 1024 };

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

/* A stretch of k, added to sums[t * PRODUCT_STREAMS + r]. Rows are fetched ahead when `first` comes by. */
VEC_INLINE void dots_stretch(const char *const *w, tn_dtype dtype, int64_t k, const char *const *x, int tokens,
                             bool first, vec *sums)
{
    vec sum[PRODUCT_STREAMS][DOTS_TOKENS];
    int64_t i = 0, size = dtype == TN_F32 ? 4 : 2;
    for (int r = 0; r < PRODUCT_STREAMS; r++)
        for (int t = 0; t < tokens; t++)
            sum[r][t] = sums[t * PRODUCT_STREAMS + r];
    for (; i + VEC_LANES <= k; i += VEC_LANES) {
        for (int r = 0; r < PRODUCT_STREAMS && first && i * size % 64 == 0; r++)
            __builtin_prefetch(w[r] + i * size + PRODUCT_AHEAD, 0, 2);
        dots_step(w, dtype, x, i, VEC_LANES, tokens, sum);
    }
    if (i < k)
        dots_step(w, dtype, x, i, k - i, tokens, sum);
    for (int r = 0; r < PRODUCT_STREAMS; r++)
        for (int t = 0; t < tokens; t++)
            sums[t * PRODUCT_STREAMS + r] = sum[r][t];
}

VEC_INLINE void dots_tokens(const char *const *w, tn_dtype dtype, int64_t k, const char *const *x, int32_t tokens,
                            bool first, vec *sums)
{
    if (tokens == 1)
        dots_stretch(w, dtype, k, x, 1, first, sums);
    else if (tokens == 2)
        dots_stretch(w, dtype, k, x, 2, first, sums);
    else if (tokens == 3)
        dots_stretch(w, dtype, k, x, DOTS_TOKENS < 3 ? DOTS_TOKENS : 3, first, sums);
    else
        dots_stretch(w, dtype, k, x, DOTS_TOKENS, first, sums);
}

VEC_INLINE void dots_as_f32(const void *const *w, tn_dtype dtype, int32_t rows, int64_t k, const void *const *x,
                            int32_t tokens, float *sums)
{
    vec part[PRODUCT_FEW_TOKENS * PRODUCT_STREAMS];
    for (int32_t i = 0; i < tokens * PRODUCT_STREAMS; i++)
        part[i] = vec_set(0.0f);
    int64_t stretch = tokens > DOTS_TOKENS && k > DOTS_STRETCH ? DOTS_STRETCH : k, size = dtype == TN_F32 ? 4 : 2;
    for (int64_t from = 0; from < k; from += stretch) {
        const char *row[PRODUCT_STREAMS];
        int64_t n = k - from < stretch ? k - from : stretch;
        for (int32_t r = 0; r < PRODUCT_STREAMS; r++)
            row[r] = (const char *)w[r < rows ? r : rows - 1] + from * size;
        for (int32_t t = 0; t < tokens; t += DOTS_TOKENS) {
            const char *token[DOTS_TOKENS];
            int32_t m = tokens - t < DOTS_TOKENS ? tokens - t : DOTS_TOKENS;
            for (int32_t i = 0; i < DOTS_TOKENS; i++)
                token[i] = (const char *)x[t + (i < m ? i : 0)] + 4 * from;
            dots_tokens(row, dtype, n, token, m, t == 0, part + t * PRODUCT_STREAMS);
        }
    }
    for (int32_t i = 0; i < tokens * PRODUCT_STREAMS; i++)
        sums[i] = vec_sum(part[i]);
}

static void dots_f32(const void *const *w, int32_t rows, int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    dots_as_f32(w, TN_F32, rows, k, x, tokens, sums);
}

static void dots_from_bf16(const void *const *w, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                           float *sums)
{
    dots_as_f32(w, TN_BF16, rows, k, x, tokens, sums);
}

static void dots_from_f16(const void *const *w, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                          float *sums)
{
    dots_as_f32(w, TN_F16, rows, k, x, tokens, sums);
}

#endif
