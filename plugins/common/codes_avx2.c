/* Decoding quantised weights, AVX2. */
#include "vec_avx2.h"

#define CODES_UNROLLED _Pragma("GCC unroll 2")

VEC_INLINE float half_value(const char *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return _cvtsh_ss(half);
}

VEC_INLINE vec vec_of_bytes(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

VEC_INLINE __m128i levels_at(const int8_t *levels, __m128i q, bool high)
{
    __m128i at = _mm_and_si128(high ? _mm_srli_epi16(q, 4) : q, _mm_set1_epi8(15));
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)levels), at);
}

/* The levels of the low or the high halves of sixteen bytes. */
VEC_INLINE void bytes_of_nibbles(const int8_t *levels, const uint8_t *q, bool high, int8_t *code)
{
    __m128i all = _mm_loadu_si128((const __m128i *)(const void *)q);
    _mm_storeu_si128((__m128i *)(void *)code, levels_at(levels, all, high));
}

/* Those of both, the low ones first. */
VEC_INLINE void bytes_of_pairs(const int8_t *levels, const uint8_t *q, int8_t *code)
{
    __m128i all = _mm_loadu_si128((const __m128i *)(const void *)q);
    __m128i low = levels_at(levels, all, false), high = levels_at(levels, all, true);
    _mm_storeu_si128((__m128i *)(void *)code, _mm_unpacklo_epi8(low, high));
    _mm_storeu_si128((__m128i *)(void *)(code + 16), _mm_unpackhi_epi8(low, high));
}

#include "codes_vec.h"

void codes_init_avx2(codes_kernels *kernels)
{
    kernels->unpack = unpack;
    kernels->dots = dots;
}
