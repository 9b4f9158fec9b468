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
    return _cvtsh_ss(half);
}

/* out[i] = factor * byte[order[i]], for sixteen; below: bytes may be negative. Compilers take them one by one. */
#define CODES_FACTORS
VEC_INLINE void factors_of(const void *byte, bool below, const int8_t *order, float factor, float out[16])
{
    __m128i at = _mm_shuffle_epi8(_mm_loadu_si128(byte), _mm_loadu_si128((const __m128i *)(const void *)order));
    for (int i = 0; i < 16; i += 8, at = _mm_srli_si128(at, 8)) {
        __m256i wide = below ? _mm256_cvtepi8_epi32(at) : _mm256_cvtepu8_epi32(at);
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(factor)));
    }
}

#endif
