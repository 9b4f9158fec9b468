/* Ceilings with NEON. */
#include "device/ceiling.h"

#include <arm_neon.h>

/* Sixteen chains: as many as four units with a latency of four need. */
double ceiling_fma_neon(int64_t rounds)
{
    enum { CHAINS = 16 };
    const float32x4_t half = vdupq_n_f32(0.5f);
    float32x4_t sum[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        sum[c] = vdupq_n_f32((float)(c + 2));
    for (int64_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = vfmaq_f32(sum[c], sum[c], half);
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"w"(sum[c]));
    return 2.0 * 4 * CHAINS * (double)rounds;
}
