/* A tile of tokens by rows of bf16 or f16 that are turned, in f32: written once for every instruction set with vectors,
 * behind product_dots.h. A stretch of some rows is turned and widened into the first cache; then some tokens at a time
 * meet it, the lanes being rows. Rows of 16 bits so pass through the first cache once, where tiles would have them
 * widened first; and what lies ahead is fetched line by line between the products, so that memory works meanwhile. */
#ifndef PRODUCT_TURNED_H
#define PRODUCT_TURNED_H

#include "product_dots.h"

/* 24 sums, two vectors of rows and a token (NEON: four, of six tokens), or 12 of 16 registers. */
enum {
    TURNED_VECTORS = VEC_LANES == 4 ? 4 : 2,
    TURNED_ROWS = TURNED_VECTORS * VEC_LANES,
    TURNED_TOKENS = VEC_LANES == 16 ? 12 : 6,
    TURNED_STEP = TURNED_TOKENS / 3,
    TURNED_STRETCH = 16384 / (4 * TURNED_ROWS) /* elements                                             */
};

/* Elements i .. i + n - 1 of TURNED_ROWS rows: to[e * TURNED_ROWS + r]. */
VEC_INLINE void turn_rows(const char *const *row, tn_dtype dtype, int64_t i, int64_t n, float *to)
{
    for (int v = 0; v < TURNED_VECTORS; v++, row += VEC_LANES, to += VEC_LANES) {
        int64_t e = 0;
        for (; dtype == TN_BF16 && e + PACK <= n; e += PACK) {
            vec block[VEC_LANES];
            for (int r = 0; r < VEC_LANES; r++)
                block[r] = vec_load(row[r] + 2 * (i + e), TN_F32);
            vec_transpose(block);
            for (int j = 0; j < VEC_LANES; j++) {
                const pack two = pack_of_pairs(block[j]);
                vec_store((char *)(to + (e + 2 * j) * TURNED_ROWS), TN_F32, two.a);
                vec_store((char *)(to + (e + 2 * j + 1) * TURNED_ROWS), TN_F32, two.b);
            }
        }
        for (; e < n; e += VEC_LANES) {
            vec block[VEC_LANES];
            for (int r = 0; r < VEC_LANES; r++)
                block[r] = n - e >= VEC_LANES ? vec_load(row[r] + 2 * (i + e), dtype)
                                              : vec_load_part(row[r] + 2 * (i + e), dtype, n - e);
            vec_transpose(block);
            for (int j = 0; j < VEC_LANES && e + j < n; j++)
                vec_store((char *)(to + (e + j) * TURNED_ROWS), TN_F32, block[j]);
        }
    }
}

/* n turned elements by those of some tokens, which are side by side in rows of `width`. */
typedef struct turned_part {
    const float *w, *x;
    int64_t n;
    int32_t width;
    bool more;         /* sums are there                                                          */
    float *sums;       /* of a token PRODUCT_TURNED_ROWS behind those of the one before it            */
    const char *ahead; /* what is fetched, so many bytes with each element                          */
    int64_t ahead_each;
} turned_part;

VEC_INLINE void turned_products(const turned_part *p, int tokens)
{
    vec sum[TURNED_TOKENS][TURNED_VECTORS];
    const float *w = p->w, *x = p->x;
    const char *ahead = p->ahead;
    const int64_t each = p->ahead_each;
    for (int t = 0; t < tokens; t++)
        for (int v = 0; v < TURNED_VECTORS; v++)
            sum[t][v] = p->more ? vec_load((const char *)(p->sums + t * PRODUCT_TURNED_ROWS + v * VEC_LANES), TN_F32)
                                : vec_set(0.0f);
    for (int64_t i = 0; i < p->n; i++, w += TURNED_ROWS, x += p->width, ahead += each) {
        __builtin_prefetch(ahead, 0, 2);
        vec rows[TURNED_VECTORS];
        for (int v = 0; v < TURNED_VECTORS; v++)
            rows[v] = vec_load((const char *)(w + v * VEC_LANES), TN_F32);
        DOTS_UNROLLED
        for (int t = 0; t < tokens; t++) {
            const vec one = vec_set(x[t]);
            for (int v = 0; v < TURNED_VECTORS; v++)
                sum[t][v] = vec_fma(rows[v], one, sum[t][v]);
        }
    }
    for (int t = 0; t < tokens; t++)
        for (int v = 0; v < TURNED_VECTORS; v++)
            vec_store((char *)(p->sums + t * PRODUCT_TURNED_ROWS + v * VEC_LANES), TN_F32, sum[t][v]);
}

/* Each is code of its own. */
static __attribute__((noinline)) void turned_most(const turned_part *p)
{
    turned_products(p, TURNED_TOKENS);
}

static __attribute__((noinline)) void turned_some(const turned_part *p)
{
    turned_products(p, 2 * TURNED_STEP);
}

static __attribute__((noinline)) void turned_least(const turned_part *p)
{
    turned_products(p, TURNED_STEP);
}

/* Steps of the next go where so many are left. */
static inline int32_t turned_steps(int32_t left)
{
    return left == 4 ? 2 : left > 3 ? 3 : left;
}

/* All tokens, in as few goes as there can be, of about the same size; lanes behind the last token are zeros. The goes
 * share what is fetched. */
static inline void turned_tokens(turned_part part, int32_t tokens)
{
    const float *x = part.x;
    float *sums = part.sums;
    int32_t left = (tokens + TURNED_STEP - 1) / TURNED_STEP;
    part.ahead_each /= left > 6 ? 3 : left > 3 ? 2 : 1;
    for (int32_t t = 0, steps; left > 0; left -= steps, t += steps * TURNED_STEP) {
        steps = turned_steps(left);
        part.x = x + t;
        part.sums = sums + t * PRODUCT_TURNED_ROWS;
        if (steps == 3)
            turned_most(&part);
        else if (steps == 2)
            turned_some(&part);
        else
            turned_least(&part);
        part.ahead += part.n * part.ahead_each;
    }
}

VEC_INLINE void turned_of(const product_block *block, tn_dtype dtype, int64_t k, const float *panel, int32_t width,
                          int32_t tokens, float *sums)
{
    _Alignas(64) float turned[TURNED_STRETCH * TURNED_ROWS];
    const int64_t size = 2; /* of an element in memory                                                 */
    for (int32_t first = 0; first < block->rows; first += TURNED_ROWS) {
        const char *row[TURNED_ROWS], *w = block->w + first * block->step;
        for (int r = 0; r < TURNED_ROWS; r++)
            row[r] = w + (first + r < block->rows ? r : block->rows - 1 - first) * block->step;
        for (int64_t i = 0; i < k; i += TURNED_STRETCH) {
            int64_t n = k - i < TURNED_STRETCH ? k - i : TURNED_STRETCH;
            for (int64_t at = 0; at < n * size && block->first; at += DOTS_LINE)
                for (int r = 0; r < TURNED_ROWS; r++)
                    __builtin_prefetch(row[r] + (i + n) * size + at, 0, 2);
            turn_rows(row, dtype, i, n, turned);
            turned_tokens((turned_part){.w = turned,
                                        .x = panel + i * width,
                                        .n = n,
                                        .width = width,
                                        .more = i > 0,
                                        .sums = sums + first,
                                        .ahead = w + block->next + i * TURNED_ROWS * size,
                                        .ahead_each = TURNED_ROWS * size},
                          tokens);
        }
    }
}

static void turned_from_bf16(const product_block *block, int64_t k, const void *panel, int32_t width, int32_t tokens,
                             float *sums)
{
    turned_of(block, TN_BF16, k, panel, width, tokens, sums);
}

static void turned_from_f16(const product_block *block, int64_t k, const void *panel, int32_t width, int32_t tokens,
                            float *sums)
{
    turned_of(block, TN_F16, k, panel, width, tokens, sums);
}

#endif
