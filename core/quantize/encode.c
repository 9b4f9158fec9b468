/* Values as blocks: which types, and rows of them. */
#include "quantize/encode.h"

#include "base/convert.h"

#include <math.h>
#include <tenon/half.h>

enum { MOST_VALUES = 256 }; /* of a block */

static encode_block *const encoders[TN_DTYPE_COUNT] = {
    [TN_Q4_0] = encode_q4_0, [TN_Q5_0] = encode_q5_0,     [TN_Q5_1] = encode_q5_1,
    [TN_Q8_0] = encode_q8_0, [TN_Q4_K] = encode_q4_k,     [TN_Q5_K] = encode_q5_k,
    [TN_Q6_K] = encode_q6_k, [TN_IQ4_NL] = encode_iq4_nl, [TN_MXFP4] = encode_mxfp4,
};

bool encode_has(tn_dtype dtype)
{
    return dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F16 || encoders[dtype];
}

bool encode_weighs(tn_dtype dtype)
{
    return encoders[dtype] && dtype != TN_Q8_0;
}

/* What counts is importance times the root of what is usual in the block and the value's own square: large values,
 * whose errors are mostly larger, a little more. */
static void weigh(const float *x, const float *importance, int64_t count, float *w)
{
    float squares = 0;
    for (int64_t i = 0; i < count; i++)
        squares += x[i] * x[i];
    for (int64_t i = 0; i < count; i++)
        w[i] = importance[i] * sqrtf(2 * squares / (float)count + x[i] * x[i]);
}

void encode_row(tn_dtype dtype, const float *x, const float *importance, int64_t count, void *out)
{
    float w[MOST_VALUES];
    int64_t each = tn_dtype_block_elements(dtype);
    size_t bytes = tn_dtype_block_bytes(dtype);
    if (!encoders[dtype]) {
        convert_from_f32(x, dtype, out, count);
        return;
    }
    for (uint8_t *b = out; count > 0; count -= each, x += each, b += bytes) {
        if (importance) {
            weigh(x, importance, each, w);
            importance += each;
        }
        encoders[dtype](x, importance ? w : NULL, b);
    }
}

uint8_t encode_e4m3(float x)
{
    uint8_t sign = signbit(x) ? 0x80 : 0;
    float magnitude = fminf(fabsf(x), 448);
    if (magnitude < 0x1p-6f) /* in units of the numbers below the normal ones, of which 8 is the least normal one */
        return (uint8_t)(sign | (int)rintf(magnitude * 0x1p9f));
    uint32_t bits = tn_f32_bits(magnitude) - (120u << 23);
    return (uint8_t)(sign | (bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20);
}
