/* Products of quantised weights with rounded activations, AVX-VNNI: as AVX2, four products and their sum at once. */
#include "codes_avx2.h"

VEC_INLINE __m256i quads_of(__m256i a, __m256i b)
{
    return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), a, b);
}

VEC_INLINE bytes quads_add(bytes sums, bytes codes, bytes x)
{
    return _mm256_dpbusd_avx_epi32(sums, codes, x);
}

#include "codes_many.h"

void codes_init_avxvnni(codes_kernels *kernels)
{
    init_ints(kernels);
    init_many(kernels, MANY_DTYPES);
}
