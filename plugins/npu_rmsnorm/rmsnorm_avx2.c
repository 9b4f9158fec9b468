/* RMS norm, AVX2. */
#include "rmsnorm.h"

#include "vec_avx2.h"

#include "rmsnorm_vec.h"

void rmsnorm_kernels_init_avx2(rmsnorm_kernels *table)
{
    *table = vec_kernels;
}
