/* Rotary position embedding, AVX-512. */
#include "rope.h"

#include "vec_avx512.h"

#include "rope_vec.h"

void rope_kernels_init_avx512(rope_kernels *table)
{
    *table = vec_kernels;
}
