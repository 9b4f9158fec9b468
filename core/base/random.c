/* Random numbers, the same on every machine. */
#include "base/random.h"

uint64_t random_bits(random_state *r)
{
    uint64_t z = r->state += RANDOM_STEP;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

double random_uniform(random_state *r)
{
    return (double)(random_bits(r) >> 11) * 0x1p-53;
}

/* The sum of four uniform numbers, which costs a tenth of the exact thing; the divisor is its deviation. */
float random_nearly_normal(random_state *r)
{
    uint64_t bits = random_bits(r);
    int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) + (int32_t)(bits >> 32 & 0xffff) +
                  (int32_t)(bits >> 48);
    return (float)(sum - 2 * 0xffff) * (1.0f / 37837.2f);
}
