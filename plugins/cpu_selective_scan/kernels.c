/* The plain C reference, and the choice of a table. */
#include "kernels.h"

#include "scalar.h"

#include <string.h>

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

static void split_c(float *x, float *y, float step, float skip, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        y[i] = skip * x[i];
        x[i] *= step;
    }
}

static void scan_c(const scan_piece *s)
{
    for (int64_t r = 0; r < s->n; r++) {
        float *m = s->to + r * s->to_row;
        memmove(m, s->from + r * s->from_row, (size_t)s->p * sizeof *m);
        for (int64_t t = 0; t < s->tokens; t++)
            for (int64_t j = 0; j < s->p; j++) {
                m[j] = s->keep[t] * m[j] + s->b[t * s->n + r] * s->x[t * s->p + j];
                s->y[t * s->p + j] += s->c[t * s->n + r] * m[j];
            }
    }
}

void scan_kernels_init(scan_kernels *kernels, uint64_t cpu_flags)
{
    *kernels = (scan_kernels){.load = load_c, .store = store_c, .split = split_c, .scan = scan_c};
#if defined(__x86_64__)
    if (cpu_flags & TN_CPU_AVX2)
        scan_kernels_init_avx2(kernels);
    if (cpu_flags & TN_CPU_AVX512)
        scan_kernels_init_avx512(kernels);
#elif defined(__aarch64__)
    if (cpu_flags & TN_CPU_NEON)
        scan_kernels_init_neon(kernels);
#else
    (void)cpu_flags;
#endif
}
