/* The middle of cpu_attention's backward, AVX-512 with dot products of bf16: operands of the products that follow. */
#include "attention_avx512.h"

#include "attention_grad.h"

enum { GROUP = ATTENTION_LANES };

INLINE __m512 grad_of(const attention_grad_lanes *lanes, const attention_grad_block *b, int64_t s, __m512 *p)
{
    __m512 x = _mm512_loadu_ps(b->x + s * GROUP), slope = _mm512_set1_ps(b->natural);
    __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(b->scale));
    *p = exp2_by(attention_exp2_fine, 7, _mm512_sub_ps(scaled, _mm512_load_ps(lanes->max)));
    *p = _mm512_mul_ps(*p, _mm512_load_ps(lanes->inverse));
    if (b->cap_out != 0.0f) {
        __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.0f / b->cap_out));
        slope = _mm512_mul_ps(slope, _mm512_fnmadd_ps(t, t, _mm512_set1_ps(1.0f)));
    }
    __m512 ds = _mm512_sub_ps(_mm512_loadu_ps(b->dp + s * GROUP), _mm512_load_ps(lanes->inner));
    ds = _mm512_mul_ps(_mm512_mul_ps(*p, ds), slope);
    return _mm512_mask_mov_ps(*p, _mm512_cmp_ps_mask(*p, _mm512_setzero_ps(), _CMP_GT_OQ), ds);
}

INLINE void put_row(void *rows, int64_t s, __m512 v)
{
    _mm256_storeu_si256((__m256i *)((uint16_t *)rows + s * ATTENTION_ROWS), (__m256i)_mm512_cvtneps_pbh(v));
}

static void soften(const attention_grad_lanes *lanes, const attention_grad_block *b)
{
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t s = 0; s < attention_up(b->count, ATTENTION_STEP); s += 2) {
        __m512 ds[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int64_t i = 0; i < 2 && s + i < b->count; i++) {
            __m512 p;
            ds[i] = grad_of(lanes, b, s + i, &p);
            put_row(b->p, s + i, p);
            put_row(b->ds, s + i, ds[i]);
        }
        _mm512_storeu_si512((char *)b->ds_panel + s * GROUP * 2,
                            _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(ds[1], ds[0])));
    }
}

static void rows(const char *const *row, tn_dtype dtype, int64_t n, void *panel)
{
    (void)dtype;
    for (int64_t c = 0; c < n; c += GROUP) {
        __mmask16 some = n - c < GROUP ? (__mmask16)((1u << (n - c)) - 1) : 0xffff;
        for (int r = 0; r < GROUP; r += 2) {
            __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, row[r] + 2 * c));
            __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, row[r + 1] + 2 * c));
            _mm512_storeu_si512((uint16_t *)panel + c * ATTENTION_ROWS + r * GROUP,
                                _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
        }
    }
}

void attention_grad_init_avx512bf16(attention_grad_kernels *kernels)
{
    attention_grad_init_avx512(kernels);
    kernels->soften = soften;
    kernels->rows = rows;
}
