/* The arithmetic of the scan, AVX2. */
#include "vec_avx2.h"

#include "kernels_vec.h"

void scan_kernels_init_avx2(scan_kernels *kernels)
{
    set_table(kernels);
}
