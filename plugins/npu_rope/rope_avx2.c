/* Rotary position embedding, AVX2. */
#include "rope.h"

#include "vec_avx2.h"

#include "rope_vec.h"

void rope_kernels_init_avx2(rope_kernels *table)
{
    *table = vec_kernels;
}
