/* cpu_attention, AVX-512. */
#include "attention_avx512.h"

#define VEC_ROWS 6
#define VEC_GROUPS 4
#define VEC_SUMS 16

INLINE vec vec_exp2(vec a)
{
    return exp2_by(attention_exp2_fine, 7, a);
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
