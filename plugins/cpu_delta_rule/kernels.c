/* The plain C reference, and the choice of a table. */
#include "kernels.h"

#include "scalar.h"

#include <math.h>

static void load_c(const void *from, tn_dtype dtype, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = scalar_load(from, i, dtype);
}

static void store_c(const float *from, tn_dtype dtype, int64_t n, void *to)
{
    for (int64_t i = 0; i < n; i++)
        scalar_store(to, i, dtype, from[i]);
}

static float dot_c(const float *x, const float *y, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void scale_c(float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

static void add_scaled_c(float *y, const float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

static void decays_c(float high, float low, float sign, const float *highs, const float *lows, int64_t n, float *e)
{
    for (int64_t j = 0; j < n; j++) {
        float x = sign * ((high - highs[j]) + (low - lows[j]));
        e[j] = x < DELTA_FORGOTTEN ? 0.0f : expf(x);
    }
}

static void token_c(const delta_token *t)
{
    for (int64_t c = 0; c < t->dv; c++)
        t->seen[c] = t->o[c] = 0;
    for (int64_t j = 0; j < t->dk; j++)
        for (int64_t c = 0; c < t->dv; c++) {
            t->to[j * t->to_row + c] = t->decay * t->from[j * t->from_row + c];
            t->seen[c] += t->k[j] * t->to[j * t->to_row + c];
        }
    for (int64_t c = 0; c < t->dv; c++)
        t->v[c] = t->beta * (t->v[c] - t->seen[c]);
    for (int64_t j = 0; j < t->dk; j++)
        for (int64_t c = 0; c < t->dv; c++) {
            t->to[j * t->to_row + c] += t->k[j] * t->v[c];
            t->o[c] += t->q[j] * t->to[j * t->to_row + c];
        }
}

static void product_c(const delta_product *p, float *panel)
{
    (void)panel;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            int64_t begin = p->form == DELTA_UPPER ? i : 0, end = p->form == DELTA_LOWER && i < p->k ? i + 1 : p->k;
            float sum = 0;
            for (int64_t k = begin; k < end; k++)
                sum += p->a[i * p->a_row + k * p->a_k] * p->b[k * p->b_k + j * p->b_col];
            if (p->scale != 0)
                sum += p->scale * p->from[i * p->from_row + j];
            p->c[i * p->c_row + j] = sum;
        }
}

static void solve_c(const float *l, int64_t l_row, int64_t n, float *x, int64_t x_row, int64_t width)
{
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = 0; j < i; j++)
            add_scaled_c(x + i * x_row, x + j * x_row, l[i * l_row + j], width);
}

void delta_kernels_init(delta_kernels *kernels, uint64_t cpu_flags)
{
    *kernels = (delta_kernels){.load = load_c,
                               .store = store_c,
                               .dot = dot_c,
                               .scale = scale_c,
                               .add_scaled = add_scaled_c,
                               .decays = decays_c,
                               .token = token_c,
                               .product = product_c,
                               .solve = solve_c};
#if defined(__x86_64__)
    if (cpu_flags & TN_CPU_AVX2)
        delta_kernels_init_avx2(kernels);
    if (cpu_flags & TN_CPU_AVX512)
        delta_kernels_init_avx512(kernels);
#elif defined(__aarch64__)
    if (cpu_flags & TN_CPU_NEON)
        delta_kernels_init_neon(kernels);
#else
    (void)cpu_flags;
#endif
}
