/* Vectors of floats, the NEON form (AArch64): see vec_avx512.h for what each function promises. */
#ifndef TENON_COMMON_VEC_NEON_H
#define TENON_COMMON_VEC_NEON_H

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#define VEC_LANES 4
typedef float32x4_t vec;

#include "vec_common.h"

VEC_INLINE vec vec_set(float value)
{
    return vdupq_n_f32(value);
}

VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}

VEC_INLINE vec vec_fnma(vec a, vec b, vec c)
{
    return vfmsq_f32(c, a, b);
}

VEC_INLINE vec vec_min(vec a, vec b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

VEC_INLINE vec vec_max(vec a, vec b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

VEC_INLINE vec vec_abs(vec a)
{
    return vabsq_f32(a);
}

VEC_INLINE vec vec_where_negative(vec a, vec yes, vec no)
{
    return vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(a)), yes, no);
}

VEC_INLINE vec vec_where_greater(vec a, vec b, vec yes, vec no)
{
    return vbslq_f32(vcgtq_f32(a, b), yes, no);
}

VEC_INLINE float vec_inverse_sqrt(float value)
{
    return 1.0f / sqrtf(value);
}

VEC_INLINE float vec_sum(vec a)
{
    float32x2_t half = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}

VEC_INLINE vec vec_exp(vec a)
{
    static const float coefficient[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    /* NaN passes both. */
    vec x = vmaxq_f32(vec_set(-105.0f), vminq_f32(vec_set(89.0f), a));
    vec n = vrndnq_f32(vmulq_f32(x, vec_set(1.44269504f)));
    vec r = vfmsq_f32(x, n, vec_set(0x1.62e4p-1f));
    r = vfmsq_f32(r, n, vec_set(0x1.7f7d1cf79abcap-20f));
    vec p = vec_set(coefficient[0]);
    for (int i = 1; i < 8; i++)
        p = vfmaq_f32(vec_set(coefficient[i]), p, r);
    /* 2^n in two factors: n reaches -151, where one would be no normal number, and 128, where it would be infinite. */
    int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
    return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23)));
}

VEC_INLINE vec vec_quiet(vec a)
{
    uint32x4_t quiet = vorrq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x400000));
    return vbslq_f32(vceqq_f32(a, a), a, vreinterpretq_f32_u32(vandq_u32(quiet, vdupq_n_u32(0xffff0000))));
}

VEC_INLINE uint32x4_t vec_bf16_high(vec a)
{
    uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
}

VEC_INLINE vec vec_round(vec a, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return vreinterpretq_f32_u32(vandq_u32(vec_bf16_high(a), vdupq_n_u32(0xffff0000)));
    if (dtype == TN_F16)
        return vcvt_f32_f16(vcvt_f16_f32(a));
    return a;
}

VEC_INLINE vec vec_load(const char *p, tn_dtype dtype)
{
    if (dtype == TN_F32)
        return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p));
    uint16x4_t half = vreinterpret_u16_u8(vld1_u8((const uint8_t *)p));
    if (dtype == TN_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

VEC_INLINE void vec_store(char *p, tn_dtype dtype, vec a)
{
    if (dtype == TN_F32)
        vst1q_u8((uint8_t *)p, vreinterpretq_u8_f32(a));
    else if (dtype == TN_F16)
        vst1_u8((uint8_t *)p, vreinterpret_u8_f16(vcvt_f16_f32(a)));
    else
        vst1_u8((uint8_t *)p, vreinterpret_u8_u16(vshrn_n_u32(vec_bf16_high(a), 16)));
}

/* There are no masks: parts go through memory of their own. */
VEC_OUTLINE vec vec_load_part(const char *p, tn_dtype dtype, int64_t n)
{
    char whole[4 * VEC_LANES] = {0};
    memcpy(whole, p, (size_t)n * (dtype == TN_F32 ? 4 : 2));
    return vec_load(whole, dtype);
}

VEC_OUTLINE void vec_store_part(char *p, tn_dtype dtype, vec a, int64_t n)
{
    char whole[4 * VEC_LANES];
    vec_store(whole, dtype, a);
    memcpy(p, whole, (size_t)n * (dtype == TN_F32 ? 4 : 2));
}

VEC_INLINE void vec_transpose(vec v[VEC_LANES])
{
    vec a = vtrn1q_f32(v[0], v[1]), b = vtrn2q_f32(v[0], v[1]);
    vec c = vtrn1q_f32(v[2], v[3]), d = vtrn2q_f32(v[2], v[3]);
    v[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
    v[1] = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
    v[2] = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
    v[3] = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
}

/* ---- packs: see vec_avx512.h ---- */

VEC_INLINE pack pack_of_pairs(vec words)
{
    uint32x4_t pairs = vreinterpretq_u32_f32(words);
    return (pack){vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)),
                  vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)))};
}

VEC_INLINE pack pack_load(const char *p, tn_dtype dtype)
{
    if (dtype != TN_BF16)
        return (pack){vec_load(p, dtype), vec_load(p + VEC_LANES * (dtype == TN_F32 ? 4 : 2), dtype)};
    return pack_of_pairs(vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p)));
}

VEC_INLINE void pack_store(char *p, tn_dtype dtype, pack x)
{
    if (dtype == TN_BF16) {
        uint32x4_t even = vshrq_n_u32(vec_bf16_high(x.a), 16);
        vst1q_u8((uint8_t *)p, vreinterpretq_u8_u32(vbslq_u32(vdupq_n_u32(0xffff0000), vec_bf16_high(x.b), even)));
        return;
    }
    vec_store(p, dtype, x.a);
    vec_store(p + VEC_LANES * (dtype == TN_F32 ? 4 : 2), dtype, x.b);
}

VEC_OUTLINE pack pack_load_part(const char *p, tn_dtype dtype, int64_t n)
{
    char whole[4 * PACK] = {0};
    memcpy(whole, p, (size_t)n * (dtype == TN_F32 ? 4 : 2));
    return pack_load(whole, dtype);
}

VEC_OUTLINE void pack_store_part(char *p, tn_dtype dtype, pack x, int64_t n)
{
    char whole[4 * PACK];
    pack_store(whole, dtype, x);
    memcpy(p, whole, (size_t)n * (dtype == TN_F32 ? 4 : 2));
}

VEC_INLINE float pack_sum(pack x, tn_dtype dtype)
{
    return dtype == TN_BF16 ? vec_sum(x.a) + vec_sum(x.b) : vec_sum(vec_add(x.a, x.b));
}

VEC_INLINE pack pack_split_pairs(pack x, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return x;
    return (pack){vuzp1q_f32(x.a, x.b), vuzp2q_f32(x.a, x.b)};
}

VEC_INLINE pack pack_join_pairs(pack x, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return x;
    return (pack){vzip1q_f32(x.a, x.b), vzip2q_f32(x.a, x.b)};
}

#endif
