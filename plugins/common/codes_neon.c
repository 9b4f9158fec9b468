/* Decoding quantised weights, NEON (AArch64). */
#include "vec_neon.h"

VEC_INLINE float half_value(const char *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    half = (half & 0x7fff) > 0x7c00 ? 0x7e00 : half; /* a NaN that rounding to bf16 leaves one */
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

/* As in codes_avx2.h. */
typedef int8x16x2_t bytes;

VEC_INLINE bytes bytes_load(const void *p)
{
    return (bytes){{vld1q_s8(p), vld1q_s8((const int8_t *)p + 16)}};
}

VEC_INLINE bytes bytes_and(bytes a, int mask)
{
    int8x16_t m = vdupq_n_s8((int8_t)mask);
    return (bytes){{vandq_s8(a.val[0], m), vandq_s8(a.val[1], m)}};
}

VEC_INLINE bytes bytes_or(bytes a, bytes b)
{
    return (bytes){{vorrq_s8(a.val[0], b.val[0]), vorrq_s8(a.val[1], b.val[1])}};
}

VEC_INLINE int8x16_t shifted(int8x16_t a, int bits)
{
    return vreinterpretq_s8_u8(vshlq_u8(vreinterpretq_u8_s8(a), vdupq_n_s8((int8_t)bits)));
}

VEC_INLINE bytes bytes_right(bytes a, int bits)
{
    return (bytes){{shifted(a.val[0], -bits), shifted(a.val[1], -bits)}};
}

VEC_INLINE bytes bytes_left(bytes a, int bits)
{
    return (bytes){{shifted(a.val[0], bits), shifted(a.val[1], bits)}};
}

VEC_INLINE bytes bytes_bits(const uint8_t *p, int apart, int value)
{
    const uint8x8_t bit = vcreate_u8(UINT64_C(0x8040201008040201));
    uint8x16_t low = vcombine_u8(vtst_u8(vdup_n_u8(p[0]), bit), vtst_u8(vdup_n_u8(p[1]), bit));
    uint8x16_t high = vcombine_u8(vtst_u8(vdup_n_u8(p[2]), bit), vtst_u8(vdup_n_u8(p[3]), bit));
    (void)apart;
    return bytes_and((bytes){{vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)}}, value);
}

VEC_INLINE bytes bytes_split(const uint8_t *p, int apart)
{
    (void)apart;
    int8x16_t q = vreinterpretq_s8_u8(vld1q_u8(p));
    return (bytes){{q, shifted(q, -4)}};
}

VEC_INLINE bytes bytes_pairs(const uint8_t *p)
{
    bytes q = bytes_split(p, 0);
    return (bytes){{vzip1q_s8(q.val[0], q.val[1]), vzip2q_s8(q.val[0], q.val[1])}};
}

VEC_INLINE bytes bytes_look_up(const int8_t *levels, bytes a)
{
    int8x16_t table = vld1q_s8(levels);
    return (bytes){
        {vqtbl1q_s8(table, vreinterpretq_u8_s8(a.val[0])), vqtbl1q_s8(table, vreinterpretq_u8_s8(a.val[1]))}};
}

typedef struct quads {
    int32x4_t half[2];
} quads;

typedef int32x4_t ints_vec;

VEC_INLINE int32x4_t quads_of(int8x16_t a, int8x16_t b)
{
    int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_s8(vget_high_s8(a), vget_high_s8(b));
    return vpadalq_s16(vpaddlq_s16(low), high);
}

VEC_INLINE quads quads_dot(bytes code, bytes x, bool below)
{
    (void)below; /* what is not negative is below 128, too                                             */
    return (quads){{quads_of(code.val[0], x.val[0]), quads_of(code.val[1], x.val[1])}};
}

VEC_INLINE void quads_turn(const quads q[VEC_LANES], ints_vec out[2])
{
    for (int i = 0; i < 2; i++)
        out[i] = vpaddq_s32(vpaddq_s32(q[0].half[i], q[1].half[i]), vpaddq_s32(q[2].half[i], q[3].half[i]));
}

VEC_INLINE vec vec_of_ints(ints_vec a)
{
    return vcvtq_f32_s32(a);
}

typedef uint32x4_t words_vec;

VEC_INLINE vec vec_of_halves(words_vec a)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(a)));
}

#include "codes_ints.h"

void codes_init_neon(codes_kernels *kernels)
{
    kernels->unpack = unpack;
    init_ints(kernels);
}
