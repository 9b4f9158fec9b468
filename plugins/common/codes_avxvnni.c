/* Products of quantised weights with rounded activations, AVX-VNNI: as AVX2, four products and their sum at once. */
#include "codes_avx2.h"

VEC_INLINE quads quads_of(bytes a, bytes b)
{
    return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), a, b);
}

VEC_INLINE quads quads_add(quads sums, bytes codes, bytes x)
{
    return _mm256_dpbusd_avx_epi32(sums, codes, x);
}

#define INTS_RAISED 1

VEC_INLINE bytes bytes_raise(bytes a)
{
    return _mm256_xor_si256(a, _mm256_set1_epi8(-128));
}

VEC_INLINE bytes bytes_nibbles(bytes a, int g)
{
    return bytes_and(a, g % 2 ? 0xf0 : 0x0f);
}

#include "codes_many.h"

void codes_init_avxvnni(codes_kernels *kernels)
{
    init_ints(kernels);
    init_many(kernels);
}
