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
        for (int j = 0; j < 8; j += 2, out += 64) {
            const uint8_t *qs = b + 16 + (ptrdiff_t)(16 * j);
            float d = blocks_half(b), dmin = blocks_half(b + 2), low, high, low_min, high_min;
            six_bits(b + 4, j, &low, &low_min);
            six_bits(b + 4, j + 1, &high, &high_min);
            for (int i = 0; i < 32; i++)
                out[i] = d * low * (float)(qs[i] & 15) - dmin * low_min;
            for (int i = 0; i < 32; i++)
                out[32 + i] = d * high * (float)(qs[i] >> 4) - dmin * high_min;
        }
}

CLONES void blocks_q5_k(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 176)
        for (int j = 0; j < 8; j += 2, out += 64) {
            const uint8_t *qs = b + 48 + (ptrdiff_t)(16 * j), *qh = b + 16;
            float d = blocks_half(b), dmin = blocks_half(b + 2), low, high, low_min, high_min;
            six_bits(b + 4, j, &low, &low_min);
            six_bits(b + 4, j + 1, &high, &high_min);
            for (int i = 0; i < 32; i++)
                out[i] = d * low * (float)((qs[i] & 15) | (qh[i] >> j & 1) << 4) - dmin * low_min;
            for (int i = 0; i < 32; i++)
                out[32 + i] = d * high * (float)(qs[i] >> 4 | (qh[i] >> (j + 1) & 1) << 4) - dmin * high_min;
        }
}

/* 16 values: low four bits of ql and two of qh, each shifted. */
static inline void six_bit_codes(const uint8_t *restrict ql, int low, const uint8_t *restrict qh, int high, float scale,
                                 float *restrict out)
{
    for (int i = 0; i < 16; i++)
        out[i] = scale * (float)(((ql[i] >> low & 15) | (qh[i] >> high & 3) << 4) - 32);
}

CLONES void blocks_q6_k(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 210) {
        float d = blocks_half(b + 208);
        for (int g = 0; g < 16; g++, out += 16) { /* half h, quarter k of it, half of that */
            int h = g / 8, k = g / 2 % 4, at = g % 2 * 16;
            float scale = d * (float)(int8_t)b[192 + g];
            six_bit_codes(b + 64 * h + 32 * (k % 2) + at, k / 2 * 4, b + 128 + 32 * h + at, 2 * k, scale, out);
        }
    }
}

CLONES void blocks_q2_k(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 84) {
        float d = blocks_half(b + 80), dmin = blocks_half(b + 82);
        for (int g = 0; g < 16; g++, out += 16) {
            const uint8_t *qs = b + 16 + (ptrdiff_t)(g / 8 * 32 + g % 2 * 16);
            float scale = d * (float)(b[g] & 15), minimum = dmin * (float)(b[g] >> 4);
            for (int i = 0; i < 16; i++)
                out[i] = scale * (float)(qs[i] >> g / 2 % 4 * 2 & 3) - minimum;
        }
    }
}

CLONES void blocks_q3_k(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 110) {
        const uint8_t *s = b + 96;
        float d = blocks_half(b + 108);
        for (int g = 0; g < 16; g++, out += 16) {
            const uint8_t *qs = b + 32 + (ptrdiff_t)(g / 8 * 32 + g % 2 * 16), *mask = b + (ptrdiff_t)(g % 2 * 16);
            int sc = (s[g % 8] >> g / 8 * 4 & 15) | (s[8 + g % 4] >> g / 4 * 2 & 3) << 4;
            float scale = d * (float)(sc - 32);
            for (int i = 0; i < 16; i++) /* a bit that is clear takes 4 away */
                out[i] = scale * (float)((qs[i] >> g / 2 % 4 * 2 & 3) + (mask[i] >> g / 2 & 1) * 4 - 4);
        }
    }
}

CLONES void blocks_iq4_xs(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    static const blocks_levels levels = {BLOCKS_IQ4_LEVELS};
    for (; blocks > 0; blocks--, b += 136) {
        float d = blocks_half(b);
        uint32_t high = blocks_u16(b + 2);
        for (int j = 0; j < 8; j++, out += 32) {
            int sc = (b[4 + j / 2] >> j % 2 * 4 & 15) | (int)(high >> 2 * j & 3) << 4;
            blocks_nibbles(levels, b + 8 + (ptrdiff_t)(16 * j), d * (float)(sc - 32), out, 16);
        }
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
