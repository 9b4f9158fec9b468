/* What the two AVX-512 variants of the products share: rounding, activations, and turning tiles and rows of sums into
 * results. Included by product_avx512*.c only. */
#ifndef PRODUCT_AVX512_H
#define PRODUCT_AVX512_H

#include <immintrin.h>
#include <string.h>
#include "product.h"
#include "vec_avx512.h"

#include "activation_vec.h"

#define LANES 16
#define ROWS 8
#define VECTORS 3 /* at most two of 16 tokens and one of 8 */

/* A tile's sums live in registers from the first product to the finished result: that takes inlining. */
#define INLINE static inline __attribute__((always_inline))

/* Rounded to bf16, in the upper half of each element. Sums of infinities are NaNs of any kind. */
static inline __m512i bf16_bits(__m512 v)
{
    return _mm512_castps_si512(vec_round(vec_quiet(v), TN_BF16));
}

static inline __m512 glu(__m512 gate, __m512 up, const product_finish *f)
{
    return _mm512_mul_ps(vec_activation(f->act, gate), up);
}

/* Elements a and b of dtype side by side, a first. */
static inline __m512i pair(__m512 a, __m512 b, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return _mm512_or_si512(_mm512_srli_epi32(bf16_bits(a), 16), bf16_bits(b));
    __m512i lo = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    __m512i hi = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
    return _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
}

/* Writes words w (four for each of 16 tokens) to y[t] + offset. bytes < 16 for a part of the words. */
INLINE void store_words(const __m512i w[4], void *const *y, int32_t tokens, int64_t offset, int64_t bytes)
{
    __m512i t[4];
    transpose_4x16(w, t);
    char lanes[16][16];
    if (tokens >= LANES && bytes >= 16) {
        for (int j = 0; j < 4; j++) {
            _mm_storeu_si128((__m128i *)((char *)y[j] + offset), _mm512_castsi512_si128(t[j]));
            _mm_storeu_si128((__m128i *)((char *)y[4 + j] + offset), _mm512_extracti32x4_epi32(t[j], 1));
            _mm_storeu_si128((__m128i *)((char *)y[8 + j] + offset), _mm512_extracti32x4_epi32(t[j], 2));
            _mm_storeu_si128((__m128i *)((char *)y[12 + j] + offset), _mm512_extracti32x4_epi32(t[j], 3));
        }
        return;
    }
    for (int j = 0; j < 4; j++) {
        _mm_storeu_si128((__m128i *)lanes[j], _mm512_castsi512_si128(t[j]));
        _mm_storeu_si128((__m128i *)lanes[4 + j], _mm512_extracti32x4_epi32(t[j], 1));
        _mm_storeu_si128((__m128i *)lanes[8 + j], _mm512_extracti32x4_epi32(t[j], 2));
        _mm_storeu_si128((__m128i *)lanes[12 + j], _mm512_extracti32x4_epi32(t[j], 3));
    }
    for (int32_t i = 0; i < tokens && i < LANES; i++)
        memcpy((char *)y[i] + offset, lanes[i], (size_t)(bytes < 16 ? bytes : 16));
}

/* The ends of a tile: sums[r][v] of row r and tokens 16v .. 16v + 15; with half, the last vector has 8 tokens. */
INLINE void finish_out(__m512 sums[ROWS][VECTORS], int vectors, const product_finish *f, int32_t rows, void *const *y,
                       int32_t tokens)
{
    if (f->bias)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < vectors; v++)
                sums[r][v] = _mm512_add_ps(sums[r][v], _mm512_set1_ps(r < rows ? f->bias[r] : 0.0f));
    for (int v = 0; v < vectors; v++) {
        int32_t left = tokens - v * LANES;
        __m512i w[8];
        if (f->dtype == TN_F32) {
            for (int r = 0; r < ROWS; r++)
                w[r] = _mm512_castps_si512(sums[r][v]);
            store_words(w, y + v * LANES, left, 0, 4 * (int64_t)rows);
            if (rows > 4)
                store_words(w + 4, y + v * LANES, left, 16, 4 * (int64_t)rows - 16);
        } else {
            for (int r = 0; r < ROWS / 2; r++)
                w[r] = pair(sums[2 * r][v], sums[2 * r + 1][v], f->dtype);
            store_words(w, y + v * LANES, left, 0, 2 * (int64_t)rows);
        }
    }
}

/* pairs: h is a panel of bf16 pairs, else of f32. width: of the tile. */
INLINE void finish_glu(__m512 sums[ROWS][VECTORS], int vectors, bool half, const product_finish *f, int32_t features,
                       bool pairs, float *h)
{
    int width = vectors * LANES - (half ? LANES / 2 : 0);
    for (int v = 0; v < vectors; v++) {
        __mmask16 tokens = half && v == vectors - 1 ? 0xff : 0xffff;
        __m512 r[ROWS / 2];
        for (int i = 0; i < ROWS / 2; i++) {
            __m512 gate = sums[i][v], up = sums[ROWS / 2 + i][v];
            if (f->bias && i < features) {
                gate = _mm512_add_ps(gate, _mm512_set1_ps(f->bias[i]));
                up = _mm512_add_ps(up, _mm512_set1_ps(f->bias[ROWS / 2 + i]));
            }
            r[i] = i < features ? glu(gate, up, f) : _mm512_setzero_ps();
        }
        for (int i = 0; i < ROWS / 2; i++) {
            if (!pairs)
                _mm512_mask_storeu_ps(h + i * width + v * LANES, tokens, r[i]);
            else if (i % 2 == 0)
                _mm512_mask_storeu_epi32(h + i / 2 * width + v * LANES, tokens, pair(r[i], r[i + 1], TN_BF16));
        }
    }
}

/* n elements of dtype, the first of a row's rest. */
static inline __mmask16 first_lanes(int64_t n)
{
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (n > 0 ? n : 0)) - 1);
}

static inline __m512 load_as_f32(const void *p, tn_dtype dtype, __mmask16 m)
{
    if (dtype == TN_F32)
        return _mm512_maskz_loadu_ps(m, p);
    return vec_widen(_mm256_maskz_loadu_epi16(m, p), dtype);
}

static inline __m256i half_from_f32(tn_dtype dtype, __m512 v)
{
    return vec_narrow(dtype == TN_BF16 ? vec_quiet(v) : v, dtype);
}

static inline void store_from_f32(void *p, tn_dtype dtype, __mmask16 m, __m512 v)
{
    if (dtype == TN_F32)
        _mm512_mask_storeu_ps(p, m, v);
    else
        _mm256_mask_storeu_epi16(p, m, half_from_f32(dtype, v));
}

INLINE void finish_lines(__m512 sums[ROWS][VECTORS], int vectors, const product_finish *f, int32_t rows, void *const *y,
                         int32_t lanes)
{
    int64_t line = f->dtype == TN_F32 ? 64 : 32;
    for (int r = 0; r < ROWS && r < rows; r++)
        for (int v = 0; v < vectors; v++)
            store_from_f32((char *)y[r] + v * line, f->dtype, first_lanes(lanes - v * LANES), sums[r][v]);
}

/* A tile of sums[r][v]: 16 * full tokens, and with half 8 more. */
typedef void tile_sums_fn(const product_tile *tile, int full, bool half, __m512 sums[ROWS][VECTORS]);

/* What becomes of a tile's sums. */
typedef enum tile_end { TILE_PART, TILE_GLU, TILE_OUT, TILE_LINES } tile_end;

/* What tile_part, tile_glu, tile_out and tile_lines are called with; count: features or rows; tokens: or lanes. */
typedef struct tile_call {
    const product_tile *tile;
    const product_finish *finish;
    int32_t count, tokens;
    void *h;
    void *const *y;
    float *sums;
} tile_call;

/* Of product_tile.before and of what tile_part gives. */
INLINE float *tile_sum(const float *sums, int r, int v)
{
    return (float *)sums + (r * VECTORS + v) * LANES;
}

INLINE void sums_start(const product_tile *tile, int vectors, __m512 sums[ROWS][VECTORS])
{
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            sums[r][v] = tile->before ? _mm512_loadu_ps(tile_sum(tile->before, r, v)) : _mm512_setzero_ps();
}

INLINE void tile_of(const tile_call *t, tile_sums_fn *sums_of, int full, bool half, tile_end end, bool pairs)
{
    __m512 sums[ROWS][VECTORS];
    sums_of(t->tile, full, half, sums);
    if (end == TILE_OUT)
        finish_out(sums, full + half, t->finish, t->count, t->y, t->tokens);
    else if (end == TILE_GLU)
        finish_glu(sums, full + half, half, t->finish, t->count, pairs, t->h);
    else if (end == TILE_LINES)
        finish_lines(sums, full + half, t->finish, t->count, t->y, t->tokens);
    for (int r = 0; r < ROWS && end == TILE_PART; r++)
        for (int v = 0; v < full + half; v++)
            _mm512_storeu_ps(tile_sum(t->sums, r, v), sums[r][v]);
}

/* Each width of a tile is code of its own. */
INLINE void tile_of_width(const tile_call *t, tile_sums_fn *sums_of, tile_end end, bool pairs)
{
    if (t->tile->width == 40)
        tile_of(t, sums_of, 2, true, end, pairs);
    else if (t->tile->width == 32)
        tile_of(t, sums_of, 2, false, end, pairs);
    else if (t->tile->width == 24)
        tile_of(t, sums_of, 1, true, end, pairs);
    else
        tile_of(t, sums_of, 1, false, end, pairs);
}

/* Up to four tokens by 64 rows, which are the lanes. */
typedef void columns_part_fn(const char *w, tn_dtype dtype, int64_t step, int32_t rows, int64_t k, const void *const *x,
                             int tokens, float *sums, int64_t space);

INLINE void columns_of(columns_part_fn *part, const void *w, tn_dtype dtype, int64_t step, int32_t rows, int64_t k,
                       const void *const *x, int32_t tokens, float *sums, int64_t space)
{
    int32_t t = 0;
    for (; t + 4 <= tokens; t += 4)
        part(w, dtype, step, rows, k, x + t, 4, sums + t * space, space);
    for (; t + 2 <= tokens; t += 2)
        part(w, dtype, step, rows, k, x + t, 2, sums + t * space, space);
    for (; t < tokens; t++)
        part(w, dtype, step, rows, k, x + t, 1, sums + t * space, space);
}

/* Sixteen features of a row: glu with biases. */
static inline __m512 row_glu_sums(const float *gate, const float *up, const float *up_bias, const product_finish *f,
                                  int32_t n)
{
    __mmask16 m = first_lanes(n);
    __m512 g = _mm512_maskz_loadu_ps(m, gate), u = _mm512_maskz_loadu_ps(m, up);
    if (f->bias)
        g = _mm512_add_ps(g, _mm512_maskz_loadu_ps(m, f->bias));
    if (up_bias)
        u = _mm512_add_ps(u, _mm512_maskz_loadu_ps(m, up_bias));
    return glu(g, u, f);
}

#endif
