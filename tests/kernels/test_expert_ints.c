/* Experts of quantised weights on tokens that are rounded to int8: a token has the same bits alone, among few and among
 * many, whatever the others are and whoever shares its experts; what cannot be rounded is multiplied as it is. In every
 * instruction set. */
#include "cpu_quantised/experts.h"
#include "product_parts.h"

#include "base/random.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tenon/half.h>
#include <unistd.h>

#define AVX512 (TN_CPU_AVX2 | TN_CPU_AVX512)

static const uint64_t tiers[] = {
    0, TN_CPU_AVX2, TN_CPU_AVX2 | TN_CPU_AVX_VNNI, AVX512, AVX512 | TN_CPU_AVX512_VNNI, TN_CPU_NEON};
static const tn_dtype types[] = {TN_Q4_0, TN_Q8_0, TN_Q4_K, TN_Q6_K, TN_MXFP4};

enum { TIERS = sizeof tiers / sizeof *tiers, TYPES = sizeof types / sizeof *types };
enum { HIDDEN = 256, INTER = 256, EXPERTS = 5, TOP_K = 2, TOKENS = 110, SOME = 64, NOT_A_NUMBER = 3, HUGE_ONE = 60 };

static uint16_t x[TOKENS][HIDDEN], y[TOKENS][HIDDEN], one[TOKENS][HIDDEN];
static float weight[TOKENS][TOP_K];
static int32_t id[TOKENS][TOP_K];
static tn_tensor matrices[3][EXPERTS];

/* Rows of finite codes, behind whose last nothing can be read: factors are small halves, or powers of two. */
static tn_tensor draw_matrix(random_state *r, tn_dtype dtype, int64_t out, int64_t in)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)out * tn_dtype_bytes(dtype, in);
    size_t all = (bytes + page - 1) / page * page, block = tn_dtype_bytes(dtype, tn_dtype_block_elements(dtype));
    char *at = mmap(NULL, all + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(at != MAP_FAILED && mprotect(at + all, page, PROT_NONE) == 0);
    unsigned char *rows = (unsigned char *)at + all - bytes;
    for (size_t i = 0; i < bytes; i++)
        rows[i] = (unsigned char)random_bits(r);
    for (size_t i = 0; i < bytes; i += block) {
        const uint16_t half[2] = {0x1400, 0x1f80}; /* numbers around zero */
        if (dtype == TN_MXFP4)
            rows[i] = 120;
        else
            memcpy(rows + i + (dtype == TN_Q6_K ? 208 : 0), half, dtype == TN_Q4_K ? 4 : 2);
    }
    return tn_tensor_dense(rows, dtype, 2, (int64_t[]){out, in});
}

static void draw(tn_dtype dtype)
{
    random_state r = {.state = dtype};
    for (int e = 0; e < EXPERTS; e++) {
        matrices[0][e] = draw_matrix(&r, dtype, INTER, HIDDEN);
        matrices[1][e] = draw_matrix(&r, TN_Q4_K, INTER, HIDDEN);
        matrices[2][e] = draw_matrix(&r, dtype, HIDDEN, INTER);
    }
    for (int t = 0; t < TOKENS; t++) {
        for (int i = 0; i < HIDDEN; i++)
            x[t][i] = tn_f32_to_bf16((float)random_nearly_normal(&r));
        for (int k = 0; k < TOP_K; k++)
            weight[t][k] = (float)random_nearly_normal(&r);
        id[t][0] = (int32_t)(random_bits(&r) % EXPERTS); /* one expert has all tokens, in two chunks */
        id[t][1] = id[t][0] == 1 ? 4 : 1;
    }
    x[NOT_A_NUMBER][7] = tn_f32_to_bf16(NAN);
    x[HUGE_ONE][9] = tn_f32_to_bf16(0x1p127f);
}

static tn_site site_of(void)
{
    tn_site site = {.size = sizeof site, .path = "experts", .op = TN_OP_MOE_EXPERTS};
    site.meaning[TN_AXIS_DTYPE] = TN_BF16;
    site.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    site.dim[TN_DIM_HIDDEN] = HIDDEN;
    site.dim[TN_DIM_INTER] = INTER;
    site.dim[TN_DIM_TOP_K] = TOP_K;
    site.param[TN_ROLE_GATE] = (tn_param){.tensors = matrices[0], .count = EXPERTS};
    site.param[TN_ROLE_UP] = (tn_param){.tensors = matrices[1], .count = EXPERTS};
    site.param[TN_ROLE_DOWN] = (tn_param){.tensors = matrices[2], .count = EXPERTS};
    return site;
}

/* count tokens from `first` on, results at the same places. */
static void forward(const experts_layer *layer, int first, int count, uint16_t (*to)[HIDDEN])
{
    const tn_plan plan = {.max_tokens = count, .threads = tn_thread_count()};
    size_t bytes = (experts_scratch_size(layer, count, plan.threads) + 63) / 64 * 64;
    void *scratch = aligned_alloc(64, bytes);
    memset(scratch, 0x7f, bytes);
    const tn_call call = {
        .size = sizeof call,
        .site = layer->site,
        .plan = &plan,
        .in = {tn_tensor_dense(x[first], TN_BF16, 2, (int64_t[]){count, HIDDEN}),
               tn_tensor_dense(weight[first], TN_F32, 2, (int64_t[]){count, TOP_K}),
               tn_tensor_dense(id[first], TN_I32, 2, (int64_t[]){count, TOP_K})},
        .out = {tn_tensor_dense(to[first], TN_BF16, 2, (int64_t[]){count, HIDDEN})},
        .scratch = scratch,
    };
    tn_error err;
    ck_assert_msg(experts_forward(layer, &call, &err) == TN_OK, "%s", err.message);
    free(scratch);
}

static void same_rows(int t, const char *what, int terms, tn_dtype dtype, size_t tier)
{
    ck_assert_msg(memcmp(y[t], one[t], sizeof *y) == 0, "%s, %d terms, tier %zu: token %d has other bits %s",
                  tn_dtype_name(dtype), terms, tier, t, what);
}

static float largest_of(const uint16_t *row)
{
    uint16_t largest = 0;
    for (int i = 0; i < HIDDEN; i++)
        if ((row[i] & 0x7fff) > largest)
            largest = row[i] & 0x7fff;
    return tn_bf16_to_f32(largest);
}

static void same_alone(const experts_layer *layer, tn_dtype dtype, size_t tier)
{
    static const int counts[] = {1, 3, 9, 40};
    forward(layer, 0, TOKENS, y);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int t = 0; t < SOME; t += counts[i])
            forward(layer, t, counts[i] < SOME - t ? counts[i] : SOME - t, one);
        for (int t = 0; t < SOME; t++)
            same_rows(t, "in another call", layer->terms, dtype, tier);
    }
}

/* Two terms, and what is unpacked for tiles, are other ways to nearly the same numbers. */
START_TEST(bits_are_those_of_a_token_alone)
{
    const size_t tier = (size_t)_i / TYPES;
    const tn_dtype dtype = types[_i % TYPES];
    const tn_site site = site_of();
    experts_layer layer;
    if (tiers[tier] & ~tn_cpu_flags())
        return;
    draw(dtype);
    for (int terms = 1; terms <= 2; terms++) {
        experts_open(&layer, &site, tiers[tier], terms, true);
        ck_assert(experts_check(&layer, INTS_DTYPES, NULL) == TN_OK);
        same_alone(&layer, dtype, tier);
        ck_assert(isnan(tn_bf16_to_f32(y[NOT_A_NUMBER][0])));
        experts_open(&layer, &site, tiers[tier], 2, false);
        forward(&layer, 0, TOKENS, one);
        for (int t = 0; t < TOKENS; t++) {
            const float bound = (terms == 1 ? 12 : 8) * 0x1p-8f * largest_of(one[t]); /* as the kernel declares */
            for (int i = 0; i < HIDDEN && t != NOT_A_NUMBER && t != HUGE_ONE; i++)
                ck_assert_msg(fabsf(tn_bf16_to_f32(y[t][i]) - tn_bf16_to_f32(one[t][i])) <= bound,
                              "%s, %d terms, tier %zu, token %d, output %d: %g, not %g", tn_dtype_name(dtype), terms,
                              tier, t, i, (double)tn_bf16_to_f32(y[t][i]), (double)tn_bf16_to_f32(one[t][i]));
        }
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("expert_ints", 0);
    tcase_add_loop_test(tc, bits_are_those_of_a_token_alone, 0, (int)TIERS * (int)TYPES);
    return suite_run();
}
