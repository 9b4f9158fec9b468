/* cpu_attention, AVX-512 with dot products of bf16: what goes by pairs along the sum. */
#include "attention_avx512.h"

#include "attention.h"

#include <math.h>

enum { GROUP = ATTENTION_LANES, PAIR_BYTES = 4, PAIRS = 16, ROWS_AT_ONCE = 6, KEY_STEP = 32 };

/* Panels of queries: [depth / 2][16 rows][2], zeros behind d. */
static void queries(const char *const *row, tn_dtype dtype, int64_t d, void *panel)
{
    (void)dtype;
    for (int64_t i = 0; i < d; i += 2 * PAIRS) {
        __mmask32 some = d - i < 2 * PAIRS ? (1u << (d - i)) - 1 : 0xffffffffu;
        __m512i w[GROUP];
        for (int r = 0; r < GROUP; r++)
            w[r] = _mm512_maskz_loadu_epi16(some, row[r] + 2 * i);
        transpose_16x16(w);
        for (int p = 0; p < PAIRS; p++)
            _mm512_storeu_si512((char *)panel + (i / 2 + p) * GROUP * PAIR_BYTES, w[p]);
    }
}

/* 32 keys of up to 32 columns: each column's keys side by side. Interleaving two rows leaves columns 0 to 3 of each
 * eight in one vector and 4 to 7 in the other. */
INLINE void turn_tile(const char *from, int64_t step, int64_t keys, int64_t columns, int64_t rows, uint16_t *to)
{
    __mmask32 some = columns < KEY_STEP ? (1u << columns) - 1 : 0xffffffffu;
    __m512i half[2][PAIRS];
    for (int p = 0; p < PAIRS; p++) {
        __m512i a = 2 * p < keys ? _mm512_maskz_loadu_epi16(some, from + 2 * p * step) : _mm512_setzero_si512();
        __m512i b =
            2 * p + 1 < keys ? _mm512_maskz_loadu_epi16(some, from + (2 * p + 1) * step) : _mm512_setzero_si512();
        half[0][p] = _mm512_unpacklo_epi16(a, b);
        half[1][p] = _mm512_unpackhi_epi16(a, b);
    }
    for (int h = 0; h < 2; h++) {
        transpose_16x16(half[h]);
        for (int j = 0; j < PAIRS; j++) {
            int64_t column = j / 4 * 8 + h * 4 + j % 4;
            if (column < rows)
                _mm512_storeu_si512(to + column * ATTENTION_KEYS, half[h][j]);
        }
    }
}

static void turn(const char *from, int64_t step, int64_t keys, int64_t dv, uint16_t *to)
{
    int64_t rows = attention_up(dv, GROUP);
    for (int64_t s = 0; s < keys; s += KEY_STEP)
        for (int64_t c = 0; c < dv; c += KEY_STEP) {
            for (int64_t next = KEY_STEP; next < 2 * KEY_STEP; next++)
                __builtin_prefetch(from + (s + next) * step + 2 * c);
            turn_tile(from + s * step + 2 * c, step, keys - s, dv - c, rows - c, to + c * ATTENTION_KEYS + s);
        }
}

INLINE __m512 dot(__m512 sum, const char *w, __m512i x)
{
    int32_t both;
    memcpy(&both, w, sizeof both);
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(both), (__m512bh)x);
}

/* n rows times groups of lanes. */
INLINE void product(const char *w, int64_t row, int n, int64_t depth, const char *panel, int64_t panel_group,
                    int groups, bool add, float *out, int64_t out_group)
{
    __m512 sum[ROWS_AT_ONCE][ATTENTION_GROUPS];
    for (int r = 0; r < n; r++)
        for (int g = 0; g < groups; g++)
            sum[r][g] = add ? _mm512_loadu_ps(out + g * out_group + r * GROUP) : _mm512_setzero_ps();
    for (int64_t i = 0; i < depth; i += 2) {
        __m512i x[ATTENTION_GROUPS];
        for (int g = 0; g < groups; g++)
            x[g] = _mm512_loadu_si512(panel + g * panel_group + i * GROUP * 2);
        for (int r = 0; r < n; r++)
            for (int g = 0; g < groups; g++)
                sum[r][g] = dot(sum[r][g], w + r * row + 2 * i, x[g]);
    }
    for (int r = 0; r < n; r++)
        for (int g = 0; g < groups; g++)
            _mm512_storeu_ps(out + g * out_group + r * GROUP, sum[r][g]);
}

INLINE void products_of(const char *w, int64_t row, int64_t rows, int64_t depth, const char *panel, int64_t panel_group,
                        int groups, bool add, float *out, int64_t out_group)
{
    int64_t r = 0;
    for (; r + ROWS_AT_ONCE <= rows; r += ROWS_AT_ONCE)
        product(w + r * row, row, ROWS_AT_ONCE, depth, panel, panel_group, groups, add, out + r * GROUP, out_group);
    for (; r + 2 <= rows; r += 2)
        product(w + r * row, row, 2, depth, panel, panel_group, groups, add, out + r * GROUP, out_group);
    if (r < rows)
        product(w + r * row, row, 1, depth, panel, panel_group, groups, add, out + r * GROUP, out_group);
}

static void products(const attention_operand *w, int64_t rows, int64_t depth, const char *panel, int64_t panel_group,
                     int32_t groups, bool add, float *out, int64_t out_group)
{
    int64_t row = w->row * 2;
    for (; groups >= 4; groups -= 4, panel += 4 * panel_group, out += 4 * out_group)
        products_of(w->data, row, rows, depth, panel, panel_group, 4, add, out, out_group);
    for (; groups >= 2; groups -= 2, panel += 2 * panel_group, out += 2 * out_group)
        products_of(w->data, row, rows, depth, panel, panel_group, 2, add, out, out_group);
    if (groups)
        products_of(w->data, row, rows, depth, panel, panel_group, 1, add, out, out_group);
}

static void scores(const attention_operand *keys, int64_t count, int64_t depth, const void *panel, int32_t groups,
                   float *to)
{
    products(keys, count, depth, panel, depth * GROUP * 2, groups, false, to, ATTENTION_KEYS * GROUP);
}

static void mix(const attention_operand *values, int64_t dv, int64_t count, const void *panel, int64_t panel_group,
                int32_t groups, float *o, int64_t o_group)
{
    products(values, dv, attention_up(count, 2), panel, panel_group * 2, groups, true, o, o_group);
}

/* ---- softmax ------------------------------------------------------------------------------------------ */

INLINE __m512 raise_max(attention_lanes *lanes, __m512 scale, int64_t count, const float *x)
{
    __m512 top[4], before = _mm512_load_ps(lanes->max);
    for (int c = 0; c < 4; c++)
        top[c] = _mm512_set1_ps(-INFINITY);
    for (int64_t s = 0; s < count; s += 4)
        for (int c = 0; c < 4; c++)
            top[c] = _mm512_max_ps(_mm512_loadu_ps(x + (s + c) * GROUP), top[c]);
    __m512 largest = _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3]));
    largest = _mm512_mul_ps(largest, scale);
    __mmask16 more = _mm512_cmp_ps_mask(largest, _mm512_add_ps(before, _mm512_set1_ps(ATTENTION_RAISE)), _CMP_GT_OQ);
    __m512 max = _mm512_mask_mov_ps(before, more, largest);
    _mm512_store_ps(lanes->max, max);
    _mm512_store_ps(lanes->factor, exp2_by(attention_exp2_fine, 7, _mm512_sub_ps(before, max)));
    return max;
}

/* Of two keys, rounded to bf16 side by side: [pair][16 rows][2]. Returns sum with what was rounded, so that the weights
 * of values add up to one. */
INLINE __m512 put_pair(void *panel, int64_t s, __m512 a, __m512 b, __m512 sum)
{
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i both = _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    _mm512_storeu_si512((char *)panel + s / 2 * GROUP * PAIR_BYTES, both);
    return _mm512_dpbf16_ps(sum, (__m512bh)both, (__m512bh)_mm512_set1_epi16(0x3f80));
}

INLINE __m512 probability(const float *x, __m512 scale, __m512 max)
{
    return exp2_by(attention_exp2_coarse, 5, _mm512_fmsub_ps(_mm512_loadu_ps(x), scale, max));
}

static bool soften(attention_lanes *lanes, float factor, int64_t count, const float *x, void *panel)
{
    const __m512 scale = _mm512_set1_ps(factor), max = raise_max(lanes, scale, count, x);
    __m512 sum[ATTENTION_SUMS];
    for (int c = 0; c < ATTENTION_SUMS; c++)
        sum[c] = _mm512_setzero_ps();
    for (int64_t s = 0; s < count; s += 2 * ATTENTION_SUMS)
        for (int c = 0; c < ATTENTION_SUMS; c++) {
            const float *at = x + (s + 2 * c) * GROUP;
            sum[c] =
                put_pair(panel, s + 2 * c, probability(at, scale, max), probability(at + GROUP, scale, max), sum[c]);
        }
    const __m512 all = _mm512_add_ps(_mm512_add_ps(sum[0], sum[2]), _mm512_add_ps(sum[1], sum[3]));
    const __m512 before = _mm512_load_ps(lanes->factor);
    _mm512_store_ps(lanes->sum, _mm512_fmadd_ps(_mm512_load_ps(lanes->sum), before, all));
    return _mm512_cmp_ps_mask(before, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ) != 0;
}

void attention_init_avx512bf16(attention_kernels *kernels)
{
    attention_init_avx512(kernels);
    attention_few_init_avx512bf16(kernels);
    kernels->pairs = true;
    kernels->depth = KEY_STEP;
    kernels->queries = queries;
    kernels->turn = turn;
    kernels->scores = scores;
    kernels->mix = mix;
    kernels->soften = soften;
}
