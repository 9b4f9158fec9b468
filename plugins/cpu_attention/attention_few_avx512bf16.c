/* cpu_attention, AVX-512 with dot products of bf16: few rows. Keys are turned in registers by pairs of elements, so
 * that a lane is a key; of values two keys are interleaved, and a lane is a column. Sums are those of many rows. */
#include "attention_avx512.h"

#include "attention.h"

#include <math.h>

enum {
    GROUP = ATTENTION_LANES,
    STEP = 32,

    PROBABILITIES = 2 * ATTENTION_KEYS,
    ROWS_AT_ONCE = 4,
    COLUMNS_AT_ONCE = 4
};

INLINE __m512 dot(__m512 sum, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* Two neighbours of a row, everywhere. */
INLINE __m512i pair_of(const uint16_t *row)
{
    int32_t both;
    memcpy(&both, row, sizeof both);
    return _mm512_set1_epi32(both);
}

/* The scores of some vectors of keys from s on. Behind the last key stands the last key. */
INLINE void scores_of(const attention_few *f, int64_t s, int vectors, int rows, const uint16_t *q, float *x)
{
    __m512 sum[4 * ROWS_AT_ONCE];
    const char *key[4 * GROUP];
    for (int r = 0; r < vectors * GROUP; r++)
        key[r] = f->data + (s + r < f->count ? s + r : f->count - 1) * f->step;
    for (int r = 0; r < vectors * rows; r++)
        sum[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < f->width; i += STEP) {
        __mmask32 some = f->width - i < STEP ? (1u << (f->width - i)) - 1 : 0xffffffffu;
        for (int g = 0; g < vectors; g++) {
            __m512i w[GROUP];
            for (int r = 0; r < GROUP; r++) {
                w[r] = _mm512_maskz_loadu_epi16(some, key[g * GROUP + r] + 2 * i);
                __builtin_prefetch(f->next + (s + g * GROUP + r) * f->next_step + 2 * i, 0, 2);
            }
            transpose_16x16(w);
            for (int c = 0; c < GROUP; c++)
                for (int r = 0; r < rows; r++)
                    sum[g * rows + r] = dot(sum[g * rows + r], w[c], pair_of(q + r * f->row + i + 2 * c));
        }
    }
    for (int r = 0; r < vectors * rows; r++)
        _mm512_storeu_ps(x + r % rows * ATTENTION_KEYS + s + r / rows * GROUP, sum[r]);
}

INLINE void scores_rows(const attention_few *f, int rows, const uint16_t *q, float *x)
{
    const int vectors = rows > 2 ? 2 : 4;
    int64_t s = f->from;
    for (; s + vectors * GROUP <= attention_up(f->end, GROUP); s += vectors * GROUP)
        scores_of(f, s, vectors, rows, q, x);
    for (; s < f->end; s += GROUP)
        scores_of(f, s, 1, rows, q, x);
}

static void few_scores(const attention_few *f, const void *panel, float *x)
{
    const uint16_t *q = panel;
    int64_t r = 0;
    for (; r + 4 <= f->rows; r += 4)
        scores_rows(f, 4, q + r * f->row, x + r * ATTENTION_KEYS);
    for (; r + 2 <= f->rows; r += 2)
        scores_rows(f, 2, q + r * f->row, x + r * ATTENTION_KEYS);
    if (r < f->rows)
        scores_rows(f, 1, q + r * f->row, x + r * ATTENTION_KEYS);
}

/* Probabilities in bf16 stand in the first halves of the rows of scores. */
static float few_soften(float *max, float *sum, float scale, int64_t from, int64_t end, float *x)
{
    const __m512 times = _mm512_set1_ps(scale);
    __m512 most = _mm512_set1_ps(-INFINITY);
    __m128 sums = _mm_setzero_ps();
    uint16_t *p = (uint16_t *)(void *)x;
    float before = *max, four[ATTENTION_SUMS];
    for (int64_t s = from; s < end; s += GROUP)
        most = _mm512_max_ps(_mm512_loadu_ps(x + s), most);
    float top = _mm512_reduce_max_ps(most) * scale;
    *max = top > before + ATTENTION_RAISE ? top : before;
    const __m512 minus = _mm512_set1_ps(*max);
    for (int64_t s = from; s < end; s += STEP) {
        __m512 a = exp2_by(attention_exp2_coarse, 5, _mm512_fmsub_ps(_mm512_loadu_ps(x + s), times, minus));
        __m512 b = exp2_by(attention_exp2_coarse, 5, _mm512_fmsub_ps(_mm512_loadu_ps(x + s + GROUP), times, minus));
        _mm512_storeu_si512(p + s, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
    for (int64_t s = from; s < end; s += 2 * ATTENTION_SUMS) {
        __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)(p + s));
        sums = _mm_dpbf16_ps(sums, (__m128bh)eight, (__m128bh)_mm_set1_epi16(0x3f80));
    }
    float factor = _mm512_cvtss_f32(exp2_by(attention_exp2_fine, 7, _mm512_set1_ps(before - *max)));
    _mm_storeu_ps(four, sums);
    *sum = fmaf(*sum, factor, four[0] + four[2] + (four[1] + four[3]));
    return factor;
}

/* Some times 32 columns from i on. Interleaving leaves columns 0 to 3 of each eight in one vector and 4 to 7 in the
 * other. */
INLINE void mix_at(const attention_few *f, int64_t i, int columns, int rows, const uint16_t *p, float *o)
{
    __m512 sum[ROWS_AT_ONCE][COLUMNS_AT_ONCE][2];
    const __mmask32 some = f->width - i < STEP ? (1u << (f->width - i)) - 1 : 0xffffffffu;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            const float *from = o + r * f->row + i + c * STEP;
            __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + GROUP);
            sum[r][c][0] = _mm512_shuffle_f32x4(a, b, 0x88);
            sum[r][c][1] = _mm512_shuffle_f32x4(a, b, 0xdd);
        }
    for (int64_t s = f->from - f->from % 2; s < f->end; s += 2) {
        const char *first = f->data + s * f->step + 2 * i, *second = first + f->step;
        __mmask32 one = s >= f->from ? some : 0, other = s + 1 < f->end ? some : 0;
        for (int c = 0; c < columns; c++) {
            __m512i a = _mm512_maskz_loadu_epi16(one, first + c * STEP * 2);
            __m512i b = _mm512_maskz_loadu_epi16(other, second + c * STEP * 2);
            __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
            __builtin_prefetch(f->next + s * f->next_step + 2 * (i + c * STEP), 0, 2);
            __builtin_prefetch(f->next + (s + 1) * f->next_step + 2 * (i + c * STEP), 0, 2);
            for (int r = 0; r < rows; r++) {
                __m512i weights = pair_of(p + r * PROBABILITIES + s);
                sum[r][c][0] = dot(sum[r][c][0], low, weights);
                sum[r][c][1] = dot(sum[r][c][1], high, weights);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            float *to = o + r * f->row + i + c * STEP;
            __m512 a = _mm512_shuffle_f32x4(sum[r][c][0], sum[r][c][1], 0x44);
            __m512 b = _mm512_shuffle_f32x4(sum[r][c][0], sum[r][c][1], 0xee);
            _mm512_storeu_ps(to, _mm512_shuffle_f32x4(a, a, 0xd8));
            _mm512_storeu_ps(to + GROUP, _mm512_shuffle_f32x4(b, b, 0xd8));
        }
}

INLINE void mix_rows(const attention_few *f, int rows, const uint16_t *p, float *o)
{
    const int columns = rows > 2 ? COLUMNS_AT_ONCE / 2 : COLUMNS_AT_ONCE;
    int64_t i = 0;
    for (; i + columns * STEP <= f->width; i += columns * STEP)
        mix_at(f, i, columns, rows, p, o);
    for (; i < f->width; i += STEP)
        mix_at(f, i, 1, rows, p, o);
}

static void few_mix(const attention_few *f, const float *x, float *o)
{
    const uint16_t *p = (const uint16_t *)(const void *)x;
    int64_t r = 0;
    for (; r + 4 <= f->rows; r += 4)
        mix_rows(f, 4, p + r * PROBABILITIES, o + r * f->row);
    for (; r + 2 <= f->rows; r += 2)
        mix_rows(f, 2, p + r * PROBABILITIES, o + r * f->row);
    if (r < f->rows)
        mix_rows(f, 1, p + r * PROBABILITIES, o + r * f->row);
}

void attention_few_init_avx512bf16(attention_kernels *kernels)
{
    kernels->few_scores = few_scores;
    kernels->few_soften = few_soften;
    kernels->few_mix = few_mix;
}
