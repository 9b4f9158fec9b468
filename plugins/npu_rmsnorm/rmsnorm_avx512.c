/* RMS norm, AVX-512. */
#include "rmsnorm.h"

#include "vec_avx512.h"

#include "rmsnorm_vec.h"

static void rmsnorm_f32_avx512(const rmsnorm_rows *a)
{
    norm_rows(a, TN_F32);
}

static void rmsnorm_bf16_avx512(const rmsnorm_rows *a)
{
    norm_rows(a, TN_BF16);
}

static void rmsnorm_f16_avx512(const rmsnorm_rows *a)
{
    norm_rows(a, TN_F16);
}

static void add_rmsnorm_f32_avx512(const rmsnorm_rows *a)
{
    add_norm_rows(a, TN_F32);
}

static void add_rmsnorm_bf16_avx512(const rmsnorm_rows *a)
{
    add_norm_rows(a, TN_BF16);
}

static void add_rmsnorm_f16_avx512(const rmsnorm_rows *a)
{
    add_norm_rows(a, TN_F16);
}

void rmsnorm_kernels_init_avx512(rmsnorm_kernels *table)
{
    table->norm[TN_F32] = rmsnorm_f32_avx512;
    table->norm[TN_BF16] = rmsnorm_bf16_avx512;
    table->norm[TN_F16] = rmsnorm_f16_avx512;
    table->add_norm[TN_F32] = add_rmsnorm_f32_avx512;
    table->add_norm[TN_BF16] = add_rmsnorm_bf16_avx512;
    table->add_norm[TN_F16] = add_rmsnorm_f16_avx512;
}
