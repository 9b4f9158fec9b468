/* What codes_vec.h is written over on x86, whatever the width of vectors. */
#ifndef TENON_COMMON_CODES_X86_H
#define TENON_COMMON_CODES_X86_H

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

VEC_INLINE float half_value(const char *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    half = (half & 0x7fff) > 0x7c00 ? 0x7e00 : half; /* a NaN that rounding to bf16 leaves one */
    return _cvtsh_ss(half);
}

/* What follows compilers would take one by one. */
#define CODES_FACTORS
typedef __m128i sixteen;

VEC_INLINE sixteen sixteen_of(uint64_t low, uint64_t high)
{
    return _mm_set_epi64x((int64_t)high, (int64_t)low);
}

VEC_INLINE sixteen sixteen_load(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

/* out[i] = factor * byte[order[i]]; below: bytes may be negative. */
VEC_INLINE void factors_of(sixteen byte, bool below, const int8_t *order, float factor, float out[16])
{
    __m128i at = _mm_shuffle_epi8(byte, sixteen_load(order));
#ifdef __AVX512F__
    __m512i wide = below ? _mm512_cvtepi8_epi32(at) : _mm512_cvtepu8_epi32(at);
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_cvtepi32_ps(wide), _mm512_set1_ps(factor)));
#else
    for (int i = 0; i < 16; i += 8, at = _mm_srli_si128(at, 8)) {
        __m256i wide = below ? _mm256_cvtepi8_epi32(at) : _mm256_cvtepu8_epi32(at);
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(factor)));
    }
#endif
}

/* out[i] = factor * 2^(exponent[order[i]] - 127), the least subnormal; 255 is no number. */
VEC_INLINE void powers_of(sixteen exponent, const int8_t *order, float factor, float out[16])
{
    exponent = _mm_shuffle_epi8(exponent, sixteen_load(order));
    __m128i none = _mm_setzero_si128(), most = _mm_set1_epi8(-1);
    __m128i ends = _mm_or_si128(_mm_cmpeq_epi8(exponent, none), _mm_cmpeq_epi8(exponent, most));
    __m128i first = _mm_and_si128(ends, _mm_set1_epi8(0x40)); /* of the 23 bits behind the exponent */
#ifdef __AVX512F__
    __m512i e = _mm512_slli_epi32(_mm512_cvtepu8_epi32(exponent), 23);
    e = _mm512_or_si512(e, _mm512_slli_epi32(_mm512_cvtepu8_epi32(first), 16));
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_castsi512_ps(e), _mm512_set1_ps(factor)));
#else
    for (int i = 0; i < 16; i += 8, exponent = _mm_srli_si128(exponent, 8), first = _mm_srli_si128(first, 8)) {
        __m256i e = _mm256_slli_epi32(_mm256_cvtepu8_epi32(exponent), 23);
        e = _mm256_or_si256(e, _mm256_slli_epi32(_mm256_cvtepu8_epi32(first), 16));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_castsi256_ps(e), _mm256_set1_ps(factor)));
    }
#endif
}

/* out[i] = each[i >> shift], shift <= 4. */
VEC_INLINE void parts_spread(const float *each, int shift, float out[16])
{
#ifdef __AVX512F__
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i at = _mm512_srl_epi32(lane, _mm_cvtsi32_si128(shift));
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(at, _mm512_loadu_ps(each)));
#else
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i first = _mm256_srl_epi32(lane, _mm_cvtsi32_si128(shift));
    __m256i second = _mm256_srl_epi32(_mm256_add_epi32(lane, _mm256_set1_epi32(8)), _mm_cvtsi32_si128(shift));
    __m256 low = _mm256_loadu_ps(each), high = shift == 0 ? _mm256_loadu_ps(each + 8) : low;
    _mm256_storeu_ps(out, _mm256_permutevar8x32_ps(low, first));
    _mm256_storeu_ps(out + 8, _mm256_permutevar8x32_ps(high, second));
#endif
}

/* The halves of eight blocks. Stored one by one they would be waited for where they are loaded together. */
VEC_INLINE sixteen block_halves(const uint8_t *p, int apart)
{
#ifdef __AVX512BW__
    typedef int16_t words __attribute__((vector_size(64)));
    const words each = {0, 1, 2, 3, 4, 5, 6, 7};
    const int last = apart < 32 ? 8 * apart - 128 : 4 * apart; /* from where the second four are looked for */
    const words at = each * (int16_t)(apart / 2), behind = at - (int16_t)(last / 2);
    __m512i all = _mm512_permutex2var_epi16(_mm512_loadu_si512(p), (__m512i)at, _mm512_loadu_si512(p + 64));
    if (8 * apart > 144)
        all = _mm512_mask_mov_epi16(all, 0xf0,
                                    _mm512_permutex2var_epi16(_mm512_loadu_si512(p + last), (__m512i)behind,
                                                              _mm512_loadu_si512(p + last + 64)));
    return _mm512_castsi512_si128(all);
#else
    int16_t half[8];
    for (int g = 0; g < 8; g++)
        memcpy(&half[g], p + g * apart, sizeof *half);
    return _mm_setr_epi16(half[0], half[1], half[2], half[3], half[4], half[5], half[6], half[7]);
#endif
}

/* Sixteen numbers of six bits in twelve bytes a, b, c of four each: those of a, the low halves of c with the upper bits
 * of a, those of b, the high halves of c with the upper bits of b. The four bytes before them are read, too. */
VEC_INLINE sixteen six_bits(const uint8_t *p)
{
    __m128i all = sixteen_load(p - 4);
    __m128i low = _mm_srlv_epi32(_mm_shuffle_epi32(all, _MM_SHUFFLE(3, 2, 3, 1)), _mm_setr_epi32(0, 0, 0, 4));
    __m128i high = _mm_srli_epi32(_mm_shuffle_epi32(all, _MM_SHUFFLE(2, 2, 1, 1)), 2);
    low = _mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    high = _mm_and_si128(high, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
    return _mm_or_si128(low, high);
}

#endif
