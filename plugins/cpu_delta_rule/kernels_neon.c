/* The arithmetic of the delta rule, NEON. */
#include "vec_neon.h"

#include "kernels_vec.h"

void delta_kernels_init_neon(delta_kernels *kernels)
{
    set_table(kernels);
}
