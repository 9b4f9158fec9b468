/* The arithmetic of the scan, AVX-512. */
#include "vec_avx512.h"

#include "kernels_vec.h"

void scan_kernels_init_avx512(scan_kernels *kernels)
{
    set_table(kernels);
}
