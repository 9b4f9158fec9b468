/* RMS norm, AVX-512 with BF16 instructions: bf16 is rounded by one of them. */
#include "rmsnorm.h"

#include "vec_avx512.h"

#include "rmsnorm_vec.h"

static void rmsnorm_bf16_avx512bf16(const rmsnorm_rows *a)
{
    forward_rows(a, TN_BF16);
}

static void rmsnorm_backward_bf16_avx512bf16(const rmsnorm_rows *a)
{
    backward_rows(a, TN_BF16);
}

void rmsnorm_kernels_init_avx512bf16(rmsnorm_kernels *table)
{
    table->forward[TN_BF16] = rmsnorm_bf16_avx512bf16;
    table->backward[TN_BF16] = rmsnorm_backward_bf16_avx512bf16;
}
