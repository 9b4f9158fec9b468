/* Ceilings with AVX-512-FP16. */
#include "device/ceiling.h"

#include <immintrin.h>

/* Sums of f16 in f16: for comparison only, since kernels add in f32. */
double ceiling_fma_avx512fp16(int64_t rounds)
{
    enum { CHAINS = 16 };
    const __m512h half = _mm512_castsi512_ph(_mm512_set1_epi16(0x3800));
    __m512h sum[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm512_castsi512_ph(_mm512_set1_epi16((short)(0x4000 + c)));
    for (int64_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm512_fmadd_ph(sum[c], half, half);
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"v"(sum[c]));
    return 2.0 * 32 * CHAINS * (double)rounds;
}
