/* Conversions between f32, bf16 and f16. */
#include "base/clones.h"

#include "base/convert.h"

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
