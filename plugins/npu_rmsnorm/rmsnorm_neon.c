/* RMS norm, NEON. */
#include "rmsnorm.h"

#include "vec_neon.h"

#include "rmsnorm_vec.h"

void rmsnorm_kernels_init_neon(rmsnorm_kernels *table)
{
    *table = vec_kernels;
}
