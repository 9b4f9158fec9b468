/* Vectors of floats for kernels that are written once for every instruction set: this is their AVX-512 form. An element
 * type is passed as a constant, so every choice below is made by the compiler.
 *
 * Rounding is to nearest even, by integer arithmetic for bf16: VCVTNEPS2BF16 would flush denormals. NaN survives as
 * long as the lower half of its payload is empty, which is so when it came from a bf16 number or from an operation
 * without a result; vec_quiet is for all others. */
#ifndef TENON_COMMON_VEC_AVX512_H
#define TENON_COMMON_VEC_AVX512_H

#include <immintrin.h>

#define VEC_LANES 16
typedef __m512 vec;

#include "vec_common.h"

VEC_INLINE vec vec_set(float value)
{
    return _mm512_set1_ps(value);
}

/* a b + c and c - a b, rounded once. */
VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

VEC_INLINE vec vec_fnma(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* The second when one is NaN. */
VEC_INLINE vec vec_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

VEC_INLINE vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

VEC_INLINE vec vec_abs(vec a)
{
    return _mm512_abs_ps(a);
}

/* yes in the lanes where the sign of a is set; where a > b. */
VEC_INLINE vec vec_where_negative(vec a, vec yes, vec no)
{
    return _mm512_mask_mov_ps(no, _mm512_movepi32_mask(_mm512_castps_si512(a)), yes);
}

VEC_INLINE vec vec_where_greater(vec a, vec b, vec yes, vec no)
{
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), yes);
}

/* 1 / sqrt(value), both rounded. */
VEC_INLINE float vec_inverse_sqrt(float value)
{
    __m128 v = _mm_set_ss(value);
    return _mm_cvtss_f32(_mm_div_ss(_mm_set_ss(1.0f), _mm_sqrt_ss(v)));
}

/* Lane i plus lane i + 8, then + 4, + 2, + 1. */
VEC_INLINE float vec_sum(vec a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* e^a within 2 units of the last place; infinity above 88.72, 0 below -104, NaN stays. */
VEC_INLINE vec vec_exp(vec a)
{
    static const float coefficient[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    /* max and min return the second operand when one is NaN. */
    __m512 x = _mm512_max_ps(vec_set(-105.0f), _mm512_min_ps(vec_set(89.0f), a));
    __m512 n =
        _mm512_roundscale_ps(_mm512_mul_ps(x, vec_set(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    /* ln 2 in two parts: the first has so few bits that n times it is exact. */
    __m512 r = _mm512_fnmadd_ps(n, vec_set(0x1.62e4p-1f), x);
    r = _mm512_fnmadd_ps(n, vec_set(0x1.7f7d1cf79abcap-20f), r);
    __m512 p = vec_set(coefficient[0]);
    for (int i = 1; i < 8; i++)
        p = _mm512_fmadd_ps(p, r, vec_set(coefficient[i]));
    return _mm512_scalef_ps(p, n);
}

/* Makes every NaN quiet, with as much of its payload as bf16 holds. */
VEC_INLINE vec vec_quiet(vec a)
{
    __m512i quiet = _mm512_or_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x400000));
    quiet = _mm512_mask_and_epi32(_mm512_castps_si512(a), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet,
                                  _mm512_set1_epi32((int)0xffff0000));
    return _mm512_castsi512_ps(quiet);
}

/* a rounded to bf16, in the upper halves of the lanes; what is below is not cleared. Adds one more than 0x7fff where
 * the last bit that stays is odd. */
VEC_INLINE __m512i vec_bf16_high(vec a)
{
    __m512i bits = _mm512_castps_si512(a), up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    return _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
}

/* a as dtype holds it. */
VEC_INLINE vec vec_round(vec a, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return _mm512_castsi512_ps(_mm512_and_si512(vec_bf16_high(a), _mm512_set1_epi32((int)0xffff0000)));
    if (dtype == TN_F16)
        return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return a;
}

VEC_INLINE vec vec_widen(__m256i half, tn_dtype dtype)
{
    if (dtype == TN_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

VEC_INLINE __m256i vec_narrow(vec a, tn_dtype dtype)
{
    if (dtype == TN_F16)
        return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(vec_bf16_high(a), 16));
}

/* VEC_LANES elements at p, any alignment. */
VEC_INLINE vec vec_load(const char *p, tn_dtype dtype)
{
    if (dtype == TN_F32)
        return _mm512_loadu_ps(p);
    return vec_widen(_mm256_loadu_si256((const __m256i *)p), dtype);
}

VEC_INLINE void vec_store(char *p, tn_dtype dtype, vec a)
{
    if (dtype == TN_F32)
        _mm512_storeu_ps(p, a);
    else
        _mm256_storeu_si256((__m256i *)p, vec_narrow(a, dtype));
}

/* The first n < VEC_LANES elements at p; the other lanes are 0. Touches nothing beyond. */
VEC_INLINE vec vec_load_part(const char *p, tn_dtype dtype, int64_t n)
{
    __mmask16 first = (__mmask16)((1u << n) - 1);
    if (dtype == TN_F32)
        return _mm512_maskz_loadu_ps(first, p);
    return vec_widen(_mm256_maskz_loadu_epi16(first, p), dtype);
}

VEC_INLINE void vec_store_part(char *p, tn_dtype dtype, vec a, int64_t n)
{
    __mmask16 first = (__mmask16)((1u << n) - 1);
    if (dtype == TN_F32)
        _mm512_mask_storeu_ps(p, first, a);
    else
        _mm256_mask_storeu_epi16(p, first, vec_narrow(a, dtype));
}

/* ---- turning ---- */

/* Four rows of 16 words become 16 rows of four words: row t is 128-bit lane t / 4 of out[t % 4]. */
VEC_INLINE void transpose_4x16(const __m512i v[4], __m512i out[4])
{
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

/* 16 x 16 words, in place. */
VEC_INLINE void transpose_16x16(__m512i v[16])
{
    __m512i q[16];
    for (int i = 0; i < 4; i++)
        transpose_4x16(v + 4 * i, q + 4 * i);
    for (int j = 0; j < 4; j++) { /* q[4 * i + j] holds words 4i.. of rows j, 4 + j, 8 + j, 12 + j, one per lane */
        __m512i a = _mm512_shuffle_i32x4(q[j], q[4 + j], 0x88), b = _mm512_shuffle_i32x4(q[j], q[4 + j], 0xdd);
        __m512i c = _mm512_shuffle_i32x4(q[8 + j], q[12 + j], 0x88),
                d = _mm512_shuffle_i32x4(q[8 + j], q[12 + j], 0xdd);
        v[j] = _mm512_shuffle_i32x4(a, c, 0x88);
        v[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
        v[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
        v[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

VEC_INLINE void vec_transpose(vec v[VEC_LANES])
{
    __m512i w[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        w[i] = _mm512_castps_si512(v[i]);
    transpose_16x16(w);
    for (int i = 0; i < VEC_LANES; i++)
        v[i] = _mm512_castsi512_ps(w[i]);
}

/* ---- packs ---- */

VEC_INLINE pack pack_of_bf16(__m512i words)
{
    return (pack){_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
                  _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)))};
}

/* Of words of two neighbours each. */
VEC_INLINE pack pack_of_pairs(vec words)
{
    return pack_of_bf16(_mm512_castps_si512(words));
}

VEC_INLINE __m512i pack_to_bf16_by_integers(pack x)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(vec_bf16_high(x.a), 16), vec_bf16_high(x.b));
}

#if defined(__AVX512BF16__)
/* One instruction and a permutation, which is half the work; it flushes denormals, so where a zero comes out the
 * integers decide. */
VEC_INLINE __m512i pack_to_bf16(pack x)
{
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i words = _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(x.b, x.a));
    if (__builtin_expect(_mm512_testn_epi16_mask(words, _mm512_set1_epi16(0x7fff)) != 0, 0))
        return pack_to_bf16_by_integers(x);
    return words;
}
#else
VEC_INLINE __m512i pack_to_bf16(pack x)
{
    return pack_to_bf16_by_integers(x);
}
#endif

VEC_INLINE pack pack_load(const char *p, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return pack_of_bf16(_mm512_loadu_si512(p));
    return (pack){vec_load(p, dtype), vec_load(p + VEC_LANES * (dtype == TN_F32 ? 4 : 2), dtype)};
}

VEC_INLINE void pack_store(char *p, tn_dtype dtype, pack x)
{
    if (dtype == TN_BF16) {
        _mm512_storeu_si512(p, pack_to_bf16(x));
        return;
    }
    vec_store(p, dtype, x.a);
    vec_store(p + VEC_LANES * (dtype == TN_F32 ? 4 : 2), dtype, x.b);
}

/* The first n < PACK elements at p; the others are 0. Touches nothing beyond. */
VEC_INLINE pack pack_load_part(const char *p, tn_dtype dtype, int64_t n)
{
    if (dtype == TN_BF16)
        return pack_of_bf16(_mm512_maskz_loadu_epi16((__mmask32)((UINT64_C(1) << n) - 1), p));
    if (n <= VEC_LANES)
        return (pack){vec_load_part(p, dtype, n), vec_set(0.0f)};
    return (pack){vec_load(p, dtype), vec_load_part(p + VEC_LANES * (dtype == TN_F32 ? 4 : 2), dtype, n - VEC_LANES)};
}

VEC_INLINE void pack_store_part(char *p, tn_dtype dtype, pack x, int64_t n)
{
    if (dtype == TN_BF16) {
        _mm512_mask_storeu_epi16(p, (__mmask32)((UINT64_C(1) << n) - 1), pack_to_bf16(x));
    } else if (n <= VEC_LANES) {
        vec_store_part(p, dtype, x.a, n);
    } else {
        vec_store(p, dtype, x.a);
        vec_store_part(p + VEC_LANES * (dtype == TN_F32 ? 4 : 2), dtype, x.b, n - VEC_LANES);
    }
}

/* Element i plus element i + PACK / 2, then half of that, and so on, whatever the order of the pack. */
VEC_INLINE float pack_sum(pack x, tn_dtype dtype)
{
    return dtype == TN_BF16 ? vec_sum(x.a) + vec_sum(x.b) : vec_sum(vec_add(x.a, x.b));
}

/* A pack as pairs of neighbours: a holds the first of each, b the second. */
VEC_INLINE pack pack_split_pairs(pack x, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return x;
    const __m512i pick = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return (pack){_mm512_permutex2var_ps(x.a, pick, x.b),
                  _mm512_permutex2var_ps(x.a, _mm512_add_epi32(pick, _mm512_set1_epi32(1)), x.b)};
}

/* The inverse. */
VEC_INLINE pack pack_join_pairs(pack x, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return x;
    const __m512i pick = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return (pack){_mm512_permutex2var_ps(x.a, pick, x.b),
                  _mm512_permutex2var_ps(x.a, _mm512_add_epi32(pick, _mm512_set1_epi32(8)), x.b)};
}

#endif
