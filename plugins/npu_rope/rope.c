/* The plain C reference, and the choice of a table. */
#include "rope.h"

#include "scalar.h"

/* Rotates the pair (a, b) by the angles (c1, s1) for the first and (c2, s2) for the second result:
 *   first = a c1 - b s1, second = b c2 + a s2
 * with each product and each sum rounded to dtype, as transformers does in the model's type; the complex form, and any
 * form with tables in f32, is in f32, and its one rounding is the store's. */
static void rotate(float *a, float *b, float c1, float s1, float c2, float s2, tn_dtype dtype)
{
    float first = scalar_round(*a * c1, dtype) - scalar_round(*b * s1, dtype);
    float second = scalar_round(*b * c2, dtype) + scalar_round(*a * s2, dtype);
    *a = first;
    *b = second;
}

static void rotate_head(const rope_token *t, const char *x, char *y, tn_dtype dtype)
{
    int64_t half = t->rotary / 2;
    bool pairs_in = t->style != TN_ROPE_HALF && t->style != TN_ROPE_HALF_NARROW;
    bool pairs_out = t->style == TN_ROPE_INTERLEAVED || t->style == TN_ROPE_COMPLEX;
    for (int64_t i = 0; i < half; i++) {
        /* Only the half form has angles of its own for the second half. */
        int64_t second = t->style == TN_ROPE_HALF ? i + half : i;
        float a = scalar_load(x, pairs_in ? 2 * i : i, dtype);
        float b = scalar_load(x, pairs_in ? 2 * i + 1 : i + half, dtype);
        rotate(&a, &b, scalar_load(t->cos, i, t->table), scalar_load(t->sin, i, t->table),
               scalar_load(t->cos, second, t->table), scalar_load(t->sin, second, t->table),
               t->style == TN_ROPE_COMPLEX ? TN_F32 : t->table);
        scalar_store(y, pairs_out ? 2 * i : i, dtype, a);
        scalar_store(y, pairs_out ? 2 * i + 1 : i + half, dtype, b);
    }
    size_t size = dtype == TN_F32 ? 4 : 2, rotated = (size_t)t->rotary * size;
    if (y != x)
        memcpy(y + rotated, x + rotated, (size_t)t->head * size - rotated);
}

static void rotate_heads(const rope_token *t, tn_dtype dtype)
{
    for (int64_t h = 0; h < t->heads; h++)
        rotate_head(t, t->x + h * t->x_step, t->y + h * t->y_step, dtype);
}

static void rope_f32_c(const rope_token *t)
{
    rotate_heads(t, TN_F32);
}

static void rope_bf16_c(const rope_token *t)
{
    rotate_heads(t, TN_BF16);
}

static void rope_f16_c(const rope_token *t)
{
    rotate_heads(t, TN_F16);
}

void rope_kernels_init(rope_kernels *table, uint64_t cpu_flags)
{
    *table = (rope_kernels){.rotate = {[TN_F32] = rope_f32_c, [TN_BF16] = rope_bf16_c, [TN_F16] = rope_f16_c}};
#if defined(__x86_64__)
    if (cpu_flags & TN_CPU_AVX2)
        rope_kernels_init_avx2(table);
    if (cpu_flags & TN_CPU_AVX512)
        rope_kernels_init_avx512(table);
#elif defined(__aarch64__)
    if (cpu_flags & TN_CPU_NEON)
        rope_kernels_init_neon(table);
#else
    (void)cpu_flags;
#endif
}
