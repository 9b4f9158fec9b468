/* Dot products with few tokens, written once for every element and width of vectors: include vec_<isa>.h first.
 * DOTS_TOKENS tokens with PRODUCT_STREAMS rows, and what they are multiplied from, fit into the registers. */
#ifndef PRODUCT_DOTS_H
#define PRODUCT_DOTS_H

#include "product.h"

/* More than DOTS_TOKENS tokens take k in stretches, of so many bytes of a token, whose rows stay in the first cache. */
enum { DOTS_STRETCH = 2048 };

/* A stretch of k of PRODUCT_STREAMS rows of dtype, added to sums[t * PRODUCT_STREAMS + r]. Rows are fetched ahead when
 * `first` comes by. */
typedef void dots_stretch_fn(const char *const *w, tn_dtype dtype, int64_t k, const char *const *x, int tokens,
                             bool first, vec *sums);

/* Each number of tokens is code of its own. */
VEC_INLINE void dots_tokens(dots_stretch_fn *stretch, const char *const *w, tn_dtype dtype, int64_t k,
                            const char *const *x, int32_t tokens, bool first, vec *sums)
{
    if (tokens == 1)
        stretch(w, dtype, k, x, 1, first, sums);
    else if (tokens == 2)
        // NOLINTNEXTLINE(bugprone-branch-clone): where DOTS_TOKENS is 3, this is the last
        stretch(w, dtype, k, x, 2, first, sums);
    else if (tokens == 3)
        stretch(w, dtype, k, x, DOTS_TOKENS < 3 ? DOTS_TOKENS : 3, first, sums);
    else
        stretch(w, dtype, k, x, DOTS_TOKENS, first, sums);
}

/* native: of x. */
VEC_INLINE void dots_of(dots_stretch_fn *stretch_of, const void *const *w, tn_dtype dtype, tn_dtype native,
                        int32_t rows, int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    vec part[PRODUCT_FEW_TOKENS * PRODUCT_STREAMS];
    for (int32_t i = 0; i < tokens * PRODUCT_STREAMS; i++)
        part[i] = vec_set(0.0f);
    int64_t size = dtype == TN_F32 ? 4 : 2, x_size = native == TN_F32 ? 4 : 2;
    int64_t stretch = tokens > DOTS_TOKENS && k * x_size > DOTS_STRETCH ? DOTS_STRETCH / x_size : k;
    for (int64_t from = 0; from < k; from += stretch) {
        const char *row[PRODUCT_STREAMS];
        int64_t n = k - from < stretch ? k - from : stretch;
        for (int32_t r = 0; r < PRODUCT_STREAMS; r++)
            row[r] = (const char *)w[r < rows ? r : rows - 1] + from * size;
        for (int32_t t = 0; t < tokens; t += DOTS_TOKENS) {
            const char *token[DOTS_TOKENS];
            int32_t m = tokens - t < DOTS_TOKENS ? tokens - t : DOTS_TOKENS;
            for (int32_t i = 0; i < DOTS_TOKENS; i++)
                token[i] = (const char *)x[t + (i < m ? i : 0)] + from * x_size;
            dots_tokens(stretch_of, row, dtype, n, token, m, t == 0, part + t * PRODUCT_STREAMS);
        }
    }
    for (int32_t t = 0; t < tokens; t++)
        vec_sum_four(part + t * PRODUCT_STREAMS, sums + t * PRODUCT_STREAMS);
}

#endif
