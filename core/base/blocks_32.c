/* Block types of 32 and 64 values: the elements of the first half lie in the low halves of the bytes, those of the
 * second in the high ones. */
#include "base/clones.h"

#include "base/blocks_types.h"

#include <math.h>

CLONES void blocks_q4_0(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 18, out += 32) {
        blocks_codes qs = blocks_bytes(b + 2);
        blocks_put((blocks_levels)(qs & 15) - 8, blocks_half(b), out);
        blocks_put((blocks_levels)(qs >> 4) - 8, blocks_half(b), out + 16);
    }
}

CLONES void blocks_q4_1(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 20, out += 32) {
        blocks_codes qs = blocks_bytes(b + 4);
        blocks_put_above((blocks_levels)(qs & 15), blocks_half(b), -blocks_half(b + 2), out);
        blocks_put_above((blocks_levels)(qs >> 4), blocks_half(b), -blocks_half(b + 2), out + 16);
    }
}

/* 16 bits as fifth bits of codes. */
static inline blocks_codes fifth_bits(const uint8_t *two)
{
    static const blocks_codes bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    blocks_codes all = {0};
    for (int i = 0; i < 16; i++)
        all[i] = two[i / 8];
    return (blocks_codes)((all & bit) != 0) & 16;
}

CLONES void blocks_q5_0(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 22, out += 32) {
        blocks_codes qs = blocks_bytes(b + 6);
        blocks_put((blocks_levels)((qs & 15) | fifth_bits(b + 2)) - 16, blocks_half(b), out);
        blocks_put((blocks_levels)(qs >> 4 | fifth_bits(b + 4)) - 16, blocks_half(b), out + 16);
    }
}

CLONES void blocks_q5_1(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 24, out += 32) {
        blocks_codes qs = blocks_bytes(b + 8);
        float d = blocks_half(b), m = -blocks_half(b + 2);
        blocks_put_above((blocks_levels)((qs & 15) | fifth_bits(b + 4)), d, m, out);
        blocks_put_above((blocks_levels)(qs >> 4 | fifth_bits(b + 6)), d, m, out + 16);
    }
}

CLONES void blocks_q8_0(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 34, out += 32)
        for (int i = 0; i < 32; i += 16)
            blocks_put((blocks_levels)blocks_bytes(b + 2 + i), blocks_half(b), out + i);
}

CLONES void blocks_iq4_nl(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    static const blocks_levels levels = {BLOCKS_IQ4_LEVELS};
    for (; blocks > 0; blocks--, b += 18, out += 32)
        blocks_put_halves(levels, blocks_bytes(b + 2), blocks_half(b), out);
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
        blocks_put_halves(levels, blocks_bytes(b + 1), half_power(b[0]), out);
}

/* Half of a scale of 4 bits exponent and 3 bits digits without sign, whose NaN counts as 0. */
static float half_e4m3(uint32_t code)
{
    uint32_t digits = code & 7, exponent = code >> 3 & 15;
    if ((code & 0x7f) == 0x7f)
        return 0;
    return exponent ? tn_f32_from_bits((exponent + 119) << 23 | digits << 20) : (float)digits * 0x1p-10f;
}

/* The 16 elements of a scale lie in 8 bytes. */
CLONES void blocks_nvfp4(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    static const blocks_levels levels = {BLOCKS_E2M1_DOUBLED};
    for (; blocks > 0; blocks--, b += 36)
        for (int s = 0; s < 4; s++, out += 16) {
            uint64_t bytes;
            memcpy(&bytes, b + 4 + (ptrdiff_t)(8 * s), sizeof bytes);
            uint64_t halves[2] = {bytes & 0x0f0f0f0f0f0f0f0fu, bytes >> 4 & 0x0f0f0f0f0f0f0f0fu};
            blocks_put(blocks_pick(levels, blocks_bytes((const uint8_t *)halves)), half_e4m3(b[s]), out);
        }
}
