/* cpu_attention, AVX-512. */
#include "attention_avx512.h"

#define VEC_ROWS 6
#define VEC_GROUPS 4
#define VEC_SUMS 16

INLINE vec vec_exp2(vec a)
{
    return exp2_by(attention_exp2_fine, 7, a);
}

INLINE void attention_transpose(vec v[VEC_LANES])
{
    __m512i w[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        w[i] = _mm512_castps_si512(v[i]);
    transpose_16x16(w);
    for (int i = 0; i < VEC_LANES; i++)
        v[i] = _mm512_castsi512_ps(w[i]);
}

#include "attention_vec.h"
#include "attention_grad_vec.h"

void attention_init_avx512(attention_kernels *kernels)
{
    attention_init_vec(kernels);
}

void attention_grad_init_avx512(attention_grad_kernels *kernels)
{
    attention_grad_init_vec(kernels);
}
