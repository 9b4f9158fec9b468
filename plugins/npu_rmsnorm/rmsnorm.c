/* The plain C reference, and the choice of a table. */
#include "rmsnorm.h"

#include <math.h>

#include "scalar.h"

/* Element i belongs to partial sum i % PARTS; these are then added in halves. Every variant adds in this order. */
enum { PARTS = 64 };

static float mean_square(const char *x, int64_t width, tn_dtype dtype)
{
    float part[PARTS] = {0};
    for (int64_t i = 0; i < width; i++) {
        float v = scalar_load(x, i, dtype);
        part[i % PARTS] += v * v;
    }
    for (int half = PARTS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0] / (float)width;
}

static float silu(float v)
{
    return v / (1.0f + expf(-v));
}

/* y = norm(x), one row: n = x / sqrt(mean(x^2) + eps) in f32, then what tn_norm says. */
static void norm_row(const rmsnorm_rows *a, const char *x, const char *gate, char *y, tn_dtype dtype)
{
    float scale = 1.0f / sqrtf(mean_square(x, a->width, dtype) + a->eps);
    for (int64_t i = 0; i < a->width; i++) {
        float n = scalar_load(x, i, dtype) * scale;
        float w = a->norm == TN_NORM_NO_WEIGHT ? 1.0f : scalar_load(a->weight, i, dtype);
        switch (a->norm) {
        case TN_NORM_W:
            n = scalar_round(n, dtype) * w;
            break;
        case TN_NORM_1_PLUS_W:
            n = n * (1.0f + w);
            break;
        case TN_NORM_W_F32:
            n = n * w;
            break;
        case TN_NORM_W_GATED:
            n = scalar_round(scalar_round(n, dtype) * w, dtype) * silu(scalar_load(gate, i, dtype));
            break;
        case TN_NORM_NO_WEIGHT:
            break;
        }
        scalar_store(y, i, dtype, n);
    }
}

static void norm_rows(const rmsnorm_rows *a, tn_dtype dtype)
{
    for (int64_t row = 0; row < a->count; row++) {
        const char *gate = a->norm == TN_NORM_W_GATED ? a->gate + row * a->gate_step : NULL;
        norm_row(a, a->x + row * a->x_step, gate, a->y + row * a->y_step, dtype);
    }
}

/* sum = x + r, rounded; y = norm(sum). */
static void add_norm_rows(const rmsnorm_rows *a, tn_dtype dtype)
{
    for (int64_t row = 0; row < a->count; row++) {
        const char *x = a->x + row * a->x_step, *r = a->r + row * a->r_step;
        char *sum = a->sum + row * a->sum_step;
        for (int64_t i = 0; i < a->width; i++)
            scalar_store(sum, i, dtype, scalar_load(x, i, dtype) + scalar_load(r, i, dtype));
        norm_row(a, sum, NULL, a->y + row * a->y_step, dtype);
    }
}

static void rmsnorm_f32_c(const rmsnorm_rows *a)
{
    norm_rows(a, TN_F32);
}

static void rmsnorm_bf16_c(const rmsnorm_rows *a)
{
    norm_rows(a, TN_BF16);
}

static void rmsnorm_f16_c(const rmsnorm_rows *a)
{
    norm_rows(a, TN_F16);
}

static void add_rmsnorm_f32_c(const rmsnorm_rows *a)
{
    add_norm_rows(a, TN_F32);
}

static void add_rmsnorm_bf16_c(const rmsnorm_rows *a)
{
    add_norm_rows(a, TN_BF16);
}

static void add_rmsnorm_f16_c(const rmsnorm_rows *a)
{
    add_norm_rows(a, TN_F16);
}

void rmsnorm_kernels_init(rmsnorm_kernels *table, uint64_t cpu_flags)
{
    *table = (rmsnorm_kernels){
        .norm = {[TN_F32] = rmsnorm_f32_c, [TN_BF16] = rmsnorm_bf16_c, [TN_F16] = rmsnorm_f16_c},
        .add_norm = {[TN_F32] = add_rmsnorm_f32_c, [TN_BF16] = add_rmsnorm_bf16_c, [TN_F16] = add_rmsnorm_f16_c},
    };
#if defined(__x86_64__)
    if (cpu_flags & TN_CPU_AVX2)
        rmsnorm_kernels_init_avx2(table);
    if (cpu_flags & TN_CPU_AVX512)
        rmsnorm_kernels_init_avx512(table);
#elif defined(__aarch64__)
    if (cpu_flags & TN_CPU_NEON)
        rmsnorm_kernels_init_neon(table);
#else
    (void)cpu_flags;
#endif
}
