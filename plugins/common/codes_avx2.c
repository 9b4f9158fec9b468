/* Decoding quantised weights, AVX2. */
#include "codes_avx2.h"

/* Sums of four products of unsigned and signed bytes each: 2 * 128 * 127 fits into 16 bits. */
VEC_INLINE quads quads_of(bytes a, bytes b)
{
    __m256i low = _mm256_maddubs_epi16(a, b);
    return _mm256_madd_epi16(low, _mm256_set1_epi16(1));
}

#include "codes_many.h"

void codes_init_avx2(codes_kernels *kernels)
{
    kernels->unpack = unpack;
    init_ints(kernels);
    init_many(kernels);
}
