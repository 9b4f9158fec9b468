/* Ceilings with AVX-512-BF16. */
#include "device/ceiling.h"

#include <immintrin.h>

/* Twenty-four chains: more than two units with a latency of eight need. Two arrays, because gcc unrolls no loop of more
 * than sixteen turns. Operands are ordinary numbers. */
double ceiling_dot_avx512bf16(int64_t rounds)
{
    enum { CHAINS = 12 };
    const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f81), b = (__m512bh)_mm512_set1_epi32(0x3f01bf01);
    __m512 sum[CHAINS], more[CHAINS];
    for (int c = 0; c < CHAINS; c++) {
        sum[c] = _mm512_set1_ps((float)(c + 2));
        more[c] = _mm512_set1_ps((float)-c);
    }
    for (int64_t i = 0; i < rounds; i++) {
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm512_dpbf16_ps(sum[c], a, b);
        for (int c = 0; c < CHAINS; c++)
            more[c] = _mm512_dpbf16_ps(more[c], a, b);
    }
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"v"(sum[c]), "v"(more[c]));
    return 2 * 4.0 * 16 * CHAINS * (double)rounds;
}
