/* Rotary position embedding, AVX-512. */
#include "rope.h"

#include "vec_avx512.h"

#include "rope_vec.h"

static void rope_f32_avx512(const rope_token *t)
{
    rotate_heads(t, TN_F32);
}

static void rope_bf16_avx512(const rope_token *t)
{
    rotate_heads(t, TN_BF16);
}

static void rope_f16_avx512(const rope_token *t)
{
    rotate_heads(t, TN_F16);
}

void rope_kernels_init_avx512(rope_kernels *table)
{
    table->rotate[TN_F32] = rope_f32_avx512;
    table->rotate[TN_BF16] = rope_bf16_avx512;
    table->rotate[TN_F16] = rope_f16_avx512;
}
