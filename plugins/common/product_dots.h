/* Few tokens, written once for every instruction set with vectors: include vec_<isa>.h and vec_transpose first. Sixteen
 * rows go side by side, a line of each at a time; with more rows memory gives less. */
#ifndef PRODUCT_DOTS_H
#define PRODUCT_DOTS_H

#include "product.h"

/* A block that was turned stays in registers only where the loop over it is written out. */
#ifdef __clang__
#define DOTS_UNROLLED _Pragma("unroll")
#else
#define DOTS_UNROLLED _Pragma("GCC unroll 16")
#endif

enum { DOTS_TOKENS = VEC_LANES == 16 ? 8 : 4, DOTS_VECTORS = PRODUCT_FEW_ROWS / VEC_LANES };

/* Bytes. More than DOTS_TOKENS tokens take k in stretches of so much of a row, which stay in the first cache. What lies
 * DOTS_AHEAD on in a row, or in the next ones, is fetched into the second: in the first, rows that are pages apart
 * would push each other out. */
enum { DOTS_LINE = 64, DOTS_STRETCH = 512, DOTS_FIRST = 512 };

/* Lines that will be wanted, in the order of memory. */
typedef struct dots_ahead {
    const char *row; /* of which `done` bytes were fetched                                        */
    int64_t done, bytes, step;
} dots_ahead;

typedef struct dots_run {
    const product_block *block;
    tn_dtype dtype;
    int64_t size; /* of an element                                                                 */
    const void *const *x;
    const char *row[PRODUCT_FEW_ROWS]; /* those behind the last repeat it                            */
    dots_ahead ahead;
    float *sums;
} dots_run;

/* One line. They are asked for one by one between products: sixteen at a time would hold up everything that the first
 * cache has not. */
VEC_INLINE void dots_fetch(dots_ahead *ahead)
{
    __builtin_prefetch(ahead->row + ahead->done, 0, 2);
    ahead->done += DOTS_LINE;
    if (ahead->done >= ahead->bytes) {
        ahead->done = 0;
        ahead->row += ahead->step;
    }
}

/* Elements i .. i + n - 1, a line or the rest of it, of VEC_LANES rows with those of tokens: added to sums, whose lanes
 * are the rows. ahead: fetches its part of sixteen lines; NULL: nothing. */
typedef void dots_line_fn(const char *const *row, tn_dtype dtype, const void *const *x, int64_t i, int64_t n,
                          int tokens, vec *sums, dots_ahead *ahead);

/* A stretch of k with tokens from `first` on. */
VEC_INLINE void dots_stretch(dots_line_fn *line, dots_run *d, int64_t from, int64_t end, int32_t first, int tokens)
{
    vec sums[DOTS_VECTORS][DOTS_TOKENS];
    dots_ahead ahead = d->ahead;
    for (int v = 0; v < DOTS_VECTORS; v++)
        for (int t = 0; t < tokens; t++) {
            const float *before = d->sums + (first + t) * PRODUCT_FEW_ROWS + v * VEC_LANES;
            sums[v][t] = from > 0 ? vec_load((const char *)before, TN_F32) : vec_set(0.0f);
        }
    for (int64_t i = from; i < end; i += DOTS_LINE / d->size) {
        int64_t left = end - i, n = DOTS_LINE / d->size;
        for (int r = 0; r < PRODUCT_FEW_ROWS && d->block->first && first == 0; r++)
            __builtin_prefetch(d->row[r] + i * d->size + DOTS_FIRST, 0, 2);
        for (int v = 0; v < DOTS_VECTORS; v++)
            line(d->row + v * VEC_LANES, d->dtype, d->x + first, i, left < n ? left : n, tokens, sums[v], &ahead);
    }
    if (first == 0)
        d->ahead = ahead;
    for (int v = 0; v < DOTS_VECTORS; v++)
        for (int t = 0; t < tokens; t++)
            vec_store((char *)(d->sums + (first + t) * PRODUCT_FEW_ROWS + v * VEC_LANES), TN_F32, sums[v][t]);
}

/* Each number of tokens is code of its own. */
VEC_INLINE void dots_of(dots_line_fn *line, const product_block *block, tn_dtype dtype, int64_t k, const void *const *x,
                        int32_t tokens, float *sums)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, stretch = tokens > DOTS_TOKENS ? DOTS_STRETCH / size : k;
    dots_run d = {.block = block, .dtype = dtype, .size = size, .x = x, .sums = sums};
    d.ahead = (dots_ahead){.row = block->w + block->next, .bytes = k * size, .step = block->step};
    for (int r = 0; r < PRODUCT_FEW_ROWS; r++)
        d.row[r] = block->w + (r < block->rows ? r : block->rows - 1) * block->step;
    for (int64_t from = 0; from < k; from += stretch) {
        int64_t end = k - from < stretch ? k : from + stretch;
        int32_t t = 0;
        for (; t + DOTS_TOKENS <= tokens; t += DOTS_TOKENS)
            dots_stretch(line, &d, from, end, t, DOTS_TOKENS);
        for (; t + 4 <= tokens; t += 4)
            dots_stretch(line, &d, from, end, t, 4);
        for (; t + 2 <= tokens; t += 2)
            dots_stretch(line, &d, from, end, t, 2);
        if (t < tokens)
            dots_stretch(line, &d, from, end, t, 1);
    }
}

/* ---- in f32: f32 itself, and bf16 and f16 after conversion --------------------------------------------------- */

/* Elements i .. of VEC_LANES rows, turned: whole, or the rest of the rows. */
VEC_INLINE void dots_turned(const char *const *row, tn_dtype dtype, const void *const *x, int64_t i, int64_t n,
                            int tokens, vec *sums, dots_ahead *ahead)
{
    int64_t at = i * (dtype == TN_F32 ? 4 : 2);
    vec block[VEC_LANES];
    for (int r = 0; r < VEC_LANES; r++)
        block[r] = n >= VEC_LANES ? vec_load(row[r] + at, dtype) : vec_load_part(row[r] + at, dtype, n);
    vec_transpose(block);
    if (n >= VEC_LANES) {
        DOTS_UNROLLED
        for (int e = 0; e < VEC_LANES; e++) {
            if (e % (DOTS_VECTORS * (dtype == TN_F32 ? 1 : 2)) == 0)
                dots_fetch(ahead);
            for (int t = 0; t < tokens; t++)
                sums[t] = vec_fma(block[e], vec_set(((const float *)x[t])[i + e]), sums[t]);
        }
        return;
    }
    for (int e = 0; e < n; e++)
        for (int t = 0; t < tokens; t++)
            sums[t] = vec_fma(block[e], vec_set(((const float *)x[t])[i + e]), sums[t]);
}

VEC_INLINE void dots_line_f32(const char *const *row, tn_dtype dtype, const void *const *x, int64_t i, int64_t n,
                              int tokens, vec *sums, dots_ahead *ahead)
{
    for (int64_t end = i + n; i < end; i += VEC_LANES)
        dots_turned(row, dtype, x, i, end - i, tokens, sums, ahead);
}

/* bf16 is turned as words of two neighbours, half as many as there are numbers; each word's are added in their order.
 */
VEC_INLINE void dots_line_bf16(const char *const *row, tn_dtype dtype, const void *const *x, int64_t i, int64_t n,
                               int tokens, vec *sums, dots_ahead *ahead)
{
    int64_t end = i + n;
    for (; i + PACK <= end; i += PACK) {
        vec block[VEC_LANES];
        for (int r = 0; r < VEC_LANES; r++)
            block[r] = vec_load(row[r] + 2 * i, TN_F32);
        vec_transpose(block);
        DOTS_UNROLLED
        for (int e = 0; e < VEC_LANES; e++) {
            const pack w = pack_of_pairs(block[e]);
            if (e % DOTS_VECTORS == 0)
                dots_fetch(ahead);
            for (int t = 0; t < tokens; t++) {
                const float *at = (const float *)x[t] + i + 2 * e;
                sums[t] = vec_fma(w.b, vec_set(at[1]), vec_fma(w.a, vec_set(at[0]), sums[t]));
            }
        }
    }
    dots_line_f32(row, dtype, x, i, end - i, tokens, sums, ahead);
}

static inline void dots_f32(const product_block *block, int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    dots_of(dots_line_f32, block, TN_F32, k, x, tokens, sums);
}

static inline void dots_from_bf16(const product_block *block, int64_t k, const void *const *x, int32_t tokens,
                                  float *sums)
{
    dots_of(dots_line_bf16, block, TN_BF16, k, x, tokens, sums);
}

static inline void dots_from_f16(const product_block *block, int64_t k, const void *const *x, int32_t tokens,
                                 float *sums)
{
    dots_of(dots_line_f32, block, TN_F16, k, x, tokens, sums);
}

#endif
