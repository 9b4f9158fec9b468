/* RMS norm, NEON. */
#include "rmsnorm.h"

#include "vec_neon.h"

#include "rmsnorm_vec.h"

static void rmsnorm_f32_neon(const rmsnorm_rows *a)
{
    norm_rows(a, TN_F32);
}

static void rmsnorm_bf16_neon(const rmsnorm_rows *a)
{
    norm_rows(a, TN_BF16);
}

static void rmsnorm_f16_neon(const rmsnorm_rows *a)
{
    norm_rows(a, TN_F16);
}

static void add_rmsnorm_f32_neon(const rmsnorm_rows *a)
{
    add_norm_rows(a, TN_F32);
}

static void add_rmsnorm_bf16_neon(const rmsnorm_rows *a)
{
    add_norm_rows(a, TN_BF16);
}

static void add_rmsnorm_f16_neon(const rmsnorm_rows *a)
{
    add_norm_rows(a, TN_F16);
}

void rmsnorm_kernels_init_neon(rmsnorm_kernels *table)
{
    table->norm[TN_F32] = rmsnorm_f32_neon;
    table->norm[TN_BF16] = rmsnorm_bf16_neon;
    table->norm[TN_F16] = rmsnorm_f16_neon;
    table->add_norm[TN_F32] = add_rmsnorm_f32_neon;
    table->add_norm[TN_BF16] = add_rmsnorm_bf16_neon;
    table->add_norm[TN_F16] = add_rmsnorm_f16_neon;
}
