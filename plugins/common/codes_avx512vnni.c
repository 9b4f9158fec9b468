/* Products of quantised weights with rounded activations, AVX-512-VNNI in vectors of 256 bits. */
#include "codes_avx2.h"

VEC_INLINE __m256i quads_of(__m256i a, __m256i b)
{
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), a, b);
}

#include "codes_ints.h"

void codes_init_avx512vnni(codes_kernels *kernels)
{
    init_ints(kernels);
}
