/* What codes_vec.h and codes_ints.h are written over, for vectors of 256 bits. */
#ifndef TENON_COMMON_CODES_AVX2_H
#define TENON_COMMON_CODES_AVX2_H

#include "vec_avx2.h"

#include "codes_x86.h"

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

/* Thirty-two bytes: codes, or rounded activations. */
typedef __m256i bytes;

VEC_INLINE bytes bytes_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

VEC_INLINE bytes bytes_and(bytes a, int mask)
{
    return _mm256_and_si256(a, _mm256_set1_epi8((char)mask));
}

VEC_INLINE bytes bytes_or(bytes a, bytes b)
{
    return _mm256_or_si256(a, b);
}

/* Each byte shifted; what comes in from its neighbour is anything. */
VEC_INLINE bytes bytes_right(bytes a, int bits)
{
    return _mm256_srli_epi16(a, bits);
}

VEC_INLINE bytes bytes_left(bytes a, int bits)
{
    return _mm256_slli_epi16(a, bits);
}

/* A group's sixteen bytes, and they again four bits further right. */
VEC_INLINE bytes bytes_split(const void *p, int apart)
{
    __m128i q = _mm_loadu_si128((const __m128i *)p);
    (void)apart;
    return _mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1);
}

/* value where the bit of a group's 32 is set. */
VEC_INLINE bytes bytes_bits(const void *p, int apart, int value)
{
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    int32_t word;
    (void)apart;
    memcpy(&word, p, sizeof word);
    bytes each = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), spread), bit);
    return bytes_and(_mm256_cmpeq_epi8(each, bit), value);
}

/* The halves of sixteen bytes in turns, low ones first; the upper four bits are anything. */
VEC_INLINE bytes bytes_pairs(const void *p)
{
    __m128i q = _mm_loadu_si128((const __m128i *)p), high = _mm_srli_epi16(q, 4);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi8(q, high)), _mm_unpackhi_epi8(q, high), 1);
}

/* levels[a], a from 0 to 15. */
VEC_INLINE bytes bytes_look_up(const int8_t *levels, bytes a)
{
    __m128i table = _mm_loadu_si128((const __m128i *)(const void *)levels);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), a);
}

VEC_INLINE bytes bytes_zero(void)
{
    return _mm256_setzero_si256();
}

/* The same four bytes again and again. */
VEC_INLINE bytes bytes_four(const void *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
}

/* Sums of products of four columns each; of 16 columns, lanes are rows. */
typedef __m256i quads;
typedef int32_t ints_vec __attribute__((vector_size(32)));

/* Sums of four products of unsigned and signed bytes each. */
VEC_INLINE quads quads_of(bytes a, bytes b);

/* Codes are 0 to 127, with `below` -128 to 127; x is -127 to 127. */
VEC_INLINE quads quads_dot(bytes code, bytes x, bool below)
{
    return quads_of(below ? _mm256_abs_epi8(code) : code, below ? _mm256_sign_epi8(x, code) : x);
}

/* Four rows: each half of the result has sums of that half of theirs. */
VEC_INLINE quads quads_sum_four(const quads q[4])
{
    quads a = _mm256_add_epi32(_mm256_unpacklo_epi32(q[0], q[1]), _mm256_unpackhi_epi32(q[0], q[1]));
    quads b = _mm256_add_epi32(_mm256_unpacklo_epi32(q[2], q[3]), _mm256_unpackhi_epi32(q[2], q[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* Products of VEC_LANES rows become sums of each 16 columns, whose lanes are the rows. */
VEC_INLINE void quads_turn(const quads q[VEC_LANES], ints_vec out[2])
{
    quads a = quads_sum_four(q), b = quads_sum_four(q + 4);
    out[0] = (ints_vec)_mm256_permute2x128_si256(a, b, 0x20);
    out[1] = (ints_vec)_mm256_permute2x128_si256(a, b, 0x31);
}

VEC_INLINE vec vec_of_ints(ints_vec a)
{
    return _mm256_cvtepi32_ps((__m256i)a);
}

/* The words of sixteen bytes of each row; lanes are rows. */
typedef uint32_t words_vec __attribute__((vector_size(32)));

VEC_INLINE void words_turn(const sixteen row[VEC_LANES], words_vec out[4])
{
    __m256i v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_set_m128i(row[4 + i], row[i]);
    __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = (words_vec)_mm256_unpacklo_epi64(a, c);
    out[1] = (words_vec)_mm256_unpackhi_epi64(a, c);
    out[2] = (words_vec)_mm256_unpacklo_epi64(b, d);
    out[3] = (words_vec)_mm256_unpackhi_epi64(b, d);
}

/* Words below 2^16 that are halves. */
VEC_INLINE vec vec_of_halves(words_vec a)
{
    __m256i both = _mm256_packus_epi32((__m256i)a, (__m256i)a);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(both, 0x08)));
}

#endif
