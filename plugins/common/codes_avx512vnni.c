/* Products of quantised weights with rounded activations, AVX-512-VNNI: 64 columns at a time. */
#include "codes_avx512.h"

/* As in codes_avx2.h and codes_ints.h. */
#define BYTES_GROUPS 2
typedef __m512i bytes;

VEC_INLINE bytes bytes_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

VEC_INLINE bytes bytes_of(__m256i first, __m256i second)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

VEC_INLINE bytes bytes_same(const void *p)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
}

VEC_INLINE bytes bytes_apart(const uint8_t *p, int apart)
{
    return bytes_of(_mm256_loadu_si256((const __m256i *)(const void *)p),
                    _mm256_loadu_si256((const __m256i *)(const void *)(p + apart)));
}

VEC_INLINE bytes bytes_and(bytes a, int mask)
{
    return _mm512_and_si512(a, _mm512_set1_epi8((char)mask));
}

VEC_INLINE bytes bytes_or(bytes a, bytes b)
{
    return _mm512_or_si512(a, b);
}

VEC_INLINE bytes bytes_right(bytes a, int bits)
{
    return _mm512_srlv_epi16(a, _mm512_set1_epi16((int16_t)bits)); /* a count that is no constant is two instructions */
}

VEC_INLINE bytes bytes_left(bytes a, int bits)
{
    return _mm512_slli_epi16(a, (unsigned)bits);
}

VEC_INLINE bytes bytes_right_by(bytes a, int bits, int step)
{
    return _mm512_srlv_epi64(a, bytes_of(_mm256_set1_epi64x(bits), _mm256_set1_epi64x(bits + step)));
}

VEC_INLINE bytes bytes_two(bytes a, int i)
{
    const __m512i by = bytes_of(_mm256_set1_epi64x(2 * i - 4), _mm256_set1_epi64x(2 * i - 2));
    return bytes_and(_mm512_rorv_epi64(a, by), 0x30);
}

VEC_INLINE __m256i both_halves(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
}

VEC_INLINE bytes bytes_split(const uint8_t *p, int apart)
{
    return _mm512_srlv_epi64(bytes_of(both_halves(p), both_halves(p + apart)),
                             _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
}

VEC_INLINE bytes bytes_pairs(const uint8_t *p)
{
    __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return bytes_or(wide, _mm512_slli_epi16(wide, 4));
}

VEC_INLINE bytes bytes_bits(const uint8_t *p, int apart, int value)
{
    uint32_t word[2];
    memcpy(&word[0], p, sizeof *word);
    memcpy(&word[1], p + apart, sizeof *word);
    return _mm512_maskz_set1_epi8(word[0] | (uint64_t)word[1] << 32, (char)value);
}

VEC_INLINE bytes bytes_look_up(const int8_t *levels, bytes a)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)levels)), a);
}

/* As in codes_avx2.h. */
VEC_INLINE bytes bytes_zero(void)
{
    return _mm512_setzero_si512();
}

#define INTS_RAISED 1

VEC_INLINE bytes bytes_raise(bytes a)
{
    return _mm512_xor_si512(a, _mm512_set1_epi8(-128));
}

VEC_INLINE bytes bytes_nibbles(bytes a, int g)
{
    (void)g; /* even */
    return _mm512_and_si512(a, bytes_of(_mm256_set1_epi8(15), _mm256_set1_epi8(-16)));
}

VEC_INLINE bytes bytes_four(const void *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}

typedef __m512i quads;
typedef int32_t ints_vec __attribute__((vector_size(64)));

VEC_INLINE quads quads_add(quads sums, bytes codes, bytes x)
{
    return _mm512_dpbusd_epi32(sums, codes, x);
}

VEC_INLINE quads quads_dot(bytes code, bytes x, bool below)
{
    __m512i a = below ? _mm512_abs_epi8(code) : code;
    __m512i b = below ? _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(code), _mm512_setzero_si512(), x) : x;
    return quads_add(_mm512_setzero_si512(), a, b);
}

/* Four rows: each quarter of the result has sums of that quarter of theirs. */
VEC_INLINE quads quads_sum_four(const quads q[4])
{
    quads a = _mm512_add_epi32(_mm512_unpacklo_epi32(q[0], q[1]), _mm512_unpackhi_epi32(q[0], q[1]));
    quads b = _mm512_add_epi32(_mm512_unpacklo_epi32(q[2], q[3]), _mm512_unpackhi_epi32(q[2], q[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

VEC_INLINE void quads_turn(const quads q[VEC_LANES], ints_vec out[4])
{
    quads r[4];
    for (int i = 0; i < 4; i++)
        r[i] = quads_sum_four(q + 4 * i);
    quads a = _mm512_shuffle_i32x4(r[0], r[1], 0x88), b = _mm512_shuffle_i32x4(r[0], r[1], 0xdd);
    quads c = _mm512_shuffle_i32x4(r[2], r[3], 0x88), d = _mm512_shuffle_i32x4(r[2], r[3], 0xdd);
    out[0] = (ints_vec)_mm512_shuffle_i32x4(a, c, 0x88);
    out[1] = (ints_vec)_mm512_shuffle_i32x4(b, d, 0x88);
    out[2] = (ints_vec)_mm512_shuffle_i32x4(a, c, 0xdd);
    out[3] = (ints_vec)_mm512_shuffle_i32x4(b, d, 0xdd);
}

VEC_INLINE vec vec_of_ints(ints_vec a)
{
    return _mm512_cvtepi32_ps((__m512i)a);
}

typedef uint32_t words_vec __attribute__((vector_size(64)));

VEC_INLINE void words_turn(const sixteen row[VEC_LANES], words_vec out[4])
{
    __m512i v[4], t[4];
    for (int i = 0; i < 4; i++) {
        v[i] = _mm512_inserti32x4(_mm512_castsi128_si512(row[i]), row[4 + i], 1);
        v[i] = _mm512_inserti32x4(_mm512_inserti32x4(v[i], row[8 + i], 2), row[12 + i], 3);
    }
    transpose_4x16(v, t);
    for (int i = 0; i < 4; i++)
        out[i] = (words_vec)t[i];
}

VEC_INLINE vec vec_of_halves(words_vec a)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)a));
}

#include "codes_many.h"

void codes_init_avx512vnni(codes_kernels *kernels)
{
    init_ints(kernels);
    init_many(kernels);
}
