/* The values of quantised elements are those of tests/data/blocks, bit for bit: random blocks and blocks at the edges
 * of each type, as gguf-py and torch read them. Every range of a row gives the same values as the whole. */
#include "base/blocks.h"
#include "suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static bool same_bits(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) /* what a NaN carries is not said */
        if (memcmp(a + i, b + i, sizeof *a) != 0 && (a[i] == a[i] || b[i] == b[i]))
            return false;
    return true;
}

typedef struct golden {
    tn_safetensors *file;
    tn_dtype dtype;
    tn_tensor blocks, values; /* [blocks, bytes] and [blocks, values]                              */
} golden;

/* Of the index-th type that has data there; false behind the last. */
static bool golden_get(golden *g, size_t index)
{
    for (size_t i = 0; i < tn_safetensors_count(g->file); i++) {
        const char *name = tn_safetensors_name(g->file, i), *end = strstr(name, ".blocks");
        char type[32];
        if (!end || index--)
            continue;
        snprintf(type, sizeof type, "%.*s", (int)(end - name), name);
        g->dtype = tn_dtype_parse(type);
        ck_assert_msg(g->dtype != TN_DTYPE_NONE, "%s", type);
        ck_assert(tn_safetensors_get(g->file, name, &g->blocks));
        snprintf(type + strlen(type), sizeof type - strlen(type), ".values");
        ck_assert(tn_safetensors_get(g->file, type, &g->values));
        return true;
    }
    return false;
}

static golden golden_open(void)
{
    tn_error err = TN_ERROR_INIT;
    golden g = {.file = tn_safetensors_open("tests/data/blocks/blocks.safetensors", &err)};
    ck_assert_msg(g.file != NULL, "%s", err.message);
    return g;
}

START_TEST(blocks_have_the_bits_of_the_golden_values)
{
    golden g = golden_open();
    int types = 0;
    for (size_t i = 0; golden_get(&g, i); i++, types++) {
        int64_t n = tn_tensor_count(&g.values);
        float *values = malloc((size_t)n * sizeof *values);
        ck_assert_ptr_nonnull(values);
        ck_assert_uint_eq(tn_dtype_bytes(g.dtype, n), (size_t)tn_tensor_count(&g.blocks));
        blocks_to_f32(g.dtype, g.blocks.data, 0, n, values);
        ck_assert_msg(same_bits(values, g.values.data, n), "%s", tn_dtype_name(g.dtype));
        free(values);
    }
    ck_assert_int_eq(types, 28);
    tn_safetensors_close(g.file);
}
END_TEST

/* From any element to any other, with nothing written beyond. */
START_TEST(a_part_of_a_row_is_part_of_its_values)
{
    golden g = golden_open();
    for (size_t i = 0; golden_get(&g, i); i++) {
        int64_t n = tn_tensor_count(&g.values), step = tn_dtype_block_elements(g.dtype) > 32 ? 61 : 13;
        const float *expected = g.values.data;
        for (int64_t first = 0; first < n; first += step)
            for (int64_t count = 0; first + count <= n && count < 600; count += step - 4) {
                float values[601];
                values[count] = 7;
                blocks_to_f32(g.dtype, g.blocks.data, first, count, values);
                ck_assert_msg(same_bits(values, expected + first, count) && values[count] == 7, "%s %lld %lld",
                              tn_dtype_name(g.dtype), (long long)first, (long long)count);
            }
    }
    tn_safetensors_close(g.file);
}
END_TEST

/* What has no golden data: plain numbers, and a zero point is not subtracted. */
START_TEST(codes_that_are_numbers)
{
    static const uint8_t bytes[4] = {0xf0, 0x87, 0x80, 0x7f};
    static const float u4[8] = {0, 15, 7, 8, 0, 8, 15, 7}, i4[8] = {0, -1, 7, -8, 0, -8, -1, 7};
    static const float i8[4] = {-16, -121, -128, 127}, u8[4] = {240, 135, 128, 127};
    float out[8];
    blocks_to_f32(TN_U4, bytes, 0, 8, out);
    ck_assert(same_bits(out, u4, 8));
    blocks_to_f32(TN_I4, bytes, 1, 7, out);
    ck_assert(same_bits(out, i4 + 1, 7));
    blocks_to_f32(TN_I8, bytes, 0, 4, out);
    ck_assert(same_bits(out, i8, 4));
    blocks_to_f32(TN_U8, bytes, 0, 4, out);
    ck_assert(same_bits(out, u8, 4));
    static const uint16_t bf16[2] = {0x3f80, 0xc000};
    blocks_to_f32(TN_BF16, bf16, 1, 1, out);
    ck_assert_float_eq(out[0], -2.0f);
}
END_TEST

START_TEST(which_types_a_weight_may_have)
{
    ck_assert(blocks_is_quantised(TN_Q4_K) && blocks_is_quantised(TN_I8) && blocks_is_quantised(TN_NF4));
    ck_assert(!blocks_is_quantised(TN_F32) && !blocks_is_quantised(TN_U8) && !blocks_is_quantised(TN_F8_E8M0));
}
END_TEST

int main(void)
{
    suite_add(suite_open("blocks", 0), blocks_have_the_bits_of_the_golden_values, a_part_of_a_row_is_part_of_its_values,
              codes_that_are_numbers, which_types_a_weight_may_have);
    return suite_run();
}
