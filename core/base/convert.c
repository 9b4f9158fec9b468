/* Conversions between f32, bf16 and f16. */
#include "base/clones.h"

#include "base/convert.h"

#include <math.h>
#include <string.h>

CLONES static void bf16_to_f32(const char *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = tn_bf16_to_f32(h);
    }
}

CLONES static void f16_to_f32(const char *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = tn_f16_to_f32(h);
    }
}

CLONES static void f32_to_bf16(const float *src, char *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = tn_f32_to_bf16(src[i]);
        memcpy(dst + 2 * i, &h, sizeof h);
    }
}

CLONES static void f32_to_f16(const float *src, char *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = tn_f32_to_f16(src[i]);
        memcpy(dst + 2 * i, &h, sizeof h);
    }
}

void convert_to_f32(const void *src, tn_dtype dtype, float *dst, int64_t n)
{
    if (dtype == TN_BF16)
        bf16_to_f32(src, dst, n);
    else if (dtype == TN_F16)
        f16_to_f32(src, dst, n);
    else if (n > 0)
        memmove(dst, src, (size_t)n * sizeof *dst);
}

void convert_from_f32(const float *src, tn_dtype dtype, void *dst, int64_t n)
{
    if (dtype == TN_BF16)
        f32_to_bf16(src, dst, n);
    else if (dtype == TN_F16)
        f32_to_f16(src, dst, n);
    else if (n > 0)
        memmove(dst, src, (size_t)n * sizeof *src);
}

/* Sums over a flag without a way out, so that compilers make vectors of it. */
CLONES static int32_t count_words(const char *src, int64_t n)
{
    int32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, src + 4 * i, sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found;
}

CLONES static int32_t count_halves(const char *src, uint16_t exponent, int64_t n)
{
    int32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, src + 2 * i, sizeof bits);
        found |= (bits & exponent) == exponent;
    }
    return found;
}

bool convert_has_unfinite(const void *src, tn_dtype dtype, int64_t n)
{
    return dtype == TN_F32 ? count_words(src, n) : count_halves(src, dtype == TN_BF16 ? 0x7f80 : 0x7c00, n);
}

CLONES static int32_t count_broken(const float *logits, int64_t n)
{
    int32_t found = 0;
    for (int64_t i = 0; i < n; i++)
        found |= !(logits[i] < HUGE_VALF);
    return found;
}

bool convert_has_broken_logit(const float *logits, int64_t n)
{
    return count_broken(logits, n);
}
