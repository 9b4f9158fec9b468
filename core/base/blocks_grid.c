/* Block types of 256 values whose codes name vectors of 8 (IQ1, IQ2) or 4 (IQ3) levels in a table; signs lie apart. */
#include "base/clones.h"

#include "base/blocks_types.h"

/* The codes of an entry. */
static inline uint32_t entry(const uint64_t *table, uint32_t index)
{
    return (uint32_t)(table[index >> 2] >> 16 * (index & 3)) & 0xffff;
}

/* Seven signs, and an eighth that makes the number of negative ones even. */
static inline uint32_t even_signs(uint32_t seven)
{
    uint32_t odd = 0x6996u >> ((seven ^ seven >> 4) & 15) & 1;
    return seven | odd << 7;
}

static inline float signed_by(uint32_t signs, int i, uint32_t level)
{
    return (float)(int32_t)(signs >> i & 1 ? 0 - level : level);
}

/* Eight values of IQ2: levels 8, 25, 43. */
static inline void eight(uint32_t codes, uint32_t signs, float scale, float *restrict out)
{
    for (int i = 0; i < 8; i++)
        out[i] = scale * signed_by(signs, i, 0x2b1908u >> (codes >> 2 * i & 3) * 8 & 255);
}

CLONES void blocks_iq2_xxs(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 66)
        for (int g = 0; g < 8; g++) {
            const uint8_t *index = b + 2 + (ptrdiff_t)(8 * g);
            uint32_t signs = blocks_u32(index + 4);
            float scale = blocks_half(b) * ((float)(signs >> 28) + 0.5f) * 0.25f;
            for (int v = 0; v < 4; v++, out += 8)
                eight(entry(blocks_table_iq2_xxs, index[v]), even_signs(signs >> 7 * v & 127), scale, out);
        }
}

/* The scale of vector v in 0..31: a nibble for two. */
static inline float nibble_scale(float d, const uint8_t *scales, int v)
{
    return d * ((float)(scales[v / 4] >> v / 2 % 2 * 4 & 15) + 0.5f) * 0.25f;
}

CLONES void blocks_iq2_xs(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 74)
        for (int v = 0; v < 32; v++, out += 8) {
            uint32_t word = blocks_u16(b + 2 + (ptrdiff_t)(2 * v));
            float scale = nibble_scale(blocks_half(b), b + 66, v);
            eight(entry(blocks_table_iq2_xs, word & 511), even_signs(word >> 9), scale, out);
        }
}

CLONES void blocks_iq2_s(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 82)
        for (int v = 0; v < 32; v++, out += 8) {
            uint32_t index = b[2 + v] | (b[66 + v / 4] >> v % 4 * 2 & 3u) << 8;
            eight(entry(blocks_table_iq2_s, index), b[34 + v], nibble_scale(blocks_half(b), b + 74, v), out);
        }
}

CLONES void blocks_iq3_xxs(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 98)
        for (int v = 0; v < 64; v++, out += 4) {
            uint32_t word = blocks_u32(b + 66 + (ptrdiff_t)(v / 8 * 4));
            uint32_t signs = even_signs(word >> v / 2 % 4 * 7 & 127) >> v % 2 * 4;
            uint32_t codes = entry(blocks_table_iq3_xxs, b[2 + v]);
            float scale = blocks_half(b) * ((float)(word >> 28) + 0.5f) * 0.5f;
            for (int i = 0; i < 4; i++) { /* levels 4, 12, 20, ... 52, and 62 instead of 60 */
                uint32_t code = codes >> 3 * i & 7;
                out[i] = scale * signed_by(signs, i, 8 * code + 4 + (code == 7) * 2);
            }
        }
}

CLONES void blocks_iq3_s(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 110)
        for (int v = 0; v < 64; v++, out += 4) {
            uint32_t signs = (uint32_t)b[74 + v / 2] >> v % 2 * 4;
            uint32_t codes = entry(blocks_table_iq3_s, b[2 + v] | (b[66 + v / 8] >> v % 8 & 1u) << 8);
            float scale = blocks_half(b) * (float)(1 + 2 * (b[106 + v / 16] >> v / 8 % 2 * 4 & 15));
            for (int i = 0; i < 4; i++)
                out[i] = scale * signed_by(signs, i, 2 * (codes >> 3 * i & 7) + 1);
        }
}

/* Eight values of IQ1: -1, 0 or 1, shifted. */
static inline void ternary(uint32_t codes, float shift, float scale, float *restrict out)
{
    for (int i = 0; i < 8; i++)
        out[i] = scale * ((float)(int32_t)(codes >> 2 * i & 3) - 1 + shift);
}

CLONES void blocks_iq1_s(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 50)
        for (int v = 0; v < 32; v++, out += 8) {
            uint32_t word = blocks_u16(b + 34 + (ptrdiff_t)(v / 4 * 2));
            float scale = blocks_half(b) * (float)(2 * (word >> 12 & 7) + 1);
            uint32_t index = b[2 + v] | (word >> v % 4 * 3 & 7) << 8;
            ternary(entry(blocks_table_iq1, index), word >> 15 ? -0.125f : 0.125f, scale, out);
        }
}

CLONES void blocks_iq1_m(const uint8_t *restrict b, int64_t blocks, float *restrict out)
{
    for (; blocks > 0; blocks--, b += 56) {
        const uint8_t *s = b + 48; /* the upper nibbles of four words are the block's scale */
        float d = tn_f16_to_f32((uint16_t)(s[1] >> 4 | (s[3] >> 4) << 4 | (s[5] >> 4) << 8 | (s[7] >> 4) << 12));
        for (int v = 0; v < 32; v++, out += 8) {
            uint32_t high = (uint32_t)b[32 + v / 2] >> v % 2 * 4, word = blocks_u16(s + (ptrdiff_t)(v / 8 * 2));
            float scale = d * (float)(2 * (word >> v / 2 % 4 * 3 & 7) + 1);
            ternary(entry(blocks_table_iq1, b[v] | (high & 7) << 8), high & 8 ? -0.125f : 0.125f, scale, out);
        }
    }
}
