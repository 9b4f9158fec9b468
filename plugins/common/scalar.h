/* Element types for the plain C references: one element at a time, any alignment. */
#ifndef TENON_COMMON_SCALAR_H
#define TENON_COMMON_SCALAR_H

#include <string.h>
#include <tenon/half.h>
#include <tenon/kernel.h>

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
    return dtype == TN_BF16 ? tn_bf16_to_f32(half) : tn_f16_to_f32(half);
}

static inline void scalar_store(void *data, int64_t i, tn_dtype dtype, float value)
{
    if (dtype == TN_F32) {
        memcpy((char *)data + 4 * i, &value, 4);
        return;
    }
    uint16_t half = dtype == TN_BF16 ? tn_f32_to_bf16(value) : tn_f32_to_f16(value);
    memcpy((char *)data + 2 * i, &half, 2);
}

/* value as an element of dtype holds it. */
static inline float scalar_round(float value, tn_dtype dtype)
{
    if (dtype == TN_F32)
        return value;
    return dtype == TN_BF16 ? tn_bf16_to_f32(tn_f32_to_bf16(value)) : tn_f16_to_f32(tn_f32_to_f16(value));
}

#endif
