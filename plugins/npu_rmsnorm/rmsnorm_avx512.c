/* RMS norm, AVX-512. */
#include "rmsnorm.h"

#include "vec_avx512.h"

#include "rmsnorm_vec.h"

void rmsnorm_kernels_init_avx512(rmsnorm_kernels *table)
{
    *table = vec_kernels;
}
