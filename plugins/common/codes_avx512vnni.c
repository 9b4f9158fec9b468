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
    return _mm512_srli_epi16(a, (unsigned)bits);
}

VEC_INLINE bytes bytes_left(bytes a, int bits)
{
    return _mm512_slli_epi16(a, (unsigned)bits);
}

VEC_INLINE bytes bytes_right_by(bytes a, int bits, int step)
{
    return _mm512_srlv_epi64(a, bytes_of(_mm256_set1_epi64x(bits), _mm256_set1_epi64x(bits + step)));
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

VEC_INLINE vec bytes_dot(bytes code, bytes x, bool below, bool halves, const float *s, int i, vec sum)
{
    const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m512i a = below ? _mm512_abs_epi8(code) : code;
    __m512i b = below ? _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(code), _mm512_setzero_si512(), x) : x;
    (void)halves;
    vec factor = _mm512_permutexvar_ps(_mm512_add_epi32(each, _mm512_set1_epi32(i)), _mm512_loadu_ps(s));
    return vec_fma(_mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), a, b)), factor, sum);
}

/* As in codes_avx2.h. */
VEC_INLINE bytes bytes_zero(void)
{
    return _mm512_setzero_si512();
}

VEC_INLINE bytes bytes_flip(bytes a)
{
    return _mm512_xor_si512(a, _mm512_set1_epi8(-128));
}

VEC_INLINE bytes bytes_four(const void *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}

VEC_INLINE bytes quads_add(bytes sums, bytes codes, bytes x)
{
    return _mm512_dpbusd_epi32(sums, codes, x);
}

VEC_INLINE vec vec_of_quads(bytes a)
{
    return _mm512_cvtepi32_ps(a);
}

#include "codes_many.h"

void codes_init_avx512vnni(codes_kernels *kernels)
{
    init_ints(kernels);
    init_many(kernels, MANY_DTYPES);
}
