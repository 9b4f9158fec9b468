/* RMS norm, NEON. */
#include "rmsnorm.h"

#include "vec_neon.h"

#include "rmsnorm_vec.h"

static void rmsnorm_f32_neon(const rmsnorm_rows *a)
{
    forward_rows(a, TN_F32);
}

static void rmsnorm_bf16_neon(const rmsnorm_rows *a)
{
    forward_rows(a, TN_BF16);
}

static void rmsnorm_f16_neon(const rmsnorm_rows *a)
{
    forward_rows(a, TN_F16);
}

static void rmsnorm_backward_f32_neon(const rmsnorm_rows *a)
{
    backward_rows(a, TN_F32);
}

static void rmsnorm_backward_bf16_neon(const rmsnorm_rows *a)
{
    backward_rows(a, TN_BF16);
}

static void rmsnorm_backward_f16_neon(const rmsnorm_rows *a)
{
    backward_rows(a, TN_F16);
}

static void rmsnorm_add_blocks_f32_neon(const rmsnorm_blocks *b, int64_t begin, int64_t end)
{
    add_blocks(b, begin, end, TN_F32);
}

static void rmsnorm_add_blocks_bf16_neon(const rmsnorm_blocks *b, int64_t begin, int64_t end)
{
    add_blocks(b, begin, end, TN_BF16);
}

static void rmsnorm_add_blocks_f16_neon(const rmsnorm_blocks *b, int64_t begin, int64_t end)
{
    add_blocks(b, begin, end, TN_F16);
}

void rmsnorm_kernels_init_neon(rmsnorm_kernels *table)
{
    table->forward[TN_F32] = rmsnorm_f32_neon;
    table->forward[TN_BF16] = rmsnorm_bf16_neon;
    table->forward[TN_F16] = rmsnorm_f16_neon;
    table->backward[TN_F32] = rmsnorm_backward_f32_neon;
    table->backward[TN_BF16] = rmsnorm_backward_bf16_neon;
    table->backward[TN_F16] = rmsnorm_backward_f16_neon;
    table->add_blocks[TN_F32] = rmsnorm_add_blocks_f32_neon;
    table->add_blocks[TN_BF16] = rmsnorm_add_blocks_bf16_neon;
    table->add_blocks[TN_F16] = rmsnorm_add_blocks_f16_neon;
}
