/* Inside core: the decoders of block types, one function a type: blocks_32.c has those of 16 to 64 values, blocks_k.c
 * those of 256 with scales of their own, blocks_grid.c those whose codes name vectors of a table (blocks_tables.c). */
#ifndef TENON_CORE_BLOCKS_TYPES_H
#define TENON_CORE_BLOCKS_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tenon/half.h>

/* The values of so many whole blocks. */
typedef void blocks_decode(const uint8_t *restrict b, int64_t blocks, float *restrict out);

blocks_decode blocks_q4_0, blocks_q4_1, blocks_q5_0, blocks_q5_1, blocks_q8_0, blocks_iq4_nl, blocks_mxfp4,
    blocks_nvfp4;
blocks_decode blocks_q2_k, blocks_q3_k, blocks_q4_k, blocks_q5_k, blocks_q6_k, blocks_iq4_xs, blocks_tq1_0,
    blocks_tq2_0;
blocks_decode blocks_iq1_s, blocks_iq1_m, blocks_iq2_xxs, blocks_iq2_xs, blocks_iq2_s, blocks_iq3_xxs, blocks_iq3_s;

/* Four entries in a word, the first in the lowest 16 bits. An entry of IQ1 and IQ2 is eight codes of 2 bits, one of IQ3
 * four codes of 3. */
extern const uint64_t blocks_table_iq1[512], blocks_table_iq2_xxs[64], blocks_table_iq2_xs[128],
    blocks_table_iq2_s[256], blocks_table_iq3_xxs[64], blocks_table_iq3_s[128];

/* The levels of IQ4_NL and IQ4_XS, and twice those of E2M1, as bytes. */
#define BLOCKS_IQ4_LEVELS -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define BLOCKS_E2M1_DOUBLED 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

static inline uint32_t blocks_u16(const uint8_t *at)
{
    return (uint32_t)(at[0] | at[1] << 8);
}

static inline uint32_t blocks_u32(const uint8_t *at)
{
    return blocks_u16(at) | blocks_u16(at + 2) << 16;
}

static inline float blocks_half(const uint8_t *at)
{
    return tn_f16_to_f32((uint16_t)blocks_u16(at));
}

/* 16 codes and their levels. Sixteen at a time by the compiler's vectors: it cuts them to what the machine has. */
typedef uint8_t blocks_codes __attribute__((vector_size(16)));
typedef int8_t blocks_levels __attribute__((vector_size(16)));

static inline blocks_codes blocks_bytes(const uint8_t *at)
{
    blocks_codes bytes;
    memcpy(&bytes, at, sizeof bytes);
    return bytes;
}

/* The levels that codes below 16 name; one instruction where there is one. */
static inline blocks_levels blocks_pick(blocks_levels table, blocks_codes codes)
{
#ifdef __clang__
    blocks_levels picked;
    for (int i = 0; i < 16; i++)
        picked[i] = table[codes[i]];
    return picked;
#else
    return __builtin_shuffle(table, (blocks_levels)codes);
#endif
}

/* scale times 16 levels, less a minimum. GCC would write the short loop out, and then find no vectors in it. */
static inline void blocks_put_above(blocks_levels levels, float scale, float minimum, float *restrict out)
{
    int8_t level[16];
    memcpy(level, &levels, sizeof level);
#ifndef __clang__
#pragma GCC unroll 1
#endif
    for (int i = 0; i < 16; i++)
        out[i] = scale * (float)level[i] - minimum;
}

static inline void blocks_put(blocks_levels levels, float scale, float *out)
{
    blocks_put_above(levels, scale, 0.0f, out);
}

/* scale times the levels of the low halves of 16 bytes, and behind them of the high halves. */
static inline void blocks_put_halves(blocks_levels table, blocks_codes codes, float scale, float *out)
{
    blocks_put(blocks_pick(table, codes & 15), scale, out);
    blocks_put(blocks_pick(table, codes >> 4), scale, out + 16);
}

#endif
