/* Element types for the plain C references: one element at a time, any alignment. */
#ifndef TENON_COMMON_SCALAR_H
#define TENON_COMMON_SCALAR_H

#include <string.h>
#include <tenon/kernel.h>

static inline float scalar_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t scalar_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float scalar_from_bf16(uint16_t half)
{
    return scalar_from_bits((uint32_t)half << 16);
}

/* Round to nearest even; NaN keeps its sign and the upper part of its payload. */
static inline uint16_t scalar_to_bf16(float value)
{
    uint32_t bits = scalar_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float scalar_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) /* infinity and NaN; NaN becomes quiet, as the instruction does */
        return scalar_from_bits(sign | 0x7f800000 | magnitude << 13 | (magnitude > 0x7c00 ? 0x400000 : 0));
    if (magnitude < 0x400) /* a multiple of 2^-24 */
        return scalar_from_bits(sign | scalar_bits((float)magnitude * 0x1p-24f));
    return scalar_from_bits(sign | ((magnitude << 13) + (112u << 23)));
}

static inline uint16_t scalar_to_f16(float value)
{
    uint32_t bits = scalar_bits(value), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000)
        return sign | 0x7e00 | (uint16_t)(magnitude >> 13 & 0x3ff);
    if (magnitude >= 0x477ff000) /* 65520 and more round to infinity */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) {
        /* Below 2^-14 the grid is 2^-24: adding 0.5 moves it to the last bit of a float, which rounds. */
        float shifted = scalar_from_bits(magnitude) + 0.5f;
        return sign | (uint16_t)(scalar_bits(shifted) - 0x3f000000);
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return sign | (uint16_t)((magnitude - (112u << 23)) >> 13);
}

/* Element i of an array of dtype f32, bf16 or f16. */
static inline float scalar_load(const void *data, int64_t i, tn_dtype dtype)
{
    float value;
    uint16_t half;
    if (dtype == TN_F32) {
        memcpy(&value, (const char *)data + 4 * i, 4);
        return value;
    }
    memcpy(&half, (const char *)data + 2 * i, 2);
    return dtype == TN_BF16 ? scalar_from_bf16(half) : scalar_from_f16(half);
}

static inline void scalar_store(void *data, int64_t i, tn_dtype dtype, float value)
{
    if (dtype == TN_F32) {
        memcpy((char *)data + 4 * i, &value, 4);
        return;
    }
    uint16_t half = dtype == TN_BF16 ? scalar_to_bf16(value) : scalar_to_f16(value);
    memcpy((char *)data + 2 * i, &half, 2);
}

/* value as an element of dtype holds it. */
static inline float scalar_round(float value, tn_dtype dtype)
{
    if (dtype == TN_F32)
        return value;
    return dtype == TN_BF16 ? scalar_from_bf16(scalar_to_bf16(value)) : scalar_from_f16(scalar_to_f16(value));
}

#endif
