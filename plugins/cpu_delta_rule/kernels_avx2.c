/* The arithmetic of the delta rule, AVX2. */
#include "vec_avx2.h"

#include "kernels_vec.h"

void delta_kernels_init_avx2(delta_kernels *kernels)
{
    set_table(kernels);
}
