/* The values of quantised elements: which decoder a type has, parts of blocks, and types without blocks. */
#include "base/clones.h"

#include "base/blocks.h"
#include "base/blocks_types.h"
#include "base/convert.h"

#include <assert.h>

bool blocks_is_quantised(tn_dtype dtype)
{
    return dtype == TN_I8 || (dtype >= TN_F8_E4M3 && dtype < TN_DTYPE_COUNT && dtype != TN_F8_E8M0);
}

/* ---- one or two elements in a byte ----------------------------------------------------------- */

CLONES static void from_i8(const uint8_t *restrict b, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(int8_t)b[i];
}

CLONES static void from_u8(const uint8_t *restrict b, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)b[i];
}

/* As tn_f16_to_f32: below 2^-6 a one is put in front of the digits and taken away again. */
static inline float e4m3(uint32_t code)
{
    uint32_t digits = (code & 0x7f) << 20, sign = (code & 0x80) << 24;
    bool small = digits < 0x00800000u;
    float extra = small ? 0x1p-6f : 0.0f;
    float value = tn_f32_from_bits(digits + ((small ? 121u : 120u) << 23)) - extra;
    return tn_f32_from_bits((digits == 0x07f00000u ? 0x7fc00000u : tn_f32_bits(value)) | sign);
}

CLONES static void from_e4m3(const uint8_t *restrict b, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = e4m3(b[i]);
}

CLONES static void from_e5m2(const uint8_t *restrict b, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = tn_f16_to_f32((uint16_t)(b[i] << 8));
}

/* 2^(code - 127); 255 is NaN, 0 is below the normal numbers. */
static void from_e8m0(const uint8_t *restrict b, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = tn_f32_from_bits(b[i] == 255 ? 0x7fc00000u : b[i] ? (uint32_t)b[i] << 23 : 0x00400000u);
}

CLONES static void from_u4(const uint8_t *restrict b, int64_t pairs, float *restrict out)
{
    for (int64_t i = 0; i < pairs; i++) {
        out[2 * i] = (float)(b[i] & 15);
        out[2 * i + 1] = (float)(b[i] >> 4);
    }
}

CLONES static void from_i4(const uint8_t *restrict b, int64_t pairs, float *restrict out)
{
    for (int64_t i = 0; i < pairs; i++) {
        out[2 * i] = (float)((int)((b[i] & 15u) ^ 8u) - 8);
        out[2 * i + 1] = (float)((int)(b[i] >> 4 ^ 8u) - 8);
    }
}

/* The digit below 1 stands for 0.5; above, exponent and digit are those of an f32 with another bias. */
static inline float e2m1(uint32_t code)
{
    uint32_t digits = code & 7, sign = (code & 8) << 28;
    uint32_t bits = digits >= 2 ? (digits << 22) + (126u << 23) : digits * 0x3f000000u;
    return tn_f32_from_bits(bits | sign);
}

CLONES static void from_e2m1(const uint8_t *restrict b, int64_t pairs, float *restrict out)
{
    for (int64_t i = 0; i < pairs; i++) {
        out[2 * i] = e2m1(b[i]);
        out[2 * i + 1] = e2m1((uint32_t)b[i] >> 4);
    }
}

CLONES static void from_nf4(const uint8_t *restrict b, int64_t pairs, float *restrict out)
{
    static const float levels[16] = {
        -1.0f,
        -0.6961928009986877f,
        -0.5250730514526367f,
        -0.39491748809814453f,
        -0.28444138169288635f,
        -0.18477343022823334f,
        -0.09105003625154495f,
        0.0f,
        0.07958029955625534f,
        0.16093020141124725f,
        0.24611230194568634f,
        0.33791524171829224f,
        0.44070982933044434f,
        0.5626170039176941f,
        0.7229568362236023f,
        1.0f,
    };
    for (int64_t i = 0; i < pairs; i++) {
        out[2 * i] = levels[b[i] >> 4];
        out[2 * i + 1] = levels[b[i] & 15];
    }
}

/* ---- every type ------------------------------------------------------------------------------ */

static blocks_decode *decoder_of(tn_dtype dtype)
{
    static blocks_decode *const decoders[TN_DTYPE_COUNT] = {
        [TN_I8] = from_i8,           [TN_U8] = from_u8,         [TN_F8_E4M3] = from_e4m3,
        [TN_F8_E5M2] = from_e5m2,    [TN_F8_E8M0] = from_e8m0,  [TN_U4] = from_u4,
        [TN_I4] = from_i4,           [TN_Q4_0] = blocks_q4_0,   [TN_Q4_1] = blocks_q4_1,
        [TN_Q5_0] = blocks_q5_0,     [TN_Q5_1] = blocks_q5_1,   [TN_Q8_0] = blocks_q8_0,
        [TN_Q2_K] = blocks_q2_k,     [TN_Q3_K] = blocks_q3_k,   [TN_Q4_K] = blocks_q4_k,
        [TN_Q5_K] = blocks_q5_k,     [TN_Q6_K] = blocks_q6_k,   [TN_IQ4_NL] = blocks_iq4_nl,
        [TN_IQ4_XS] = blocks_iq4_xs, [TN_MXFP4] = blocks_mxfp4, [TN_NVFP4] = blocks_nvfp4,
        [TN_IQ1_S] = blocks_iq1_s,   [TN_IQ1_M] = blocks_iq1_m, [TN_IQ2_XXS] = blocks_iq2_xxs,
        [TN_IQ2_XS] = blocks_iq2_xs, [TN_IQ2_S] = blocks_iq2_s, [TN_IQ3_XXS] = blocks_iq3_xxs,
        [TN_IQ3_S] = blocks_iq3_s,   [TN_TQ1_0] = blocks_tq1_0, [TN_TQ2_0] = blocks_tq2_0,
        [TN_E2M1] = from_e2m1,       [TN_NF4] = from_nf4,
    };
    return decoders[dtype];
}

#define MOST_OF_A_BLOCK 256

void blocks_to_f32(tn_dtype dtype, const void *row, int64_t first, int64_t count, float *out)
{
    blocks_decode *decode = decoder_of(dtype);
    int64_t elements = tn_dtype_block_elements(dtype), bytes = (int64_t)tn_dtype_block_bytes(dtype);
    const uint8_t *block = (const uint8_t *)row + first / elements * bytes;
    float part[MOST_OF_A_BLOCK];
    if (!decode) {
        convert_to_f32(block, dtype, out, count);
        return;
    }
    assert(elements <= MOST_OF_A_BLOCK);
    for (int64_t skip = first % elements, take; count > 0; count -= take, out += take, skip = 0) {
        int64_t whole = skip ? 0 : count / elements;
        take = whole ? whole * elements : skip + count < elements ? count : elements - skip;
        block += whole ? whole * bytes : bytes;
        if (whole) {
            decode(block - whole * bytes, whole, out);
            continue;
        }
        decode(block - bytes, 1, part);
        memcpy(out, part + skip, (size_t)take * sizeof *out);
    }
}
