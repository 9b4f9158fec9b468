/* Rotary position embedding, AVX-512 with BF16 instructions: bf16 is rounded by one of them. */
#include "rope.h"

#include "vec_avx512.h"

#include "rope_vec.h"

void rope_kernels_init_avx512bf16(rope_kernels *table)
{
    *table = vec_kernels;
}
