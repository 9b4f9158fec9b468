/* cpu_attention, AVX2. */
#include "vec_avx2.h"

#include "attention_exp2.h"

#define VEC_ROWS 6
#define VEC_GROUPS 1
#define VEC_SUMS 8

/* NaN passes max as its second operand; beyond -126 powers are made of two factors. */
VEC_INLINE vec vec_exp2(vec a)
{
    vec x = _mm256_max_ps(vec_set(-200.0f), a);
    vec n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = vec_sub(x, n);
    vec p = vec_set(attention_exp2_fine[0]);
    for (int i = 1; i < 7; i++)
        p = vec_fma(p, r, vec_set(attention_exp2_fine[i]));
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_sub_epi32(whole, half);
    p = vec_mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return vec_mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

#include "attention_vec.h"
#include "attention_grad_vec.h"

void attention_init_avx2(attention_kernels *kernels)
{
    attention_init_vec(kernels);
}

void attention_grad_init_avx2(attention_grad_kernels *kernels)
{
    attention_grad_init_vec(kernels);
}
