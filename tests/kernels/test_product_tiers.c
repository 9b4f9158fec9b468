/* Which variant of the products each set of instruction sets and each type gets, what variants have in common, and how
 * threads share rows. */
#include "product_mlp.h"
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

/* Numbers whose sums depend on the order in which they are added. */
static void fill(float *to, int64_t n, tn_dtype dtype, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        float value = ((float)(seed >> 8) / 8388608.0f - 1.0f) * (seed & 16 ? 64.0f : 1.0f);
        if (dtype == TN_F32)
            to[i] = value;
        else
            ((uint16_t *)to)[i] = dtype == TN_BF16 ? tn_f32_to_bf16(value) : tn_f32_to_f16(value);
    }
}

/* Turned rows give the bits of tiles, whose rows are widened. */
static void check_turned(const product_kernels *k, int32_t rows, int32_t tokens, int64_t length)
{
    enum { MOST = 300 };
    static float weights[PRODUCT_TURNED_ROWS * MOST], tokens_of[PRODUCT_MAX_TOKENS * MOST];
    static _Alignas(64) float panel[PRODUCT_MAX_TOKENS * MOST], wide[PRODUCT_TURNED_ROWS][MOST];
    static float sums[PRODUCT_MAX_TOKENS * PRODUCT_TURNED_ROWS];
    const int32_t width = product_tile_width(k, tokens);
    const void *x[PRODUCT_MAX_TOKENS];
    char *w = (char *)weights;
    fill(weights, rows * length, k->dtype, 1);
    fill(tokens_of, tokens * length, k->dtype, 2);
    for (int32_t t = 0; t < tokens; t++)
        x[t] = (char *)tokens_of + t * length * 2;
    k->pack(x, tokens, width, length, panel);
    const product_block block = {.w = w, .step = length * 2, .rows = rows, .first = true};
    k->turned(&block, length, panel, width, tokens, sums);
    for (int32_t r = 0; r < rows; r++)
        k->widen(w + r * length * 2, length, wide[r]);
    for (int32_t first = 0; first < rows; first += k->variant->rows) {
        const void *of[PRODUCT_MAX_ROWS];
        for (int32_t r = 0; r < k->variant->rows; r++)
            of[r] = wide[first + r < rows ? first + r : rows - 1];
        float y[PRODUCT_MAX_TOKENS][PRODUCT_MAX_ROWS];
        void *to[PRODUCT_MAX_TOKENS];
        for (int32_t t = 0; t < tokens; t++)
            to[t] = y[t];
        const product_tile tile = {.w = of, .k = length, .panel = panel, .width = width};
        const product_finish finish = {TN_F32, TN_ACT_LINEAR, NULL};
        int32_t n = rows - first < k->variant->rows ? rows - first : k->variant->rows;
        k->tile_out(&tile, &finish, n, to, tokens);
        for (int32_t t = 0; t < tokens; t++)
            for (int32_t r = 0; r < n; r++)
                same_bits(k->variant->name, "a turned row", (uint32_t)(t * 64 + first + r),
                          tn_f32_bits(sums[t * PRODUCT_TURNED_ROWS + first + r]), tn_f32_bits(y[t][r]));
    }
}

START_TEST(turned_rows_have_the_sums_of_tiles)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
    static const int64_t lengths[] = {1, 17, 32, 128, 129, 300};
    static const int32_t rows[] = {1, 15, 16, 17, 32};
    int found = 0;
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        for (int d = 0; d < 3 && !(tiers[i].flags & ~(tn_cpu_flags() | TN_CPU_SLOW_BF16)); d++) {
            const product_kernels k = kernels_of(dtypes[d], tiers[i].flags, 0);
            bool widens = k.variant->native != dtypes[d] && strcmp(k.variant->name, "c") != 0;
            ck_assert_msg(widens == (k.turned != NULL), "%s %s", k.variant->name, tn_dtype_name(dtypes[d]));
            found += widens;
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths && widens; l++)
                for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                    for (int32_t tokens = 1; tokens <= k.variant->max_tokens; tokens++)
                        check_turned(&k, rows[r], tokens, lengths[l]);
        }
    if (!found)
        printf("SKIPPED turned rows: no instruction set here has them\n");
}
END_TEST

/* Threads that come in any order have all rows once, and what is said to follow a piece is the thread's next one. */
static void check_pieces(int64_t rows, int32_t threads, uint32_t seed)
{
    product_ranges all = {0};
    int64_t given = 0, next[48] = {0};
    char taken[5000] = {0};
    for (int32_t left = threads; left > 0;) {
        seed = seed * 1664525 + 1013904223;
        int32_t thread = (int32_t)((seed >> 8) % (uint32_t)threads);
        product_rows piece;
        if (next[thread] < 0)
            continue;
        if (!product_take_rows(&all, rows, thread, threads, &piece)) {
            next[thread] = -1;
            left--;
            continue;
        }
        ck_assert(piece.begin % product_unit == 0 && piece.begin < piece.end && piece.end <= piece.far);
        ck_assert_int_le(piece.far, rows);
        if (next[thread] > 0 && threads <= PRODUCT_RANGES && piece.far > piece.end)
            ck_assert_int_ge(piece.begin, next[thread]);
        next[thread] = piece.end;
        for (int64_t r = piece.begin; r < piece.end; r++)
            ck_assert_int_eq(taken[r]++, 0);
        given += piece.end - piece.begin;
    }
    ck_assert_int_eq(given, rows);
    product_rows piece;
    ck_assert(!product_take_rows(&all, rows, 0, threads, &piece));
    product_ranges_reset(&all);
    ck_assert(rows == 0 || product_take_rows(&all, rows, 0, threads, &piece));
}

START_TEST(threads_take_each_row_once)
{
    static const int64_t rows[] = {0, 1, 15, 16, 17, 100, 1000, 1024, 3072, 4999};
    static const int32_t threads[] = {1, 2, 3, 4, 7, 15, 16, 17, 40};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
            for (uint32_t seed = 0; seed < 20; seed++)
                check_pieces(rows[r], threads[t], seed);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("product tiers", 0);
    suite_add(tc, variants_follow_the_flags, few_tokens_go_by_dots, halves_are_those_of_the_header, tables_are_complete,
              sizes_fit, turned_rows_have_the_sums_of_tiles, threads_take_each_row_once);
    return suite_run();
}
