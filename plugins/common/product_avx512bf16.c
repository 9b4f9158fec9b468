/* Products of bf16 through dot products of pairs, accumulated in f32: one instruction multiplies 32 pairs. */
#include "product_avx512.h"

#include "product_dots.h"

static inline __m512 dot_pairs(__m512 sum, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* 16 tokens and 32 elements at a time: a 16 x 16 transpose of pairs. */
static void pack_bf16(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    for (int32_t first = 0; first < width; first += LANES) {
        __mmask16 lanes = first_lanes(width - first);
        for (int64_t i = 0; i < k; i += 32) {
            __mmask32 m = k - i >= 32 ? 0xffffffffu : (1u << (k - i)) - 1;
            __m512i r[16];
            for (int t = 0; t < LANES; t++) {
                int32_t token = first + t;
                r[t] = token < tokens ? _mm512_maskz_loadu_epi16(m, (const uint16_t *)x[token] + i)
                                      : _mm512_setzero_si512();
            }
            transpose_16x16(r);
            int64_t pairs = k - i >= 32 ? 16 : (k - i + 1) / 2;
            for (int64_t p = 0; p < pairs; p++)
                _mm512_mask_storeu_epi32((int32_t *)panel + (i / 2 + p) * width + first, lanes, r[p]);
        }
    }
}

static __mmask32 first_halves(int32_t n)
{
    return n >= 32 ? 0xffffffffu : (1u << (n > 0 ? n : 0)) - 1;
}

/* 32 lanes of two neighbours along k at a time become pairs. */
static void lay_bf16(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    _Alignas(64) uint16_t order[2][32];
    for (int i = 0; i < 32; i++) {
        order[0][i] = (uint16_t)(i / 2 + i % 2 * 32);
        order[1][i] = (uint16_t)(16 + i / 2 + i % 2 * 32);
    }
    const __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
    int32_t *to = panel;
    for (int64_t i = 0; i < k; i += 2, to += width) {
        const char *even = (const char *)src + i * step, *odd = i + 1 < k ? even + step : even;
        for (int32_t t = 0; t < width; t += 32) {
            __mmask32 m = first_halves(lanes - t);
            __m512i a = _mm512_maskz_loadu_epi16(m, even + 2 * t);
            __m512i b = _mm512_maskz_loadu_epi16(i + 1 < k ? m : 0, odd + 2 * t);
            _mm512_mask_storeu_epi32(to + t, first_lanes(width - t), _mm512_permutex2var_epi16(a, low, b));
            if (width - t > LANES)
                _mm512_mask_storeu_epi32(to + t + LANES, first_lanes(width - t - LANES),
                                         _mm512_permutex2var_epi16(a, high, b));
        }
    }
}

/* Eight rows by one or two vectors of 16 tokens, and with half one of 8: 8 to 24 independent chains, which the latency
 * of the dot product (6 cycles) needs, and few enough rows that rows 4 KiB apart still fit the ways of the first cache.
 */
INLINE void tile_sums(const product_tile *tile, int full, bool half, __m512 sums[ROWS][VECTORS])
{
    __m256 rest[ROWS];
    const char *row[ROWS], *panel = tile->panel;
    int64_t width = full * LANES + (half ? LANES / 2 : 0), bytes = tile->k / 2 * 4, tail = tile->k % 2 ? 4 : 0;
    sums_start(tile, full + half, sums);
    for (int r = 0; r < ROWS; r++) {
        row[r] = tile->w[r];
        rest[r] = half ? _mm512_castps512_ps256(sums[r][full]) : _mm256_setzero_ps();
    }
    for (int64_t line = 0; line < bytes + tail; line += 64) {
        int64_t end = line + 64 < bytes ? line + 64 : bytes;
        product_fetch_lines(tile, line);
        for (int64_t i = line; i < end; i += 4) {
            __m512i x[2];
            __m256i x_half = _mm256_setzero_si256();
            for (int v = 0; v < full; v++)
                x[v] = _mm512_loadu_si512(panel + i * width + v * 64);
            if (half)
                x_half = _mm256_loadu_si256((const __m256i *)(const void *)(panel + i * width + full * 64));
            for (int r = 0; r < ROWS; r++) {
                int32_t two;
                memcpy(&two, row[r] + i, 4);
                __m512i b = _mm512_set1_epi32(two);
                for (int v = 0; v < full; v++)
                    sums[r][v] = dot_pairs(sums[r][v], x[v], b);
                if (half)
                    rest[r] = _mm256_dpbf16_ps(rest[r], (__m256bh)x_half, (__m256bh)_mm512_castsi512_si256(b));
            }
        }
    }
    for (int r = 0; r < ROWS; r++) {
        if (half)
            sums[r][full] = _mm512_zextps256_ps512(rest[r]);
        if (tail) { /* the last element alone: nothing behind a row is read */
            uint16_t one;
            memcpy(&one, row[r] + bytes, 2);
            for (int v = 0; v < full + half; v++) {
                __mmask16 lanes = v < full ? 0xffff : 0xff;
                sums[r][v] = dot_pairs(sums[r][v], _mm512_maskz_loadu_epi32(lanes, panel + bytes * width + v * 64),
                                       _mm512_set1_epi32(one));
            }
        }
    }
}

static void tile_part_bf16(const product_tile *tile, float *sums)
{
    const tile_call call = {.tile = tile, .sums = sums};
    tile_of_width(&call, tile_sums, TILE_PART, true);
}

static void tile_glu_bf16(const product_tile *tile, const product_finish *finish, int32_t features, void *h)
{
    const tile_call call = {.tile = tile, .finish = finish, .count = features, .tokens = tile->width, .h = h};
    tile_of_width(&call, tile_sums, TILE_GLU, true);
}

static void tile_out_bf16(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                          int32_t tokens)
{
    const tile_call call = {.tile = tile, .finish = finish, .count = rows, .tokens = tokens, .y = y};
    tile_of_width(&call, tile_sums, TILE_OUT, true);
}

static void tile_lines_bf16(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                            int32_t lanes)
{
    const tile_call call = {.tile = tile, .finish = finish, .count = rows, .tokens = lanes, .y = y};
    tile_of_width(&call, tile_sums, TILE_LINES, true);
}

/* Elements i .. of sixteen rows, turned: pairs of them with those of tokens. */
INLINE void dots_line(const char *const *row, tn_dtype dtype, const void *const *x, int64_t i, int64_t n, int tokens,
                      __m512 *sums, dots_ahead *ahead)
{
    (void)dtype;
    __m512i w[LANES];
    __mmask32 m = first_halves((int32_t)n);
    for (int r = 0; r < LANES; r++)
        w[r] = _mm512_maskz_loadu_epi16(m, row[r] + 2 * i);
    transpose_16x16(w);
    if (n == 2 * LANES) {
        DOTS_UNROLLED
        for (int p = 0; p < LANES; p++) {
            dots_fetch(ahead);
            for (int t = 0; t < tokens; t++) {
                int32_t two;
                memcpy(&two, (const uint16_t *)x[t] + i + 2 * p, sizeof two);
                sums[t] = dot_pairs(sums[t], w[p], _mm512_set1_epi32(two));
            }
        }
        return;
    }
    for (int p = 0; 2 * p < n; p++)
        for (int t = 0; t < tokens; t++) {
            uint32_t two = 0;
            memcpy(&two, (const uint16_t *)x[t] + i + 2 * p, 2 * p + 1 < n ? 4 : 2);
            sums[t] = dot_pairs(sums[t], w[p], _mm512_set1_epi32((int)two));
        }
}

static void dots_bf16(const product_block *block, int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    dots_of(dots_line, block, TN_BF16, k, x, tokens, sums);
}

/* Up to four tokens by 64 rows, which are the lanes. Two neighbours along k are interleaved into pairs: the rows of
 * 128-bit lane j come out as rows 8j .. 8j + 3 in one vector and 8j + 4 .. 8j + 7 in the other. */
INLINE void columns_part(const char *w, tn_dtype dtype, int64_t step, int32_t rows, int64_t k, const void *const *x,
                         int tokens, float *sums, int64_t space)
{
    (void)dtype;
    const __m512i to_lanes[2] = {_mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                                 _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31)};
    const __m512i of_lanes[2] = {_mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
                                 _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)};
    __m512 sum[4][4];
    for (int t = 0; t < tokens; t++)
        for (int j = 0; j < 4; j++) {
            const float *from = sums + t * space + j / 2 * 2 * LANES;
            sum[t][j] = _mm512_permutex2var_ps(_mm512_loadu_ps(from), of_lanes[j % 2], _mm512_loadu_ps(from + LANES));
        }
    __mmask32 low = rows >= 32 ? 0xffffffffu : (1u << rows) - 1;
    __mmask32 high = rows >= 64 ? 0xffffffffu : rows > 32 ? (1u << (rows - 32)) - 1 : 0;
    for (int64_t i = 0; i < k; i += 2) {
        bool both = i + 1 < k;
        const char *at = w + i * step, *after = both ? at + step : at;
        for (int64_t line = 0; line < 2 * PRODUCT_COLUMNS; line += 64) {
            _mm_prefetch(at + k * step + line, _MM_HINT_T1);
            _mm_prefetch(at + (k + 1) * step + line, _MM_HINT_T1);
        }
        __m512i a = _mm512_maskz_loadu_epi16(low, at), b = _mm512_maskz_loadu_epi16(high, at + 64);
        __m512i c = _mm512_maskz_loadu_epi16(both ? low : 0, after);
        __m512i d = _mm512_maskz_loadu_epi16(both ? high : 0, after + 64);
        __m512i v[4] = {_mm512_unpacklo_epi16(a, c), _mm512_unpackhi_epi16(a, c), _mm512_unpacklo_epi16(b, d),
                        _mm512_unpackhi_epi16(b, d)};
        for (int t = 0; t < tokens; t++) {
            uint32_t two = 0;
            memcpy(&two, (const uint16_t *)x[t] + i, both ? 4 : 2);
            for (int j = 0; j < 4; j++)
                sum[t][j] = dot_pairs(sum[t][j], v[j], _mm512_set1_epi32((int)two));
        }
    }
    for (int t = 0; t < tokens; t++)
        for (int j = 0; j < 4; j++)
            _mm512_storeu_ps(sums + t * space + j * LANES,
                             _mm512_permutex2var_ps(sum[t][j / 2 * 2], to_lanes[j % 2], sum[t][j / 2 * 2 + 1]));
}

static void columns_bf16(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                         float *sums, int64_t space)
{
    columns_of(columns_part, w, TN_BF16, step, rows, k, x, tokens, sums, space);
}

static void row_glu_bf16(const float *gate, const float *up, const float *up_bias, const product_finish *finish,
                         int32_t n, void *h)
{
    store_from_f32(h, finish->dtype, first_lanes(n), row_glu_sums(gate, up, up_bias, finish, n));
}

void product_init_avx512bf16(product_kernels *kernels)
{
    kernels->pack = pack_bf16;
    kernels->tile_part = tile_part_bf16;
    kernels->tile_glu = tile_glu_bf16;
    kernels->lay = lay_bf16;
    kernels->tile_out = tile_out_bf16;
    kernels->tile_lines = tile_lines_bf16;
    kernels->dots = dots_bf16;
    kernels->turned = NULL;
    kernels->columns = columns_bf16;
    kernels->row_glu = row_glu_bf16;
}
