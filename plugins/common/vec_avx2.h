/* Vectors of floats, the AVX2 form: see vec_avx512.h for what each function promises. */
#ifndef TENON_COMMON_VEC_AVX2_H
#define TENON_COMMON_VEC_AVX2_H

#include <immintrin.h>
#include <string.h>

#define VEC_LANES 8
typedef __m256 vec;

#include "vec_common.h"

VEC_INLINE vec vec_set(float value)
{
    return _mm256_set1_ps(value);
}

VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

VEC_INLINE vec vec_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

VEC_INLINE vec vec_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

VEC_INLINE vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

VEC_INLINE vec vec_abs(vec a)
{
    return _mm256_andnot_ps(vec_set(-0.0f), a);
}

VEC_INLINE vec vec_where_negative(vec a, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, a);
}

VEC_INLINE vec vec_where_greater(vec a, vec b, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

VEC_INLINE float vec_inverse_sqrt(float value)
{
    return _mm_cvtss_f32(_mm_div_ss(_mm_set_ss(1.0f), _mm_sqrt_ss(_mm_set_ss(value))));
}

VEC_INLINE float vec_sum(vec a)
{
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

VEC_INLINE vec vec_exp(vec a)
{
    static const float coefficient[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    __m256 x = _mm256_max_ps(vec_set(-105.0f), _mm256_min_ps(vec_set(89.0f), a));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, vec_set(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, vec_set(0x1.62e4p-1f), x);
    r = _mm256_fnmadd_ps(n, vec_set(0x1.7f7d1cf79abcap-20f), r);
    __m256 p = vec_set(coefficient[0]);
    for (int i = 1; i < 8; i++)
        p = _mm256_fmadd_ps(p, r, vec_set(coefficient[i]));
    /* 2^n in two factors: n reaches -151, where one would be no normal number, and 128, where it would be infinite. */
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_sub_epi32(whole, half);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

VEC_INLINE vec vec_quiet(vec a)
{
    __m256 quiet = _mm256_or_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
    quiet = _mm256_and_ps(quiet, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
    return _mm256_blendv_ps(a, quiet, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

VEC_INLINE __m256i vec_bf16_high(vec a)
{
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

VEC_INLINE vec vec_round(vec a, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return _mm256_castsi256_ps(_mm256_and_si256(vec_bf16_high(a), _mm256_set1_epi32((int)0xffff0000)));
    if (dtype == TN_F16)
        return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return a;
}

VEC_INLINE vec vec_widen(__m128i half, tn_dtype dtype)
{
    if (dtype == TN_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

VEC_INLINE __m128i vec_narrow(vec a, tn_dtype dtype)
{
    if (dtype == TN_F16)
        return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i low = _mm256_srli_epi32(vec_bf16_high(a), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}

VEC_INLINE vec vec_load(const char *p, tn_dtype dtype)
{
    if (dtype == TN_F32)
        return _mm256_loadu_ps((const float *)p);
    return vec_widen(_mm_loadu_si128((const __m128i *)p), dtype);
}

VEC_INLINE void vec_store(char *p, tn_dtype dtype, vec a)
{
    if (dtype == TN_F32)
        _mm256_storeu_ps((float *)p, a);
    else
        _mm_storeu_si128((__m128i *)p, vec_narrow(a, dtype));
}

/* The first n lanes. */
VEC_INLINE __m256i vec_first(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* There are no masks for 16-bit lanes: n < 8 of them come in pieces of four, two and one. */
VEC_OUTLINE __m128i words_load_part(const char *p, int64_t n)
{
    int64_t four = 0, rest = 0;
    const char *at = p + (n & 4) * 2;
    if (n & 2)
        memcpy(&rest, at, 4);
    if (n & 1) {
        uint16_t last;
        memcpy(&last, at + (n & 2) * 2, 2);
        rest |= (int64_t)last << (n & 2) * 16;
    }
    if (!(n & 4))
        return _mm_cvtsi64_si128(rest);
    memcpy(&four, p, 8);
    return _mm_set_epi64x(rest, four);
}

VEC_OUTLINE void words_store_part(char *p, __m128i words, int64_t n)
{
    int64_t rest = _mm_cvtsi128_si64(words);
    if (n & 4) {
        memcpy(p, &rest, 8);
        rest = _mm_extract_epi64(words, 1);
        p += 8;
    }
    if (n & 2) {
        memcpy(p, &rest, 4);
        rest >>= 32;
        p += 4;
    }
    if (n & 1)
        memcpy(p, &rest, 2);
}

VEC_INLINE vec vec_load_part(const char *p, tn_dtype dtype, int64_t n)
{
    if (dtype == TN_F32)
        return _mm256_maskload_ps((const float *)p, vec_first(n));
    return vec_widen(words_load_part(p, n), dtype);
}

VEC_INLINE void vec_store_part(char *p, tn_dtype dtype, vec a, int64_t n)
{
    if (dtype == TN_F32)
        _mm256_maskstore_ps((float *)p, vec_first(n), a);
    else
        words_store_part(p, vec_narrow(a, dtype), n);
}

/* VEC_LANES vectors as rows become columns, in place. */
VEC_INLINE void vec_transpose(vec v[VEC_LANES])
{
    vec a[8];
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

/* ---- packs: see vec_avx512.h ---- */

/* Of 16-bit types. */
VEC_INLINE pack pack_of_words(__m256i words, tn_dtype dtype)
{
    if (dtype != TN_BF16)
        return (pack){vec_widen(_mm256_castsi256_si128(words), dtype),
                      vec_widen(_mm256_extracti128_si256(words, 1), dtype)};
    return (pack){_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
                  _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)))};
}

VEC_INLINE pack pack_of_pairs(vec words)
{
    return pack_of_words(_mm256_castps_si256(words), TN_BF16);
}

VEC_INLINE __m256i pack_to_words(pack x, tn_dtype dtype)
{
    if (dtype != TN_BF16)
        return _mm256_set_m128i(vec_narrow(x.b, dtype), vec_narrow(x.a, dtype));
    return _mm256_blend_epi16(_mm256_srli_epi32(vec_bf16_high(x.a), 16), vec_bf16_high(x.b), 0xaa);
}

VEC_INLINE pack pack_load(const char *p, tn_dtype dtype)
{
    if (dtype != TN_BF16)
        return (pack){vec_load(p, dtype), vec_load(p + VEC_LANES * (dtype == TN_F32 ? 4 : 2), dtype)};
    return pack_of_words(_mm256_loadu_si256((const __m256i *)p), dtype);
}

VEC_INLINE void pack_store(char *p, tn_dtype dtype, pack x)
{
    if (dtype != TN_BF16) {
        vec_store(p, dtype, x.a);
        vec_store(p + VEC_LANES * (dtype == TN_F32 ? 4 : 2), dtype, x.b);
    } else {
        _mm256_storeu_si256((__m256i *)p, pack_to_words(x, dtype));
    }
}

VEC_INLINE pack pack_load_part(const char *p, tn_dtype dtype, int64_t n)
{
    if (dtype == TN_F32)
        return (pack){vec_load_part(p, dtype, n), vec_load_part(p + VEC_LANES * 4, dtype, n - VEC_LANES)};
    bool half = n >= VEC_LANES;
    __m128i part = words_load_part(half ? p + VEC_LANES * 2 : p, n % VEC_LANES);
    return pack_of_words(
        half ? _mm256_set_m128i(part, _mm_loadu_si128((const __m128i *)p)) : _mm256_zextsi128_si256(part), dtype);
}

VEC_INLINE void pack_store_part(char *p, tn_dtype dtype, pack x, int64_t n)
{
    if (dtype == TN_F32) {
        vec_store_part(p, dtype, x.a, n);
        vec_store_part(p + VEC_LANES * 4, dtype, x.b, n - VEC_LANES);
        return;
    }
    __m256i words = pack_to_words(x, dtype);
    __m128i part = _mm256_castsi256_si128(words);
    if (n >= VEC_LANES) {
        _mm_storeu_si128((__m128i *)p, part);
        part = _mm256_extracti128_si256(words, 1);
        p += VEC_LANES * 2;
    }
    words_store_part(p, part, n % VEC_LANES);
}

VEC_INLINE float pack_sum(pack x, tn_dtype dtype)
{
    return dtype == TN_BF16 ? vec_sum(x.a) + vec_sum(x.b) : vec_sum(vec_add(x.a, x.b));
}

VEC_INLINE pack pack_split_pairs(pack x, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return x;
    /* Each half comes out as quarters 0, 2, 1, 3. */
    __m256 a = _mm256_shuffle_ps(x.a, x.b, _MM_SHUFFLE(2, 0, 2, 0));
    __m256 b = _mm256_shuffle_ps(x.a, x.b, _MM_SHUFFLE(3, 1, 3, 1));
    return (pack){_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), _MM_SHUFFLE(3, 1, 2, 0))),
                  _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(b), _MM_SHUFFLE(3, 1, 2, 0)))};
}

VEC_INLINE pack pack_join_pairs(pack x, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return x;
    __m256 low = _mm256_unpacklo_ps(x.a, x.b), high = _mm256_unpackhi_ps(x.a, x.b);
    return (pack){_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}

#endif
