/* RMS norm, AVX-512 with BF16 instructions: bf16 is rounded by one of them. */
#include "rmsnorm.h"

#include "vec_avx512.h"

#include "rmsnorm_vec.h"

void rmsnorm_kernels_init_avx512bf16(rmsnorm_kernels *table)
{
    *table = vec_kernels;
}
