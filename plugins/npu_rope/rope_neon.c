/* Rotary position embedding, NEON. */
#include "rope.h"

#include "vec_neon.h"

#include "rope_vec.h"

static void rope_f32_neon(const rope_token *t)
{
    rotate_heads(t, TN_F32);
}

static void rope_bf16_neon(const rope_token *t)
{
    rotate_heads(t, TN_BF16);
}

static void rope_f16_neon(const rope_token *t)
{
    rotate_heads(t, TN_F16);
}

void rope_kernels_init_neon(rope_kernels *table)
{
    table->rotate[TN_F32] = rope_f32_neon;
    table->rotate[TN_BF16] = rope_bf16_neon;
    table->rotate[TN_F16] = rope_f16_neon;
}
