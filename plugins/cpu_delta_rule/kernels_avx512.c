/* The arithmetic of the delta rule, AVX-512. */
#include "vec_avx512.h"

#include "kernels_vec.h"

void delta_kernels_init_avx512(delta_kernels *kernels)
{
    set_table(kernels);
}
