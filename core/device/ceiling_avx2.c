/* Ceilings with AVX2 and FMA. */
#define CEILING_BYTES 32
#include "device/ceiling_loops.h"

#include <immintrin.h>

const ceiling_loops ceiling_loops_avx2 = {loop_read, loop_copy, loop_triad, loop_update};

/* Twelve chains: more than two units with a latency of five need. */
double ceiling_fma_avx2(int64_t rounds)
{
    enum { CHAINS = 12 };
    const __m256 half = _mm256_set1_ps(0.5f);
    __m256 sum[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm256_set1_ps((float)(c + 2));
    for (int64_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm256_fmadd_ps(sum[c], half, half);
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"x"(sum[c]));
    return 2.0 * 8 * CHAINS * (double)rounds;
}
