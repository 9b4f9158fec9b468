/* The plain C reference, and the choice of a table. */
#include "rope.h"

#include "scalar.h"

/* Rotates pair i, (a, b), by the angles (c1, s1) for the first and (c2, s2) for the second result. Products are rounded
 * to the type of the tables, as transformers does; results to that of x:
 *   first = a c1 - b s1, second = b c2 + a s2
 * The gradient of (a, b) for a gradient (g, h) of these is (g c1 + h s2, h c2 - g s1): the same with -s2 and -s1 in the
 * places of s1 and s2. */
static void rotate_pair(const rope_token *t, const char *x, char *y, int64_t i, tn_dtype dtype)
{
    int64_t half = t->rotary / 2, second = t->wide ? i + half : i;
    float a = scalar_load(x, t->pairs_in ? 2 * i : i, dtype);
    float b = scalar_load(x, t->pairs_in ? 2 * i + 1 : i + half, dtype);
    float c1 = scalar_load(t->cos, i, t->table), s1 = scalar_load(t->sin, i, t->table);
    float c2 = scalar_load(t->cos, second, t->table), s2 = scalar_load(t->sin, second, t->table);
    float first = scalar_round(a * c1, t->table) - scalar_round(b * (t->inverse ? -s2 : s1), t->table);
    float last = scalar_round(b * c2, t->table) + scalar_round(a * (t->inverse ? -s1 : s2), t->table);
    scalar_store(y, t->pairs_out ? 2 * i : i, dtype, first);
    scalar_store(y, t->pairs_out ? 2 * i + 1 : i + half, dtype, last);
}

static void rotate_head(const rope_token *t, const char *x, char *y, tn_dtype dtype)
{
    for (int64_t i = 0; i < t->rotary / 2; i++)
        rotate_pair(t, x, y, i, dtype);
    size_t size = dtype == TN_F32 ? 4 : 2, rotated = (size_t)t->rotary * size;
    if (y != x)
        memcpy(y + rotated, x + rotated, (size_t)t->head * size - rotated);
}

static void rotate(const rope_token *t)
{
    for (int64_t h = 0; h < t->heads; h++)
        rotate_head(t, t->x + h * t->x_step, t->y + h * t->y_step, t->dtype);
}

void rope_kernels_init(rope_kernels *table, uint64_t cpu_flags)
{
    *table = (rope_kernels){rotate};
#if defined(__x86_64__)
    if (cpu_flags & TN_CPU_AVX2)
        rope_kernels_init_avx2(table);
    if (cpu_flags & TN_CPU_AVX512)
        rope_kernels_init_avx512(table);
    if (cpu_flags & TN_CPU_AVX512_BF16)
        rope_kernels_init_avx512bf16(table);
#elif defined(__aarch64__)
    if (cpu_flags & TN_CPU_NEON)
        rope_kernels_init_neon(table);
#else
    (void)cpu_flags;
#endif
}
