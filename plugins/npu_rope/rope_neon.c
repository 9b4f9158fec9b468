/* Rotary position embedding, NEON. */
#include "rope.h"

#include "vec_neon.h"

#include "rope_vec.h"

void rope_kernels_init_neon(rope_kernels *table)
{
    *table = vec_kernels;
}
