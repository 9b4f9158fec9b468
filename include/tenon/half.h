/* bf16 and f16 as numbers: the conversions that libtenon, its kernels and their checks share. Numbers of 16 bits are
 * uint16_t, as they lie in memory. Header only; every function is a few instructions without branches, so that a
 * compiler turns loops over them into vector instructions.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even: beyond the largest number to infinity, and through the
 * numbers below the normal ones, which are neither read nor written as zeros.
 *
 * A NaN stays one, with its sign and as much of its payload as fits, and becomes quiet: the result has the highest bit
 * of the payload set. The one exception is bf16 to f32, which only shifts, so that a signalling NaN remains what it
 * was. These are the results of the F16C and AVX-512 instructions for f16 (VCVTPH2PS, VCVTPS2PH) and of those of
 * AArch64 with FPCR.DN clear. VCVTNEPS2BF16 treats NaNs likewise but takes numbers below the normal ones for zeros, so
 * that kernels may use it only where there are none. */
#ifndef TENON_HALF_H
#define TENON_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t tn_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float tn_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float tn_bf16_to_f32(uint16_t half)
{
    return tn_f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t tn_f32_to_bf16(float value)
{
    uint32_t bits = tn_f32_bits(value), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16);
}

static inline float tn_f16_to_f32(uint16_t half)
{
    /* The exponents' biases differ by 112, and by as much again for infinity and NaN. Below 2^-14 a one is put in front
     * of the digits and taken away again. The subtraction is exact, and makes a NaN quiet where it takes away nothing.
     */
    uint32_t sign = (uint32_t)half << 16 & 0x80000000u, digits = (uint32_t)half << 13 & 0x0fffe000u;
    uint32_t bias = digits >= 0x0f800000u ? 224u << 23 : 112u << 23;
    bias = digits < 0x00800000u ? 113u << 23 : bias;
    float extra = digits < 0x00800000u ? 0x1p-14f : 0.0f;
    return tn_f32_from_bits(tn_f32_bits(tn_f32_from_bits(digits + bias) - extra) | sign);
}

static inline uint16_t tn_f32_to_f16(float value)
{
    uint32_t bits = tn_f32_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    /* Below 2^-14 a unit of the last place of the result is one of 0.5f: the addition rounds. */
    uint32_t small = tn_f32_bits(tn_f32_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = magnitude < 0x38800000u ? small : normal;
    half = magnitude >= 0x47800000u ? 0x7c00u : half; /* 65520 to 65536 have been rounded there             */
    half = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : half;
    return (uint16_t)(half | sign);
}

#endif
