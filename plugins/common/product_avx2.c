/* Products in f32 with 8 lanes: f32 itself, and bf16 and f16 after conversion. */
#include <immintrin.h>
#include <string.h>
#include "product.h"
#include "vec_avx2.h"

#include "activation_vec.h"

#define LANES 8
#define ROWS 4
#define MAX_VECTORS 3 /* four rows by three vectors: 12 sums, 3 vectors of tokens and a weight fill 16 registers */

/* A tile's sums live in registers: that takes inlining. */
#define INLINE static inline __attribute__((always_inline))

/* Rounds to bf16, nearest even, in the upper half of each element; NaNs become quiet ones. */
static inline __m256i bf16_bits(__m256 v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_and_si256(_mm256_blendv_epi8(up, quiet, nan), _mm256_set1_epi32((int)0xffff0000));
}

static inline __m256 glu(__m256 gate, __m256 up, const product_finish *f)
{
    return _mm256_mul_ps(vec_activation(f->act, gate), up);
}

static inline __m256 load_as_f32(const void *p, tn_dtype dtype)
{
    if (dtype == TN_F32)
        return _mm256_loadu_ps(p);
    __m128i half = _mm_loadu_si128(p);
    if (dtype == TN_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* The last n < 8 elements of a row; the rest are zeros. */
static inline __m256 load_part(const void *p, tn_dtype dtype, int64_t n)
{
    char whole[32] = {0};
    memcpy(whole, p, (size_t)(n * (dtype == TN_F32 ? 4 : 2)));
    return load_as_f32(whole, dtype);
}

static inline __m256 load_up_to(const void *p, tn_dtype dtype, int64_t n)
{
    return n >= LANES ? load_as_f32(p, dtype) : load_part(p, dtype, n);
}

static inline void store_from_f32(void *p, tn_dtype dtype, int64_t n, __m256 v)
{
    char whole[32];
    if (dtype == TN_F32) {
        _mm256_storeu_ps((float *)(void *)whole, v);
    } else if (dtype == TN_F16) {
        _mm_storeu_si128((__m128i *)(void *)whole, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    } else {
        __m256i top = _mm256_srli_epi32(bf16_bits(v), 16);
        __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(top, top), 0x08);
        _mm_storeu_si128((__m128i *)(void *)whole, _mm256_castsi256_si128(packed));
    }
    memcpy(p, whole, (size_t)((n < LANES ? n : LANES) * (dtype == TN_F32 ? 4 : 2)));
}

/* 8 x 8 words, in place. */
static inline void transpose_8x8(__m256 v[8])
{
    __m256 a[8];
    for (int i = 0; i < 8; i += 4) {
        __m256d p = _mm256_castps_pd(_mm256_unpacklo_ps(v[i], v[i + 1]));
        __m256d q = _mm256_castps_pd(_mm256_unpackhi_ps(v[i], v[i + 1]));
        __m256d r = _mm256_castps_pd(_mm256_unpacklo_ps(v[i + 2], v[i + 3]));
        __m256d s = _mm256_castps_pd(_mm256_unpackhi_ps(v[i + 2], v[i + 3]));
        a[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(p, r));
        a[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(p, r));
        a[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(q, s));
        a[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(q, s));
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(a[i], a[4 + i], 0x20);
        v[4 + i] = _mm256_permute2f128_ps(a[i], a[4 + i], 0x31);
    }
}

INLINE void pack_as_f32(const void *const *x, tn_dtype dtype, int32_t tokens, int32_t vectors, int64_t k, float *panel)
{
    int64_t size = dtype == TN_F32 ? 4 : 2;
    for (int32_t v = 0; v < vectors; v++) {
        for (int64_t i = 0; i < k; i += 8) {
            __m256 r[8];
            for (int t = 0; t < LANES; t++) {
                int32_t token = v * LANES + t;
                r[t] = _mm256_setzero_ps();
                if (token < tokens)
                    r[t] = load_up_to((const char *)x[token] + i * size, dtype, k - i);
            }
            transpose_8x8(r);
            int64_t n = k - i < 8 ? k - i : 8;
            for (int64_t p = 0; p < n; p++)
                _mm256_storeu_ps(panel + ((i + p) * vectors + v) * LANES, r[p]);
        }
    }
}

static void pack_f32(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_F32, tokens, width / LANES, k, panel);
}

static void pack_from_bf16(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_BF16, tokens, width / LANES, k, panel);
}

static void pack_from_f16(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_F16, tokens, width / LANES, k, panel);
}

INLINE void sums_of(const void *const *w, int64_t ahead, int64_t k, const float *panel, int vectors, float *out)
{
    __m256 sums[ROWS][MAX_VECTORS];
    const char *row[ROWS];
    for (int r = 0; r < ROWS; r++) {
        row[r] = w[r];
        for (int v = 0; v < vectors; v++)
            sums[r][v] = _mm256_setzero_ps();
    }
    for (int64_t line = 0; line < k; line += 16) {
        int64_t end = line + 16 < k ? line + 16 : k;
        for (int r = 0; r < ROWS; r++)
            _mm_prefetch(row[r] + line * 4 + ahead, _MM_HINT_T1);
        for (int64_t i = line; i < end; i++) {
            __m256 x[MAX_VECTORS];
            for (int v = 0; v < vectors; v++)
                x[v] = _mm256_loadu_ps(panel + (i * vectors + v) * LANES);
            for (int r = 0; r < ROWS; r++) {
                __m256 one = _mm256_broadcast_ss((const float *)(const void *)(row[r] + i * 4));
                for (int v = 0; v < vectors; v++)
                    sums[r][v] = _mm256_fmadd_ps(x[v], one, sums[r][v]);
            }
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            _mm256_storeu_ps(out + (r * vectors + v) * LANES, sums[r][v]);
}

/* out[r * vectors + v] holds row r and tokens 8v .. 8v + 7; with 16 registers the sums pass through the first cache. */
static void tile_sums(const void *const *w, int64_t ahead, int64_t k, const void *panel, int32_t vectors, float *out)
{
    if (vectors == 3)
        sums_of(w, ahead, k, panel, 3, out);
    else if (vectors == 2)
        sums_of(w, ahead, k, panel, 2, out);
    else
        sums_of(w, ahead, k, panel, 1, out);
}

static void tile_glu_avx2(const void *const *w, int64_t ahead, int64_t k, const void *panel, int32_t width,
                          const product_finish *finish, int32_t features, void *h)
{
    int32_t vectors = width / LANES;
    float sums[ROWS * MAX_VECTORS * LANES];
    tile_sums(w, ahead, k, panel, vectors, sums);
    for (int i = 0; i < ROWS / 2; i++) {
        for (int v = 0; v < vectors; v++) {
            __m256 gate = _mm256_loadu_ps(sums + (i * vectors + v) * LANES), r = _mm256_setzero_ps();
            __m256 up = _mm256_loadu_ps(sums + ((ROWS / 2 + i) * vectors + v) * LANES);
            if (finish->bias && i < features) {
                gate = _mm256_add_ps(gate, _mm256_set1_ps(finish->bias[i]));
                up = _mm256_add_ps(up, _mm256_set1_ps(finish->bias[ROWS / 2 + i]));
            }
            if (i < features)
                r = glu(gate, up, finish);
            _mm256_storeu_ps((float *)h + (i * vectors + v) * LANES, r);
        }
    }
}

static void tile_out_avx2(const void *const *w, int64_t ahead, int64_t k, const void *panel, int32_t width,
                          const product_finish *finish, int32_t rows, void *const *y, int32_t tokens)
{
    float sums[ROWS * MAX_VECTORS * LANES];
    int32_t vectors = width / LANES;
    tile_sums(w, ahead, k, panel, vectors, sums);
    for (int32_t t = 0; t < tokens; t++) {
        float one[LANES] = {0};
        for (int32_t r = 0; r < rows; r++)
            one[r] = sums[r * width + t] + (finish->bias ? finish->bias[r] : 0.0f);
        store_from_f32(y[t], finish->dtype, rows, _mm256_loadu_ps(one));
    }
}

static inline float sum_of(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* One weight row of dtype with up to four tokens. Few tokens take several chains along k each.
 * next: what to prefetch, or NULL. */
INLINE void row_dots(const char *w, const char *next, tn_dtype dtype, int64_t k, const void *const *x, int tokens,
                     int chains, float *out)
{
    int64_t size = dtype == TN_F32 ? 4 : 2;
    __m256 sum[4][4];
    const float *xt[4];
    for (int t = 0; t < tokens; t++) {
        xt[t] = x[t];
        for (int c = 0; c < chains; c++)
            sum[t][c] = _mm256_setzero_ps();
    }
    int64_t i = 0;
    for (; i + LANES * chains <= k; i += LANES * chains) {
        for (int c = 0; c < chains; c++) {
            if (next)
                _mm_prefetch(next + (i + LANES * c) * size, _MM_HINT_T1);
            __m256 a = load_as_f32(w + (i + LANES * c) * size, dtype);
            for (int t = 0; t < tokens; t++)
                sum[t][c] = _mm256_fmadd_ps(a, _mm256_loadu_ps(xt[t] + i + LANES * c), sum[t][c]);
        }
    }
    for (; i < k; i += LANES) {
        __m256 a = load_up_to(w + i * size, dtype, k - i);
        for (int t = 0; t < tokens; t++)
            sum[t][0] = _mm256_fmadd_ps(a, load_up_to(xt[t] + i, TN_F32, k - i), sum[t][0]);
    }
    for (int t = 0; t < tokens; t++) {
        for (int c = 1; c < chains; c++)
            sum[t][0] = _mm256_add_ps(sum[t][0], sum[t][c]);
        out[t * PRODUCT_FEW_ROWS] = sum_of(sum[t][0]);
    }
}

INLINE void dots_as_f32(const void *w, tn_dtype dtype, int64_t stride, const void *next, int32_t rows, int64_t k,
                        const void *const *x, int32_t tokens, float *sums)
{
    int64_t bytes = k * (dtype == TN_F32 ? 4 : 2);
    for (int32_t r = 0; r < rows; r++) {
        const char *row = (const char *)w + r * stride;
        product_stream s = {w, next, stride, rows, 0, 0};
        const char *ahead = product_ahead(&s, r, 1, bytes);
        for (int32_t t = 0; t < tokens; t += 4) { /* after the first time the row comes from the first cache */
            float *out = sums + t * PRODUCT_FEW_ROWS + r;
            if (tokens - t >= 4)
                row_dots(row, t ? NULL : ahead, dtype, k, x + t, 4, 2, out);
            else if (tokens - t == 3)
                row_dots(row, t ? NULL : ahead, dtype, k, x + t, 3, 2, out);
            else if (tokens - t == 2)
                row_dots(row, t ? NULL : ahead, dtype, k, x + t, 2, 4, out);
            else
                row_dots(row, t ? NULL : ahead, dtype, k, x + t, 1, 4, out);
        }
    }
}

static void dots_f32(const void *w, int64_t stride, const void *next, int32_t rows, int64_t k, const void *const *x,
                     int32_t tokens, float *sums)
{
    dots_as_f32(w, TN_F32, stride, next, rows, k, x, tokens, sums);
}

static void dots_from_bf16(const void *w, int64_t stride, const void *next, int32_t rows, int64_t k,
                           const void *const *x, int32_t tokens, float *sums)
{
    dots_as_f32(w, TN_BF16, stride, next, rows, k, x, tokens, sums);
}

static void dots_from_f16(const void *w, int64_t stride, const void *next, int32_t rows, int64_t k,
                          const void *const *x, int32_t tokens, float *sums)
{
    dots_as_f32(w, TN_F16, stride, next, rows, k, x, tokens, sums);
}

static void row_glu_avx2(const float *gate, const float *up, const float *up_bias, const product_finish *finish,
                         int32_t n, void *h)
{
    for (int32_t i = 0; i < n; i += LANES) {
        __m256 g = load_up_to(gate + i, TN_F32, n - i), u = load_up_to(up + i, TN_F32, n - i);
        if (finish->bias)
            g = _mm256_add_ps(g, load_up_to(finish->bias + i, TN_F32, n - i));
        if (up_bias)
            u = _mm256_add_ps(u, load_up_to(up_bias + i, TN_F32, n - i));
        store_from_f32((float *)h + i, TN_F32, n - i, glu(g, u, finish));
    }
}

static void row_out_avx2(const float *sums, const product_finish *finish, int32_t n, void *y)
{
    int64_t size = finish->dtype == TN_F32 ? 4 : 2;
    for (int32_t i = 0; i < n; i += LANES) {
        __m256 v = load_up_to(sums + i, TN_F32, n - i);
        if (finish->bias)
            v = _mm256_add_ps(v, load_up_to(finish->bias + i, TN_F32, n - i));
        store_from_f32((char *)y + i * size, finish->dtype, n - i, v);
    }
}

static void combine_avx2(const product_combine *c, int64_t n, void *y)
{
    int64_t from = c->part_dtype == TN_F32 ? 4 : 2, to = c->dtype == TN_F32 ? 4 : 2;
    for (int64_t i = 0; i < n; i += LANES) {
        __m256 sum = _mm256_setzero_ps();
        for (int32_t j = 0; j < c->count; j++)
            sum = _mm256_fmadd_ps(load_up_to((const char *)c->part[j] + i * from, c->part_dtype, n - i),
                                  _mm256_set1_ps(c->weight[j]), sum);
        if (c->extra)
            sum = _mm256_fmadd_ps(load_up_to((const char *)c->extra + i * from, c->part_dtype, n - i),
                                  _mm256_set1_ps(c->extra_weight), sum);
        store_from_f32((char *)y + i * to, c->dtype, n - i, sum);
    }
}

static void widen_bf16(const void *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_from_f32(dst + i, TN_F32, n - i, load_up_to((const uint16_t *)src + i, TN_BF16, n - i));
}

static void widen_f16(const void *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_from_f32(dst + i, TN_F32, n - i, load_up_to((const uint16_t *)src + i, TN_F16, n - i));
}

void product_init_avx2(product_kernels *kernels)
{
    bool half = kernels->dtype == TN_F16, brain = kernels->dtype == TN_BF16;
    kernels->name = "avx2";
    kernels->native = TN_F32;
    kernels->group = 1;
    kernels->rows = ROWS;
    kernels->lanes = kernels->min_tokens = LANES;
    kernels->tile_tokens = kernels->max_tokens = MAX_VECTORS * LANES;
    kernels->pack = brain ? pack_from_bf16 : half ? pack_from_f16 : pack_f32;
    kernels->tile_glu = tile_glu_avx2;
    kernels->tile_out = tile_out_avx2;
    kernels->dots = brain ? dots_from_bf16 : half ? dots_from_f16 : dots_f32;
    kernels->row_glu = row_glu_avx2;
    kernels->row_out = row_out_avx2;
    kernels->combine = combine_avx2;
    if (brain || half)
        kernels->widen = brain ? widen_bf16 : widen_f16;
}
