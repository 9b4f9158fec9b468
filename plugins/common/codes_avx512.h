/* What codes_vec.h is written over, AVX-512: nibbles are looked up where they become floats. */
#ifndef TENON_COMMON_CODES_AVX512_H
#define TENON_COMMON_CODES_AVX512_H

#include "vec_avx512.h"

#include "codes_x86.h"

/* VEC_LANES signed bytes as floats. */
VEC_INLINE vec vec_of_bytes(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* The levels of the low or the high halves of sixteen bytes. */
VEC_INLINE vec vec_look_up(vec levels, const uint8_t *q, bool high)
{
    __m512i at = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)q));
    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(at, 4) : at, levels);
}

/* v[0] has the elements of even number, v[1] the others: brings them into their order. */
VEC_INLINE void vec_interleave(vec v[2])
{
    const __m512i pick = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    vec low = _mm512_permutex2var_ps(v[0], pick, v[1]);
    v[1] = _mm512_permutex2var_ps(v[0], _mm512_add_epi32(pick, _mm512_set1_epi32(8)), v[1]);
    v[0] = low;
}

#endif
