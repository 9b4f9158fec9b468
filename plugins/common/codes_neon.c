/* Decoding quantised weights, NEON (AArch64). */
#include "vec_neon.h"

#define CODES_UNROLLED _Pragma("GCC unroll 2")

VEC_INLINE float half_value(const char *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
}

VEC_INLINE vec vec_of_bytes(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}

VEC_INLINE int8x16_t levels_at(const int8_t *levels, const uint8_t *q, bool high)
{
    uint8x16_t all = vld1q_u8(q);
    return vqtbl1q_s8(vld1q_s8(levels), high ? vshrq_n_u8(all, 4) : vandq_u8(all, vdupq_n_u8(15)));
}

/* As in codes_avx2.c. */
VEC_INLINE void bytes_of_nibbles(const int8_t *levels, const uint8_t *q, bool high, int8_t *code)
{
    vst1q_s8(code, levels_at(levels, q, high));
}

VEC_INLINE void bytes_of_pairs(const int8_t *levels, const uint8_t *q, int8_t *code)
{
    int8x16_t low = levels_at(levels, q, false), high = levels_at(levels, q, true);
    vst1q_s8(code, vzip1q_s8(low, high));
    vst1q_s8(code + 16, vzip2q_s8(low, high));
}

#include "codes_vec.h"

void codes_init_neon(codes_kernels *kernels)
{
    kernels->unpack = unpack;
    kernels->dots = dots;
}
