/* Linear layers of quantised weights on tokens that are rounded to int8: a token has the same bits alone, among few and
 * among many, whatever the others are; what cannot be rounded is multiplied as it is. In every instruction set. */
#include "linear.h"
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

/* Terms that tokens are rounded to; scales beside codes are those of 2^shift columns. */
typedef struct weights {
    tn_dtype dtype;
    int terms, shift;
} weights;

static const weights types[] = {{TN_Q4_0, 1, 0}, {TN_Q5_0, 1, 0},   {TN_Q8_0, 1, 0},   {TN_Q2_K, 1, 0}, {TN_Q3_K, 1, 0},
                                {TN_Q4_K, 1, 0}, {TN_Q5_K, 1, 0},   {TN_Q6_K, 1, 0},   {TN_Q4_K, 2, 0}, {TN_Q6_K, 2, 0},
                                {TN_U4, 2, 4},   {TN_U4, 2, 5},     {TN_U4, 2, 7},     {TN_I8, 2, 4},   {TN_I8, 2, 6},
                                {TN_E2M1, 2, 4}, {TN_IQ4_NL, 1, 0}, {TN_IQ4_XS, 1, 0}, {TN_MXFP4, 2, 0}};

enum { TIERS = sizeof tiers / sizeof *tiers, TYPES = sizeof types / sizeof *types };
enum { IN = 768, OUT = 77, TOKENS = 300, SOME = 64, NOT_A_NUMBER = 3, HUGE_ONE = 50 };

static float factor[OUT * IN / 16];
static uint8_t zero[OUT * IN / 16];
static tn_tensor scale, zero_point;

static uint16_t x[TOKENS][IN], y[TOKENS][OUT], one[TOKENS][OUT], bias[OUT];
static unsigned char *rows; /* behind the last one nothing can be read */

/* The last block of 64 columns is half a one, where that can be. */
static int64_t in_of(tn_dtype dtype)
{
    return tn_dtype_block_elements(dtype) == 256 ? IN : IN - CODES_GROUP;
}

static void place_rows(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), all = (bytes + page - 1) / page * page;
    char *at = mmap(NULL, all + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(at != MAP_FAILED && mprotect(at + all, page, PROT_NONE) == 0);
    rows = (unsigned char *)at + all - bytes;
}

/* Finite codes of a type: its factors are small halves. */
static void draw(tn_dtype dtype)
{
    random_state r = {.state = dtype};
    size_t bytes = tn_dtype_bytes(dtype, in_of(dtype)), block = tn_dtype_bytes(dtype, tn_dtype_block_elements(dtype));
    size_t where = dtype == TN_Q6_K ? 208 : dtype == TN_Q3_K ? 108 : dtype == TN_Q2_K ? 80 : 0;
    place_rows(OUT * bytes);
    for (size_t i = 0; i < OUT * bytes; i++)
        rows[i] = (unsigned char)random_bits(&r);
    for (size_t at = 0; at < OUT * bytes; at += block) {
        const uint16_t half[2] = {0x2000, 0x1c00};
        if (dtype == TN_MXFP4)
            rows[at] = 120;
        else if (block > 16)
            memcpy(rows + at + where, half, dtype == TN_Q4_K || dtype == TN_Q5_K || dtype == TN_Q2_K ? 4 : 2);
    }
    for (int i = 0; i < OUT * IN / 16; i++) {
        factor[i] = 0.01f * (float)(1 + random_bits(&r) % 7);
        zero[i] = (uint8_t)(random_bits(&r) % 16);
    }
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < IN; i++)
            x[t][i] = tn_f32_to_bf16((float)random_nearly_normal(&r));
    x[NOT_A_NUMBER][7] = tn_f32_to_bf16(NAN);
    x[HUGE_ONE][9] = tn_f32_to_bf16(0x1p127f);
    for (int i = 0; i < OUT; i++)
        bias[i] = tn_f32_to_bf16((float)random_nearly_normal(&r));
}

static linear_layer layer_of(weights w, uint64_t flags, int32_t terms)
{
    const tn_dtype dtype = w.dtype;
    const int64_t groups = (in_of(dtype) + (1 << w.shift) - 1) >> w.shift;
    linear_layer layer = {
        .weight.bias = bias, .in = in_of(dtype), .out = OUT, .max_tokens = TOKENS, .threads = tn_thread_count()};
    layer.codes = (codes){.dtype = dtype, .data = (const char *)rows, .group_shift = 62};
    layer.codes.row_bytes = (int64_t)tn_dtype_bytes(dtype, in_of(dtype));
    if (w.shift) {
        scale = tn_tensor_dense(factor, TN_F32, 2, (int64_t[]){OUT, groups});
        zero_point = tn_tensor_dense(zero, dtype == TN_I8 ? TN_I8 : TN_U8, 2, (int64_t[]){OUT, groups});
        layer.codes.scale = &scale;
        layer.codes.zero = dtype == TN_E2M1 ? NULL : &zero_point;
        layer.codes.group_shift = w.shift;
    }
    layer.terms = terms;
    layer.many_ints = terms > 0;
    product_kernels_init(&layer.kernels, TN_BF16, flags);
    codes_kernels_init(&layer.unpacks, flags);
    return layer;
}

/* count tokens from `first` on, results at the same places. */
static void forward(const linear_layer *layer, int first, int count, uint16_t (*to)[OUT])
{
    void *scratch = aligned_alloc(64, (linear_scratch_size(layer) + 63) / 64 * 64);
    tn_tensor in = tn_tensor_dense(x[first], TN_BF16, 2, (int64_t[]){count, layer->in});
    in.stride[0] = IN;
    tn_tensor out = tn_tensor_dense(to[first], TN_BF16, 2, (int64_t[]){count, OUT});
    linear_forward(layer, &in, &out, scratch);
    free(scratch);
}

static void same_rows(int t, const char *what, tn_dtype dtype, size_t tier)
{
    ck_assert_msg(memcmp(y[t], one[t], sizeof *y) == 0, "%s, tier %zu: token %d has other bits %s",
                  tn_dtype_name(dtype), tier, t, what);
}

static float largest_of(const uint16_t *row)
{
    uint16_t largest = 0;
    for (int i = 0; i < OUT; i++)
        if ((row[i] & 0x7fff) > largest)
            largest = row[i] & 0x7fff;
    return tn_bf16_to_f32(largest);
}

START_TEST(bits_are_those_of_a_token_alone)
{
    static const int counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 40};
    const size_t tier = (size_t)_i / TYPES;
    const weights w = types[_i % TYPES];
    const tn_dtype dtype = w.dtype;
    if (tiers[tier] & ~tn_cpu_flags())
        return;
    draw(dtype);
    const linear_layer layer = layer_of(w, tiers[tier], w.terms), plain = layer_of(w, tiers[tier], 0);
    forward(&layer, 0, TOKENS, y);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int t = 0; t < SOME; t += counts[i])
            forward(&layer, t, counts[i] < SOME - t ? counts[i] : SOME - t, one);
        for (int t = 0; t < SOME; t++)
            same_rows(t, "in another call", dtype, tier);
    }
    forward(&plain, 0, TOKENS, one);
    same_rows(NOT_A_NUMBER, "than exactly", dtype, tier);
    same_rows(HUGE_ONE, "than exactly", dtype, tier);
    ck_assert(isnan(tn_bf16_to_f32(y[NOT_A_NUMBER][0])));
    for (int t = 0; t < TOKENS; t++) {
        const float bound = (w.terms == 1 ? 8 : 6) * 0x1p-8f * largest_of(one[t]); /* as the kernel declares */
        for (int i = 0; i < OUT && t != NOT_A_NUMBER && t != HUGE_ONE; i++)
            ck_assert_msg(fabsf(tn_bf16_to_f32(y[t][i]) - tn_bf16_to_f32(one[t][i])) <= bound,
                          "%s, tier %zu, token %d, output %d", tn_dtype_name(dtype), tier, t, i);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("linear_ints", 0);
    tcase_add_loop_test(tc, bits_are_those_of_a_token_alone, 0, (int)TIERS * (int)TYPES);
    return suite_run();
}
