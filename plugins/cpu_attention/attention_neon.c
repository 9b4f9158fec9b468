/* cpu_attention, NEON. */
#include "vec_neon.h"

#include "attention_exp2.h"

#define VEC_ROWS 6
#define VEC_GROUPS 1
#define VEC_SUMS 16

/* NaN passes; beyond -126 powers are made of two factors. */
VEC_INLINE vec vec_exp2(vec a)
{
    vec x = vmaxq_f32(vec_set(-200.0f), a), n = vrndnq_f32(x), r = vec_sub(x, n);
    vec p = vec_set(attention_exp2_fine[0]);
    for (int i = 1; i < 7; i++)
        p = vec_fma(p, r, vec_set(attention_exp2_fine[i]));
    int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
    p = vec_mul(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
    return vec_mul(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23)));
}

#include "attention_vec.h"
#include "attention_grad_vec.h"

void attention_init_neon(attention_kernels *kernels)
{
    attention_init_vec(kernels);
}

void attention_grad_init_neon(attention_grad_kernels *kernels)
{
    attention_grad_init_vec(kernels);
}
