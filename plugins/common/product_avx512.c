/* Products in f32 with 16 lanes: f32 itself, and bf16 and f16 after conversion. */
#include "product_avx512.h"

#include "product_turned.h"

/* 16 tokens and 16 elements at a time. */
INLINE void pack_as_f32(const void *const *x, tn_dtype dtype, int32_t tokens, int32_t width, int64_t k, float *panel)
{
    int64_t size = dtype == TN_F32 ? 4 : 2;
    for (int32_t first = 0; first < width; first += LANES) {
        __mmask16 lanes = first_lanes(width - first);
        for (int64_t i = 0; i < k; i += 16) {
            __m512i r[16];
            for (int t = 0; t < LANES; t++) {
                int32_t token = first + t;
                r[t] = _mm512_setzero_si512();
                if (token < tokens)
                    r[t] =
                        _mm512_castps_si512(load_as_f32((const char *)x[token] + i * size, dtype, first_lanes(k - i)));
            }
            transpose_16x16(r);
            int64_t n = k - i < 16 ? k - i : 16;
            for (int64_t p = 0; p < n; p++)
                _mm512_mask_storeu_epi32(panel + (i + p) * width + first, lanes, r[p]);
        }
    }
}

static void pack_f32(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_F32, tokens, width, k, panel);
}

static void pack_from_bf16(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_BF16, tokens, width, k, panel);
}

static void pack_from_f16(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_F16, tokens, width, k, panel);
}

INLINE void lay_as_f32(const char *src, tn_dtype dtype, int64_t step, int32_t lanes, int32_t width, int64_t k,
                       float *panel)
{
    int64_t size = dtype == TN_F32 ? 4 : 2;
    for (int64_t i = 0; i < k; i++, panel += width)
        for (int32_t t = 0; t < width; t += LANES)
            _mm512_mask_storeu_ps(panel + t, first_lanes(width - t),
                                  load_as_f32(src + i * step + t * size, dtype, first_lanes(lanes - t)));
}

static void lay_f32(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    lay_as_f32(src, TN_F32, step, lanes, width, k, panel);
}

static void lay_from_bf16(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    lay_as_f32(src, TN_BF16, step, lanes, width, k, panel);
}

static void lay_from_f16(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    lay_as_f32(src, TN_F16, step, lanes, width, k, panel);
}

/* As in product_avx512bf16.c. */
INLINE void tile_sums(const product_tile *tile, int full, bool half, __m512 sums[ROWS][VECTORS])
{
    __m256 rest[ROWS];
    const char *row[ROWS];
    const float *panel = tile->panel;
    int64_t width = full * LANES + (half ? LANES / 2 : 0), k = tile->k;
    sums_start(tile, full + half, sums);
    for (int r = 0; r < ROWS; r++) {
        row[r] = tile->w[r];
        rest[r] = half ? _mm512_castps512_ps256(sums[r][full]) : _mm256_setzero_ps();
    }
    for (int64_t line = 0; line < k; line += 16) {
        int64_t end = line + 16 < k ? line + 16 : k;
        product_fetch_lines(tile, line * 4);
        for (int64_t i = line; i < end; i++) {
            __m512 x[2];
            __m256 x_half = _mm256_setzero_ps();
            for (int v = 0; v < full; v++)
                x[v] = _mm512_loadu_ps(panel + i * width + v * LANES);
            if (half)
                x_half = _mm256_loadu_ps(panel + i * width + full * LANES);
            for (int r = 0; r < ROWS; r++) {
                float one;
                memcpy(&one, row[r] + i * 4, 4);
                __m512 b = _mm512_set1_ps(one);
                for (int v = 0; v < full; v++)
                    sums[r][v] = _mm512_fmadd_ps(x[v], b, sums[r][v]);
                if (half)
                    rest[r] = _mm256_fmadd_ps(x_half, _mm512_castps512_ps256(b), rest[r]);
            }
        }
    }
    for (int r = 0; r < ROWS && half; r++)
        sums[r][full] = _mm512_zextps256_ps512(rest[r]);
}

static void tile_part_f32(const product_tile *tile, float *sums)
{
    const tile_call call = {.tile = tile, .sums = sums};
    tile_of_width(&call, tile_sums, TILE_PART, false);
}

static void tile_glu_f32(const product_tile *tile, const product_finish *finish, int32_t features, void *h)
{
    const tile_call call = {.tile = tile, .finish = finish, .count = features, .tokens = tile->width, .h = h};
    tile_of_width(&call, tile_sums, TILE_GLU, false);
}

static void tile_out_f32(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                         int32_t tokens)
{
    const tile_call call = {.tile = tile, .finish = finish, .count = rows, .tokens = tokens, .y = y};
    tile_of_width(&call, tile_sums, TILE_OUT, false);
}

static void tile_lines_f32(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                           int32_t lanes)
{
    const tile_call call = {.tile = tile, .finish = finish, .count = rows, .tokens = lanes, .y = y};
    tile_of_width(&call, tile_sums, TILE_LINES, false);
}

/* Up to four tokens by 64 rows, which are the lanes. */
INLINE void columns_part(const char *w, tn_dtype dtype, int64_t step, int32_t rows, int64_t k, const void *const *x,
                         int tokens, float *sums, int64_t space)
{
    int64_t size = dtype == TN_F32 ? 4 : 2;
    __m512 sum[4][4];
    const float *xt[4];
    for (int t = 0; t < tokens; t++) {
        xt[t] = x[t];
        for (int v = 0; v < 4; v++)
            sum[t][v] = _mm512_loadu_ps(sums + t * space + v * LANES);
    }
    __mmask16 lanes[4];
    for (int v = 0; v < 4; v++)
        lanes[v] = first_lanes(rows - v * LANES);
    for (int64_t i = 0; i < k; i++) {
        for (int64_t line = 0; line < PRODUCT_COLUMNS * size; line += 64)
            _mm_prefetch(w + (k + i) * step + line, _MM_HINT_T1);
        for (int v = 0; v < 4; v++) {
            __m512 a = load_as_f32(w + i * step + v * LANES * size, dtype, lanes[v]);
            for (int t = 0; t < tokens; t++)
                sum[t][v] = _mm512_fmadd_ps(a, _mm512_set1_ps(xt[t][i]), sum[t][v]);
        }
    }
    for (int t = 0; t < tokens; t++)
        for (int v = 0; v < 4; v++)
            _mm512_storeu_ps(sums + t * space + v * LANES, sum[t][v]);
}

static void columns_f32(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                        float *sums, int64_t space)
{
    columns_of(columns_part, w, TN_F32, step, rows, k, x, tokens, sums, space);
}

static void columns_from_bf16(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x,
                              int32_t tokens, float *sums, int64_t space)
{
    columns_of(columns_part, w, TN_BF16, step, rows, k, x, tokens, sums, space);
}

static void columns_from_f16(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                             float *sums, int64_t space)
{
    columns_of(columns_part, w, TN_F16, step, rows, k, x, tokens, sums, space);
}

static void row_glu_avx512(const float *gate, const float *up, const float *up_bias, const product_finish *finish,
                           int32_t n, void *h)
{
    _mm512_mask_storeu_ps(h, first_lanes(n), row_glu_sums(gate, up, up_bias, finish, n));
}

static void row_out_avx512(const float *sums, const product_finish *finish, int32_t n, void *y)
{
    __mmask16 m = first_lanes(n);
    __m512 v = _mm512_maskz_loadu_ps(m, sums);
    if (finish->bias)
        v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, finish->bias));
    store_from_f32(y, finish->dtype, m, v);
}

/* Sixteen elements from i on. */
INLINE __m512 combine_lanes(const product_combine *c, int64_t i, __mmask16 m)
{
    int64_t from = c->part_dtype == TN_F32 ? 4 : 2;
    __m512 sum = _mm512_setzero_ps();
    for (int32_t j = 0; j < c->count; j++)
        sum = _mm512_fmadd_ps(load_as_f32((const char *)c->part[j] + i * from, c->part_dtype, m),
                              _mm512_set1_ps(c->weight[j]), sum);
    if (c->extra)
        sum = _mm512_fmadd_ps(load_as_f32((const char *)c->extra + i * from, c->part_dtype, m),
                              _mm512_set1_ps(c->extra_weight), sum);
    return sum;
}

/* Thirty-two elements of bf16 at a time, the even ones and the odd ones each in the upper halves of words. */
INLINE int64_t combine_bf16(const product_combine *c, int64_t n, char *y, int count)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    __m512 weight[PRODUCT_FEW_TOKENS];
    int64_t i = 0;
    for (int j = 0; j < count; j++)
        weight[j] = _mm512_set1_ps(c->weight[j]);
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (int j = 0; j < count; j++) {
            __m512i v = _mm512_loadu_si512((const char *)c->part[j] + i * 2);
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(v, 16)), weight[j], even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(v, upper)), weight[j], odd);
        }
        __m512i low = _mm512_srli_epi32(bf16_bits(even), 16), high = _mm512_and_si512(bf16_bits(odd), upper);
        _mm512_stream_si512((__m512i *)(void *)(y + i * 2), _mm512_or_si512(low, high));
    }
    return i;
}

/* Lines go past the caches. Returns how many elements were done: none where y does not begin with a line. */
static int64_t combine_lines(const product_combine *c, int64_t n, char *y)
{
    const __mmask16 all = 0xffff;
    int64_t i = 0, step = c->dtype == TN_F32 ? LANES : 2 * LANES;
    if ((uintptr_t)y % 64 != 0)
        return 0;
    if (c->part_dtype == TN_BF16 && c->dtype == TN_BF16 && c->count <= PRODUCT_FEW_TOKENS && !c->extra)
        return c->count == 1   ? combine_bf16(c, n, y, 1)
               : c->count == 2 ? combine_bf16(c, n, y, 2)
               : c->count == 3 ? combine_bf16(c, n, y, 3)
                               : combine_bf16(c, n, y, c->count);
    for (; i + step <= n; i += step, y += 64) {
        __m512 low = combine_lanes(c, i, all);
        if (c->dtype == TN_F32) {
            _mm512_stream_ps((float *)(void *)y, low);
            continue;
        }
        __m512i line = _mm512_castsi256_si512(half_from_f32(c->dtype, low));
        __m256i high = half_from_f32(c->dtype, combine_lanes(c, i + LANES, all));
        _mm512_stream_si512((__m512i *)(void *)y, _mm512_inserti64x4(line, high, 1));
    }
    return i;
}

static void combine_avx512(const product_combine *c, int64_t n, void *y)
{
    int64_t to = c->dtype == TN_F32 ? 4 : 2;
    for (int64_t i = c->stream ? combine_lines(c, n, y) : 0; i < n; i += LANES) {
        __mmask16 m = first_lanes(n - i);
        store_from_f32((char *)y + i * to, c->dtype, m, combine_lanes(c, i, m));
    }
}

/* 16 rows and 16 elements at a time: a transpose of words. */
static void gather_4(const void *src, int64_t step, int32_t rows, int64_t k, void *dst, int64_t space)
{
    __mmask16 m = first_lanes(rows);
    for (int64_t i = 0; i < k; i += 16) {
        __m512i v[16];
        for (int j = 0; j < 16; j++) {
            const char *at = (const char *)src + (i + j) * step;
            v[j] = i + j < k ? _mm512_maskz_loadu_epi32(m, at) : _mm512_setzero_si512();
        }
        transpose_16x16(v);
        for (int32_t r = 0; r < rows; r++)
            _mm512_mask_storeu_epi32((char *)dst + r * space + i * 4, first_lanes(k - i), v[r]);
    }
}

/* 16 rows and 32 elements at a time: a transpose of pairs. */
static void gather_2(const void *src, int64_t step, int32_t rows, int64_t k, void *dst, int64_t space)
{
    __mmask16 m = first_lanes(rows);
    for (int64_t i = 0; i < k; i += 32) {
        __m512i v[16];
        for (int j = 0; j < 16; j++) {
            const char *at = (const char *)src + (i + 2 * j) * step;
            __m256i none = _mm256_setzero_si256();
            __m256i a = i + 2 * j < k ? _mm256_maskz_loadu_epi16(m, at) : none;
            __m256i b = i + 2 * j + 1 < k ? _mm256_maskz_loadu_epi16(m, at + step) : none;
            v[j] = _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
        }
        transpose_16x16(v);
        __mmask32 left = k - i >= 32 ? 0xffffffffu : (1u << (k - i)) - 1;
        for (int32_t r = 0; r < rows; r++)
            _mm512_mask_storeu_epi16((char *)dst + r * space + i * 2, left, v[r]);
    }
}

static void widen_bf16(const void *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 m = first_lanes(n - i);
        _mm512_mask_storeu_ps(dst + i, m, load_as_f32((const uint16_t *)src + i, TN_BF16, m));
    }
}

static void widen_f16(const void *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 m = first_lanes(n - i);
        _mm512_mask_storeu_ps(dst + i, m, load_as_f32((const uint16_t *)src + i, TN_F16, m));
    }
}

void product_init_avx512(product_kernels *kernels)
{
    bool half = kernels->dtype == TN_F16, brain = kernels->dtype == TN_BF16;
    kernels->pack = brain ? pack_from_bf16 : half ? pack_from_f16 : pack_f32;
    kernels->tile_part = tile_part_f32;
    kernels->tile_glu = tile_glu_f32;
    kernels->lay = brain ? lay_from_bf16 : half ? lay_from_f16 : lay_f32;
    kernels->tile_out = tile_out_f32;
    kernels->tile_lines = tile_lines_f32;
    kernels->dots = brain ? dots_from_bf16 : half ? dots_from_f16 : dots_f32;
    kernels->turned = brain ? turned_from_bf16 : half ? turned_from_f16 : NULL;
    kernels->columns = brain ? columns_from_bf16 : half ? columns_from_f16 : columns_f32;
    kernels->row_glu = row_glu_avx512;
    kernels->row_out = row_out_avx512;
    kernels->combine = combine_avx512;
    kernels->gather = brain || half ? gather_2 : gather_4;
    if (brain || half)
        kernels->widen = brain ? widen_bf16 : widen_f16;
}
