/* Rotary position embedding, AVX-512 with BF16 instructions: bf16 is rounded by one of them. */
#include "rope.h"

#include "vec_avx512.h"

#include "rope_vec.h"

static void rope_bf16_avx512bf16(const rope_token *t)
{
    rotate_heads(t, TN_BF16);
}

void rope_kernels_init_avx512bf16(rope_kernels *table)
{
    table->rotate[TN_BF16] = rope_bf16_avx512bf16;
}
