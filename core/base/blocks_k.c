/* Block types of 256 values in groups of 16 or 32 that have scales of their own. */
#include "base/clones.h"

#include "base/blocks_types.h"

/* Scale and minimum of group j of Q4_K and Q5_K: six bits each, the upper two of the last four apart. */
static inline void six_bits(const uint8_t *s, int j, float *scale, float *minimum)
{
    int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    int m = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
    *scale = (float)sc;
    *minimum = (float)m;
}

CLONES void blocks_q4_k(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 144)
        for (int g = 0; g < 16; g++, out += 16) { /* half a group */
            blocks_codes qs = blocks_bytes(b + 16 + g / 4 * 32 + g % 2 * 16);
            float scale, minimum;
            six_bits(b + 4, g / 2, &scale, &minimum);
            qs = g & 2 ? qs >> 4 : qs & 15;
            blocks_put_above((blocks_levels)qs, blocks_half(b) * scale, blocks_half(b + 2) * minimum, out);
        }
}

CLONES void blocks_q5_k(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 176)
        for (int g = 0; g < 16; g++, out += 16) {
            blocks_codes qs = blocks_bytes(b + 48 + g / 4 * 32 + g % 2 * 16), qh = blocks_bytes(b + 16 + g % 2 * 16);
            float scale, minimum;
            six_bits(b + 4, g / 2, &scale, &minimum);
            qs = (g & 2 ? qs >> 4 : qs & 15) | (qh >> g / 2 & 1) << 4;
            blocks_put_above((blocks_levels)qs, blocks_half(b) * scale, blocks_half(b + 2) * minimum, out);
        }
}

/* Group g of 16 is half (g % 2) of a quarter (g / 2 % 4) of half (g / 8) of the block: codes of all quarters of a half
 * share their bytes. */
CLONES void blocks_q6_k(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 210)
        for (int g = 0; g < 16; g++, out += 16) {
            blocks_codes ql = blocks_bytes(b + g / 8 * 64 + g % 4 * 16);
            blocks_codes qh = blocks_bytes(b + 128 + g / 8 * 32 + g % 2 * 16);
            ql = (g & 4 ? ql >> 4 : ql & 15) | (qh >> g / 2 % 4 * 2 & 3) << 4;
            blocks_put((blocks_levels)ql - 32, blocks_half(b + 208) * (float)(int8_t)b[192 + g], out);
        }
}

/* The two bits of group g, counted as above. */
static inline blocks_codes two_bits(const uint8_t *qs, int g)
{
    return blocks_bytes(qs + g / 8 * 32 + g % 2 * 16) >> g / 2 % 4 * 2 & 3;
}

CLONES void blocks_q2_k(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 84)
        for (int g = 0; g < 16; g++, out += 16) {
            float scale = blocks_half(b + 80) * (float)(b[g] & 15), minimum = blocks_half(b + 82) * (float)(b[g] >> 4);
            blocks_put_above((blocks_levels)two_bits(b + 16, g), scale, minimum, out);
        }
}

/* A bit of the mask that is clear takes 4 away. */
CLONES void blocks_q3_k(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 110)
        for (int g = 0; g < 16; g++, out += 16) {
            const uint8_t *s = b + 96;
            int scale = (s[g % 8] >> g / 8 * 4 & 15) | (s[8 + g % 4] >> g / 4 * 2 & 3) << 4;
            blocks_codes third = (blocks_bytes(b + g % 2 * 16) >> g / 2 & 1) << 2;
            blocks_put((blocks_levels)(two_bits(b + 32, g) | third) - 4, blocks_half(b + 108) * (float)(scale - 32),
                       out);
        }
}

CLONES void blocks_iq4_xs(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    static const blocks_levels levels = {BLOCKS_IQ4_LEVELS};
    for (; blocks > 0; blocks--, b += 136)
        for (int g = 0; g < 8; g++, out += 32) {
            int scale = (b[4 + g / 2] >> g % 2 * 4 & 15) | (int)(blocks_u16(b + 2) >> 2 * g & 3) << 4;
            blocks_put_halves(levels, blocks_bytes(b + 8 + g * 16), blocks_half(b) * (float)(scale - 32), out);
        }
}

CLONES void blocks_tq2_0(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 66) {
        float d = blocks_half(b + 64);
        for (int g = 0; g < 8; g++, out += 32)
            for (int i = 0; i < 32; i++)
                out[i] = d * (float)((b[g / 4 * 32 + i] >> g % 4 * 2 & 3) - 1);
    }
}

/* Digits to the base of 3 of so many bytes, the highest digit of each first. Returns the end. */
static inline float *digits(const uint8_t *restrict b, int bytes, int count, float d, float *restrict out)
{
    for (int n = 0, power = 1; n < count; n++, power *= 3)
        for (int i = 0; i < bytes; i++)
            *out++ = d * (float)(((b[i] * power & 255) * 3 >> 8) - 1);
    return out;
}

CLONES void blocks_tq1_0(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 54) {
        float d = blocks_half(b + 52);
        out = digits(b, 32, 5, d, out);
        out = digits(b + 32, 16, 5, d, out);
        out = digits(b + 48, 4, 4, d, out);
    }
}
