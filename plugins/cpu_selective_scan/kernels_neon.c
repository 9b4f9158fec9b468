/* The arithmetic of the scan, NEON. */
#include "vec_neon.h"

#include "kernels_vec.h"

void scan_kernels_init_neon(scan_kernels *kernels)
{
    set_table(kernels);
}
