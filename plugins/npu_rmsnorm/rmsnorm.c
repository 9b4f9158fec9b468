/* The plain C reference, and the choice of a table. */
#include "rmsnorm.h"

#include <math.h>

#include "scalar.h"

/* Element i belongs to partial sum i % PARTS; these are then added in halves. Every variant adds in this order. */
enum { PARTS = 64 };

static float join(float *part)
{
    for (int half = PARTS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

static char *row_of(const rmsnorm_rows *a, rmsnorm_tensor tensor, int64_t row)
{
    return a->row[tensor] ? a->row[tensor] + row * a->step[tensor] : NULL;
}

static float silu(float v)
{
    return v / (1.0f + expf(-v));
}

/* The derivative: s (1 + v (1 - s)) with s = sigmoid(v). */
static float silu_slope(float v)
{
    float s = 1.0f / (1.0f + expf(-v));
    return s * (1.0f + v * (1.0f - s));
}

static float weight_at(const rmsnorm_rows *a, int64_t i, tn_dtype dtype)
{
    if (a->norm == TN_NORM_NO_WEIGHT)
        return 1.0f;
    float w = scalar_load(a->weight, i, dtype);
    return a->norm == TN_NORM_1_PLUS_W ? 1.0f + w : w;
}

/* x, or rnd(x + r): what is normalised. */
static float value_at(const char *x, const char *r, int64_t i, tn_dtype dtype)
{
    float v = scalar_load(x, i, dtype);
    return r ? scalar_round(v + scalar_load(r, i, dtype), dtype) : v;
}

static float inverse_norm(const rmsnorm_rows *a, float *squares)
{
    return 1.0f / sqrtf(join(squares) / (float)a->width + a->eps);
}

/* y = rnd(n w silu(gate)), n = v / sqrt(mean(v^2) + eps), rounded for TN_NORM_W; what a variant lacks is 1. */
static void forward_row(const rmsnorm_rows *a, int64_t row, tn_dtype dtype)
{
    const char *x = row_of(a, NORM_X, row), *r = row_of(a, NORM_R, row), *gate = row_of(a, NORM_GATE, row);
    char *y = row_of(a, NORM_Y, row), *sum = row_of(a, NORM_SUM, row);
    float squares[PARTS] = {0};
    for (int64_t i = 0; i < a->width; i++) {
        float v = value_at(x, r, i, dtype);
        if (r)
            scalar_store(sum, i, dtype, v);
        squares[i % PARTS] += v * v;
    }
    float scale = inverse_norm(a, squares);
    for (int64_t i = 0; i < a->width; i++) {
        float n = scalar_load(r ? sum : x, i, dtype) * scale;
        n = (a->norm == TN_NORM_W ? scalar_round(n, dtype) : n) * weight_at(a, i, dtype);
        scalar_store(y, i, dtype, gate ? n * silu(scalar_load(gate, i, dtype)) : n);
    }
}

float rmsnorm_mean(const rmsnorm_rows *a, int64_t row, tn_dtype dtype, float scale)
{
    const char *x = row_of(a, NORM_X, row), *r = row_of(a, NORM_R, row), *gate = row_of(a, NORM_GATE, row);
    const char *dy = row_of(a, NORM_DY, row);
    double sum = 0;
    for (int64_t i = 0; i < a->width; i++) {
        double h = (double)scalar_load(dy, i, dtype) * (double)weight_at(a, i, dtype);
        sum += (gate ? h * (double)silu(scalar_load(gate, i, dtype)) : h) * (double)value_at(x, r, i, dtype);
    }
    return (float)(sum * (double)scale / (double)a->width);
}

/* With s = 1 / sqrt(mean(v^2) + eps), n = v s, h = dy w silu(gate) and m = mean(h n):
 *   dx = dr = s (h - n m) + dsum, dw += dy n silu(gate), dgate = dy n w silu'(gate). */
static void backward_row(const rmsnorm_rows *a, int64_t row, tn_dtype dtype)
{
    const char *x = row_of(a, NORM_X, row), *r = row_of(a, NORM_R, row), *gate = row_of(a, NORM_GATE, row);
    const char *dy = row_of(a, NORM_DY, row), *dsum = row_of(a, NORM_DSUM, row);
    char *dx = row_of(a, NORM_DX, row), *dr = row_of(a, NORM_DR, row), *dgate = row_of(a, NORM_DGATE, row);
    float squares[PARTS] = {0}, products[PARTS] = {0};
    for (int64_t i = 0; i < a->width; i++) {
        float v = value_at(x, r, i, dtype), h = scalar_load(dy, i, dtype) * weight_at(a, i, dtype);
        squares[i % PARTS] += v * v;
        products[i % PARTS] += (gate ? h * silu(scalar_load(gate, i, dtype)) : h) * v;
    }
    float scale = inverse_norm(a, squares), mean = join(products) * scale / (float)a->width;
    if (!isfinite(mean))
        mean = rmsnorm_mean(a, row, dtype, scale);
    for (int64_t i = 0; i < a->width; i++) {
        float n = value_at(x, r, i, dtype) * scale, g = scalar_load(dy, i, dtype), w = weight_at(a, i, dtype);
        float z = gate ? scalar_load(gate, i, dtype) : 0.0f, active = gate ? g * silu(z) : g;
        float d = scale * (active * w - n * mean) + (dsum ? scalar_load(dsum, i, dtype) : 0.0f);
        if (a->dw)
            a->dw[i] += active * n;
        if (dgate)
            scalar_store(dgate, i, dtype, g * n * w * silu_slope(z));
        if (dx)
            scalar_store(dx, i, dtype, d);
        if (dr)
            scalar_store(dr, i, dtype, d);
    }
}

static void forward_rows(const rmsnorm_rows *a)
{
    for (int64_t row = 0; row < a->count; row++)
        forward_row(a, row, a->dtype);
}

static void backward_rows(const rmsnorm_rows *a)
{
    for (int64_t row = 0; row < a->count; row++)
        backward_row(a, row, a->dtype);
}

static void add_blocks(const rmsnorm_blocks *b, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        float total = 0.0f;
        for (int64_t block = 0; block < b->count; block++)
            total += b->sums[block * b->step + i];
        scalar_store(b->dw, i, b->dtype, total);
    }
}

void rmsnorm_kernels_init(rmsnorm_kernels *table, uint64_t cpu_flags)
{
    *table = (rmsnorm_kernels){forward_rows, backward_rows, add_blocks};
#if defined(__x86_64__)
    if (cpu_flags & TN_CPU_AVX2)
        rmsnorm_kernels_init_avx2(table);
    if (cpu_flags & TN_CPU_AVX512)
        rmsnorm_kernels_init_avx512(table);
    if (cpu_flags & TN_CPU_AVX512_BF16)
        rmsnorm_kernels_init_avx512bf16(table);
#elif defined(__aarch64__)
    if (cpu_flags & TN_CPU_NEON)
        rmsnorm_kernels_init_neon(table);
#else
    (void)cpu_flags;
#endif
}
