/* Which variant of the products each set of instruction sets and each type gets. */
#include "product.h"
#include "suite.h"

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/half.h>

/* What fills a table is compiled for the tier's own registers: it runs where these are. What needs more than the
 * registers is not called by that. */
static bool fills_here(uint64_t flags)
{
    return !(flags & (TN_CPU_AVX2 | TN_CPU_AVX512) & ~tn_cpu_flags());
}

static product_kernels kernels_of(tn_dtype dtype, uint64_t flags, int before)
{
    product_kernels kernels;
    memset(&kernels, before, sizeof kernels);
    product_kernels_init(&kernels, dtype, flags);
    return kernels;
}

#define AVX512 (TN_CPU_AVX2 | TN_CPU_AVX512)
#define BF16 (AVX512 | TN_CPU_AVX512_BF16)

typedef struct tier {
    uint64_t flags;
    const char *f32, *bf16, *f16;
} tier;

#if defined(__x86_64__)
/* f16 has no variant for TN_CPU_AVX512_FP16: its products accumulate in f16 (docs/performance.md). */
static const tier tiers[] = {
    {0, "c", "c", "c"},
    {TN_CPU_AVX2, "avx2", "avx2", "avx2"},
    {AVX512, "avx512", "avx512", "avx512"},
    {AVX512 | TN_CPU_AVX512_VNNI, "avx512", "avx512", "avx512"},
    {AVX512 | TN_CPU_AVX512_FP16, "avx512", "avx512", "avx512"},
    {BF16, "avx512", "avx512bf16", "avx512"},
    {BF16 | TN_CPU_AVX512_FP16, "avx512", "avx512bf16", "avx512"},
    {BF16 | TN_CPU_AVX512_FP16 | TN_CPU_SLOW_BF16, "avx512", "avx512", "avx512"},
    {BF16 | TN_CPU_AMX_BF16, "avx512", "amx", "avx512"},
    {BF16 | TN_CPU_AVX512_VNNI | TN_CPU_AVX512_FP16 | TN_CPU_AMX_BF16, "avx512", "amx", "avx512"},
    /* A tier without one that it builds on is not taken. */
    {AVX512 | TN_CPU_AMX_BF16, "avx512", "avx512", "avx512"},
    {TN_CPU_AVX2 | TN_CPU_AVX512_BF16 | TN_CPU_AMX_BF16, "avx2", "avx2", "avx2"},
    {TN_CPU_AMX_BF16, "c", "c", "c"},
};

#elif defined(__aarch64__)
static const tier tiers[] = {{0, "c", "c", "c"}, {TN_CPU_NEON, "neon", "neon", "neon"}};
#else
static const tier tiers[] = {{0, "c", "c", "c"}};
#endif

START_TEST(variants_follow_the_flags)
{
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        if (!fills_here(tiers[i].flags)) {
            printf("SKIPPED the tables of %s: not on this machine\n", tiers[i].f32);
            continue;
        }
        ck_assert_str_eq(kernels_of(TN_F32, tiers[i].flags, 0).variant->name, tiers[i].f32);
        ck_assert_str_eq(kernels_of(TN_BF16, tiers[i].flags, 0).variant->name, tiers[i].bf16);
        ck_assert_str_eq(kernels_of(TN_F16, tiers[i].flags, 0).variant->name, tiers[i].f16);
    }
}
END_TEST

START_TEST(few_tokens_go_by_dots)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        for (int d = 0; d < 3 && fills_here(tiers[i].flags); d++) {
            const product_kernels k = kernels_of(dtypes[d], tiers[i].flags, 0);
            for (int64_t tokens = 1; tokens < 20; tokens++) {
                product_choice choice = product_choose(dtypes[d], tokens, tiers[i].flags);
                ck_assert_str_eq(choice.variant->name, k.variant->name);
                ck_assert_str_eq(choice.way, tokens <= k.variant->few_tokens ? "dots" : "tiles");
            }
        }
}
END_TEST

/* Numbers of 16 bits as every variant reads and writes them, against tenon/half.h: all of them, and of f32 those around
 * every tie, below the normal numbers of both types included. */
static void same_bits(const char *name, const char *what, uint32_t from, uint32_t got, uint32_t wanted)
{
    if (got != wanted)
        ck_abort_msg("%s: %s of %08x is %08x, not %08x", name, what, from, got, wanted);
}

static void check_widen(const product_kernels *k, tn_dtype dtype)
{
    for (uint32_t first = 0; first < 0x10000; first += 16) {
        uint16_t half[16];
        float wide[16];
        for (uint32_t i = 0; i < 16; i++)
            half[i] = (uint16_t)(first + i);
        k->widen(half, 16, wide);
        for (uint32_t i = 0; i < 16; i++)
            same_bits(k->variant->name, "f32", half[i], tn_f32_bits(wide[i]),
                      tn_f32_bits(dtype == TN_BF16 ? tn_bf16_to_f32(half[i]) : tn_f16_to_f32(half[i])));
    }
}

static void check_narrow(const product_kernels *k, tn_dtype dtype)
{
    static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xb000, 0xffff};
    const product_finish finish = {dtype, TN_ACT_LINEAR, NULL};
    for (uint32_t high = 0; high < 0x10000; high++) {
        float wide[12];
        uint16_t half[12];
        for (int i = 0; i < 12; i++)
            wide[i] = tn_f32_from_bits(high << 16 | low[i]);
        k->row_out(wide, &finish, 12, half);
        for (int i = 0; i < 12; i++)
            same_bits(k->variant->name, tn_dtype_name(dtype), tn_f32_bits(wide[i]), half[i],
                      dtype == TN_BF16 ? tn_f32_to_bf16(wide[i]) : tn_f32_to_f16(wide[i]));
    }
}

START_TEST(halves_are_those_of_the_header)
{
    static const tn_dtype dtypes[] = {TN_BF16, TN_F16};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        for (int d = 0; d < 2 && !(tiers[i].flags & ~tn_cpu_flags()); d++) {
            const product_kernels k = kernels_of(dtypes[d], tiers[i].flags, 0);
            check_widen(&k, dtypes[d]);
            check_narrow(&k, dtypes[d]);
        }
}
END_TEST

/* The table depends on nothing but its arguments: not on what was there before, nor on what was asked for before. */
START_TEST(tables_are_complete)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        for (int d = 0; d < 3 && fills_here(tiers[i].flags); d++) {
            const product_kernels a = kernels_of(dtypes[d], tiers[i].flags, 0);
            kernels_of(dtypes[(d + 1) % 3], fills_here(~UINT64_C(0)) ? ~UINT64_C(0) : tn_cpu_flags(), 0);
            const product_kernels b = kernels_of(dtypes[d], tiers[i].flags, 0xff);
            const size_t padding = offsetof(product_kernels, dtype) + sizeof a.dtype;
            const size_t functions = offsetof(product_kernels, tiles_begin);
            ck_assert_int_eq(memcmp(&a, &b, padding), 0);
            ck_assert_int_eq(memcmp((const char *)&a + functions, (const char *)&b + functions, sizeof a - functions),
                             0);
        }
}
END_TEST

START_TEST(sizes_fit)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        for (int d = 0; d < 3 && fills_here(tiers[i].flags); d++) {
            const product_kernels k = kernels_of(dtypes[d], tiers[i].flags, 0);
            ck_assert_int_le(k.variant->rows, PRODUCT_MAX_ROWS);
            ck_assert_int_le(k.variant->max_tokens, PRODUCT_MAX_TOKENS);
            ck_assert_int_le(k.variant->few_tokens, PRODUCT_FEW_TOKENS);
            ck_assert(k.variant->min_tokens % k.variant->lanes == 0 && k.variant->tile_tokens % k.variant->lanes == 0 &&
                      k.variant->max_tokens % k.variant->lanes == 0);
            for (int64_t tokens = 1; tokens < 200;
                 tokens++) { /* tiles are as wide as the table allows, and cover all */
                int64_t covered = 0;
                while (covered < tokens) {
                    int32_t width = product_tile_width(&k, tokens - covered);
                    ck_assert(width % k.variant->lanes == 0 && width >= k.variant->min_tokens &&
                              width <= k.variant->max_tokens);
                    covered += width;
                }
            }
        }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("product tiers", 0);
    suite_add(tc, variants_follow_the_flags, few_tokens_go_by_dots, halves_are_those_of_the_header, tables_are_complete,
              sizes_fit);
    return suite_run();
}
