/* RMS norm, AVX2. */
#include "rmsnorm.h"

#include "vec_avx2.h"

#include "rmsnorm_vec.h"

static void rmsnorm_f32_avx2(const rmsnorm_rows *a)
{
    forward_rows(a, TN_F32);
}

static void rmsnorm_bf16_avx2(const rmsnorm_rows *a)
{
    forward_rows(a, TN_BF16);
}

static void rmsnorm_f16_avx2(const rmsnorm_rows *a)
{
    forward_rows(a, TN_F16);
}

static void rmsnorm_backward_f32_avx2(const rmsnorm_rows *a)
{
    backward_rows(a, TN_F32);
}

static void rmsnorm_backward_bf16_avx2(const rmsnorm_rows *a)
{
    backward_rows(a, TN_BF16);
}

static void rmsnorm_backward_f16_avx2(const rmsnorm_rows *a)
{
    backward_rows(a, TN_F16);
}

static void rmsnorm_add_blocks_f32_avx2(const rmsnorm_blocks *b, int64_t begin, int64_t end)
{
    add_blocks(b, begin, end, TN_F32);
}

static void rmsnorm_add_blocks_bf16_avx2(const rmsnorm_blocks *b, int64_t begin, int64_t end)
{
    add_blocks(b, begin, end, TN_BF16);
}

static void rmsnorm_add_blocks_f16_avx2(const rmsnorm_blocks *b, int64_t begin, int64_t end)
{
    add_blocks(b, begin, end, TN_F16);
}

void rmsnorm_kernels_init_avx2(rmsnorm_kernels *table)
{
    table->forward[TN_F32] = rmsnorm_f32_avx2;
    table->forward[TN_BF16] = rmsnorm_bf16_avx2;
    table->forward[TN_F16] = rmsnorm_f16_avx2;
    table->backward[TN_F32] = rmsnorm_backward_f32_avx2;
    table->backward[TN_BF16] = rmsnorm_backward_bf16_avx2;
    table->backward[TN_F16] = rmsnorm_backward_f16_avx2;
    table->add_blocks[TN_F32] = rmsnorm_add_blocks_f32_avx2;
    table->add_blocks[TN_BF16] = rmsnorm_add_blocks_bf16_avx2;
    table->add_blocks[TN_F16] = rmsnorm_add_blocks_f16_avx2;
}
