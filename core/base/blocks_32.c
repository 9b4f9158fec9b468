/* Block types of 32 and 64 values: the elements of the first half lie in the low halves of the bytes, those of the
 * second in the high ones. */
#include "base/clones.h"

#include "base/blocks_types.h"

#include <math.h>

CLONES void blocks_q4_0(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 18, out += 32) {
        float d = blocks_half(b);
        for (int i = 0; i < 16; i++)
            out[i] = d * (float)((b[2 + i] & 15) - 8);
        for (int i = 0; i < 16; i++)
            out[16 + i] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

CLONES void blocks_q4_1(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 20, out += 32) {
        float d = blocks_half(b), m = blocks_half(b + 2);
        for (int i = 0; i < 16; i++)
            out[i] = d * (float)(b[4 + i] & 15) + m;
        for (int i = 0; i < 16; i++)
            out[16 + i] = d * (float)(b[4 + i] >> 4) + m;
    }
}

/* The fifth bits are those of one word, in the order of the elements. */
static inline void five_bits(const uint8_t *restrict qs, uint32_t qh, float d, float zero, float m, float *restrict out)
{
    for (int i = 0; i < 16; i++)
        out[i] = d * ((float)((qs[i] & 15) | (qh >> i & 1) << 4) - zero) + m;
    for (int i = 0; i < 16; i++)
        out[16 + i] = d * ((float)((uint32_t)qs[i] >> 4 | (qh >> (16 + i) & 1) << 4) - zero) + m;
}

/* -0 is what adding it changes nothing by. */
CLONES void blocks_q5_0(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 22, out += 32)
        five_bits(b + 6, blocks_u32(b + 2), blocks_half(b), 16, -0.0f, out);
}

CLONES void blocks_q5_1(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 24, out += 32)
        five_bits(b + 8, blocks_u32(b + 4), blocks_half(b), 0, blocks_half(b + 2), out);
}

CLONES void blocks_q8_0(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 34, out += 32) {
        float d = blocks_half(b);
        for (int i = 0; i < 32; i++)
            out[i] = d * (float)(int8_t)b[2 + i];
    }
}

CLONES void blocks_iq4_nl(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    static const blocks_levels levels = {BLOCKS_IQ4_LEVELS};
    for (; blocks > 0; blocks--, b += 18, out += 32)
        blocks_nibbles(levels, b + 2, blocks_half(b), out, 16);
}

/* Half of 2^(e - 127): the levels are doubled. The smallest two are below the normal numbers. */
static float half_power(uint32_t e)
{
    return e == 255 ? NAN : tn_f32_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

CLONES void blocks_mxfp4(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    static const blocks_levels levels = {BLOCKS_E2M1_DOUBLED};
    for (; blocks > 0; blocks--, b += 17, out += 32)
        blocks_nibbles(levels, b + 1, half_power(b[0]), out, 16);
}

/* Half of a scale of 4 bits exponent and 3 bits digits without sign, whose NaN counts as 0. */
static float half_e4m3(uint32_t code)
{
    uint32_t digits = code & 7, exponent = code >> 3 & 15;
    if ((code & 0x7f) == 0x7f)
        return 0;
    return exponent ? tn_f32_from_bits((exponent + 119) << 23 | digits << 20) : (float)digits * 0x1p-10f;
}

/* Two scales for 16 bytes: each 8 bytes have 16 elements. */
CLONES void blocks_nvfp4(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    static const blocks_levels levels = {BLOCKS_E2M1_DOUBLED};
    for (; blocks > 0; blocks--, b += 36, out += 64)
        for (int s = 0; s < 4; s++) {
            blocks_levels codes = {0};
            memcpy(&codes, b + 4 + (ptrdiff_t)(8 * s), 8);
            blocks_levels low = blocks_pick(levels, codes & 15), high = blocks_pick(levels, codes >> 4 & 15);
            float d = half_e4m3(b[s]);
            for (int i = 0; i < 8; i++)
                out[16 * s + i] = d * (float)low[i];
            for (int i = 0; i < 8; i++)
                out[16 * s + 8 + i] = d * (float)high[i];
        }
}
