/* Values as blocks: the bits of gguf-py for the types that it writes (tests/data/blocks/encoded.safetensors); for
 * those whose scales are searched for, an error no larger than that of the plain way to choose them. */
#include "base/blocks.h"
#include "quantize/encode.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static tn_safetensors *golden;
static tn_tensor x;

static void open_golden(void)
{
    tn_error err = TN_ERROR_INIT;
    golden = tn_safetensors_open("tests/data/blocks/encoded.safetensors", &err);
    ck_assert_msg(golden != NULL, "%s", err.message);
    ck_assert(tn_safetensors_get(golden, "x", &x));
}

static void close_golden(void)
{
    tn_safetensors_close(golden);
}

static const tn_dtype given[] = {TN_Q4_0, TN_Q5_0, TN_Q5_1, TN_Q8_0, TN_MXFP4};
static const tn_dtype searched[] = {TN_Q4_K, TN_Q5_K, TN_Q6_K, TN_IQ4_NL};

START_TEST(types_of_32_values_have_the_bits_of_gguf_py)
{
    tn_dtype dtype = given[_i];
    uint8_t out[10 * 272];
    tn_tensor want;
    int64_t count = tn_tensor_count(&x);
    ck_assert(tn_safetensors_get(golden, tn_dtype_name(dtype), &want));
    ck_assert_uint_le(tn_dtype_bytes(dtype, count), sizeof out);
    ck_assert_int_eq(tn_tensor_count(&want), (int64_t)tn_dtype_bytes(dtype, count));
    encode_row(dtype, x.data, NULL, count, out);
    for (int64_t i = 0; i < tn_tensor_count(&want); i++)
        ck_assert_msg(out[i] == ((const uint8_t *)want.data)[i], "%s byte %lld of block %lld", tn_dtype_name(dtype),
                      (long long)i % (long long)tn_dtype_block_bytes(dtype),
                      (long long)i / (long long)tn_dtype_block_bytes(dtype));
}
END_TEST

/* The sum of squares that the type is off. */
static double off_by(tn_dtype dtype, const float *row, int64_t count)
{
    uint8_t blocks[256 * 4];
    float back[256];
    double sum = 0;
    encode_row(dtype, row, NULL, count, blocks);
    blocks_to_f32(dtype, blocks, 0, count, back);
    for (int64_t i = 0; i < count; i++)
        sum += pow((double)back[i] - (double)row[i], 2);
    return sum;
}

/* What equal steps over the range of each group would be off by: a twelfth of a step's square. around: the range is
 * one around 0. */
static double steps_off_by(const float *row, int64_t count, int64_t group, int codes, bool around)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i += group) {
        double low = 0, high = 0;
        for (int64_t j = i; j < i + group; j++) {
            low = fmin(low, (double)row[j]);
            high = fmax(high, (double)row[j]);
        }
        if (around)
            low = -fmax(high, -low), high = -low;
        sum += (double)group * pow((high - low) / (codes - 1), 2) / 12;
    }
    return sum;
}

START_TEST(a_search_is_better_than_equal_steps)
{
    static const int64_t group[] = {32, 32, 16, 32};
    static const int codes[] = {16, 32, 64, 16};
    static const bool around[] = {false, false, true, true};
    const float *rows = x.data;
    for (int64_t r = 0; r < 3; r++)
        ck_assert_double_le(off_by(searched[_i], rows + 256 * r, 256),
                            steps_off_by(rows + 256 * r, 256, group[_i], codes[_i], around[_i]));
}
END_TEST

START_TEST(more_bits_are_nearer)
{
    static const tn_dtype order[] = {TN_Q4_0, TN_Q4_K, TN_Q5_K, TN_Q6_K, TN_Q8_0, TN_BF16, TN_F32};
    double before = INFINITY;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        double now = off_by(order[i], x.data, 256);
        ck_assert_msg(now < before, "%s: %g after %g", tn_dtype_name(order[i]), now, before);
        before = now;
    }
}
END_TEST

/* Zeros, numbers below the normal ones, one value all over, one value alone: each type is off by less than
 * a hundredth of the largest. */
START_TEST(odd_rows)
{
    static const float values[] = {0, 1e-40f, -1e-40f, 1, -1, 48, -0.375f};
    for (tn_dtype d = 0; d < TN_DTYPE_COUNT; d++)
        for (size_t v = 0; encode_has(d) && v < sizeof values / sizeof *values; v++)
            for (int step = 1; step < 256; step *= 3) {
                float row[256] = {0}, back[256];
                uint8_t blocks[1024];
                for (int i = step / 2; i < 256; i += step)
                    row[i] = values[v];
                encode_row(d, row, NULL, 256, blocks);
                blocks_to_f32(d, blocks, 0, 256, back);
                for (int i = 0; i < 256; i++)
                    ck_assert_msg(fabsf(back[i] - row[i]) <= 0.01f * fabsf(values[v]) + 1e-38f, "%s: %g for %g",
                                  tn_dtype_name(d), (double)back[i], (double)row[i]);
            }
}
END_TEST

/* Every code that is a number is its own nearest value, and so is what lies up to half way to its neighbours. */
START_TEST(e4m3_is_the_nearest)
{
    for (int code = 0; code < 0x7e; code++) {
        uint8_t pair[2] = {(uint8_t)code, (uint8_t)(code + 1)};
        float value[2];
        blocks_to_f32(TN_F8_E4M3, pair, 0, 2, value);
        float half = (value[0] + value[1]) / 2;
        ck_assert_uint_eq(encode_e4m3(value[0]), code);
        ck_assert_uint_eq(encode_e4m3(nextafterf(half, 0)), code);
        ck_assert_uint_eq(encode_e4m3(nextafterf(half, 1000)), code + 1);
        ck_assert_uint_eq(encode_e4m3(half), code + (code & 1)); /* the even one */
        ck_assert_uint_eq(encode_e4m3(-value[1]), 0x80 | (code + 1));
    }
    ck_assert_uint_eq(encode_e4m3(1e30f), 0x7e);
    ck_assert_uint_eq(encode_e4m3(-INFINITY), 0xfe);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("encode", 0);
    tcase_add_checked_fixture(tcase, open_golden, close_golden);
    tcase_add_loop_test(tcase, types_of_32_values_have_the_bits_of_gguf_py, 0, sizeof given / sizeof *given);
    tcase_add_loop_test(tcase, a_search_is_better_than_equal_steps, 0, sizeof searched / sizeof *searched);
    suite_add(tcase, more_bits_are_nearer, odd_rows, e4m3_is_the_nearest);
    return suite_run();
}
