/* Folders that are quantised: every kind of matrix has the values that other libraries give it, and what is damaged is
 * one line that names file and tensor. */
#include "quantised_folder.h"
#include "base/convert.h"
#include "broken.h"
#include "op/weight.h"
#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG(text) "{\"quantization_config\": {" text "}}"
#define FP8 CONFIG("\"quant_method\": \"fp8\"")
#define FP8_BLOCK CONFIG("\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]")
#define GPTQ(more) CONFIG("\"quant_method\": \"gptq\", " more)
#define AWQ CONFIG("\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64")
#define BNB CONFIG("\"quant_method\": \"bitsandbytes\"")
#define CT(bits)                                                                                                       \
    CONFIG("\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"group_0\": {\"weights\": "                 \
           "{\"num_bits\": " bits "}}}")
#define CT_MIXED                                                                                                       \
    CONFIG("\"quant_method\": \"compressed-tensors\", \"format\": \"mixed-precision\", \"config_groups\": {"           \
           "\"a\": {\"weights\": {\"num_bits\": 3, \"group_size\": 64}}, "                                             \
           "\"b\": {\"weights\": {\"num_bits\": 8, \"group_size\": 128}}}")

static const struct {
    const char *name, *config;
    tn_dtype codes;
    int ulps; /* where two factors are rounded first, or in another order                           */
} cases[] = {
    {"fp8_block", FP8_BLOCK, TN_F8_E4M3, 0},
    {"fp8_block_ue8m0", FP8_BLOCK, TN_F8_E4M3, 0},
    {"fp8_rows", CT("8"), TN_F8_E4M3, 0},
    {"fp8_rows", FP8, TN_F8_E4M3, 0},
    {"fp8_tensor", CT("8"), TN_F8_E4M3, 0},
    {"ct_int2_g64", CT("2"), TN_U4, 0},
    {"ct_int3_g64", CT("3"), TN_U4, 0},
    {"ct_int3_g64", CT_MIXED, TN_U4, 0},
    {"ct_int4_channel", CT("4"), TN_U4, 0},
    {"ct_int4_g64", CT("4"), TN_U4, 0},
    {"ct_int4_g128_asym", CT("4"), TN_U4, 0},
    {"ct_int8_g64", CT("8"), TN_I8, 0},
    {"ct_int8_g64", CT_MIXED, TN_I8, 0},
    {"ct_int8_rows", CT("8"), TN_I8, 0},
    {"ct_nvfp4", CT("4"), TN_E2M1, 1},
    {"modelopt_nvfp4", CONFIG("\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\""), TN_E2M1, 2},
    {"gptq2_sym", GPTQ("\"bits\": 2, \"sym\": true"), TN_U4, 0},
    {"gptq4_sym", GPTQ("\"bits\": 4, \"sym\": true, \"group_size\": 128"), TN_U4, 0},
    {"gptq4_sym", GPTQ("\"bits\": 4, \"sym\": false"), TN_U4, 0},
    {"gptq8_sym", GPTQ("\"bits\": 8, \"sym\": true"), TN_I8, 0},
    {"gptq8_sym", GPTQ("\"bits\": 8"), TN_I8, 0},
    {"gptq4_one_group", GPTQ("\"bits\": 4, \"group_size\": -1"), TN_U4, 0},
    {"gptq4_asym_v1", GPTQ("\"bits\": 4, \"checkpoint_format\": \"gptq\""), TN_U4, 0},
    {"gptq4_asym_v2", GPTQ("\"bits\": 4, \"checkpoint_format\": \"gptq_v2\""), TN_U4, 0},
    {"gptq4_act_order", GPTQ("\"bits\": 4, \"sym\": true, \"desc_act\": true, \"group_size\": 64"), TN_U4, 0},
    {"awq4", AWQ, TN_U4, 0},
    {"bnb_nf4", BNB, TN_NF4, 1},
    {"bnb_nf4_plain", BNB, TN_NF4, 0},
    {"bnb_int8", BNB, TN_I8, 1},
};

static const tn_tensor *or_null(const tn_tensor *t)
{
    return t->dtype ? t : NULL;
}

static int32_t bits_of(float value)
{
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Every row against expected, whose rows are step apart. A zero of integers has no sign. */
static void expect_values(const shards *set, const char *name, const float *expected, int64_t step, int ulps)
{
    tn_tensor t;
    float row[512];
    ck_assert_msg(shards_get(set, name, &t), "%s", name);
    shards_parts p = shards_parts_of(set, name);
    weight w = weight_make(&t, or_null(&p.scale), or_null(&p.zero), or_null(&p.group));
    ck_assert_int_le(t.shape[1], 512);
    for (int64_t i = 0; i < t.shape[0]; i++) {
        weight_read(&w, i, 0, t.shape[1], TN_F32, row);
        for (int64_t j = 0; j < t.shape[1]; j++)
            ck_assert_msg(row[j] == expected[i * step + j] ||
                              llabs((long long)bits_of(row[j]) - bits_of(expected[i * step + j])) <= ulps,
                          "%s [%lld,%lld]: %.9g, expected %.9g", name, (long long)i, (long long)j, (double)row[j],
                          (double)expected[i * step + j]);
    }
}

START_TEST(values_of_every_kind)
{
    tn_error err = TN_ERROR_INIT;
    quantised_folder f = quantised_folder_of(cases[_i].name, "layers.0.m.");
    shards *set = quantised_folder_resolve(&f, cases[_i].config, &err);
    tn_tensor t;
    ck_assert_msg(set != NULL, "%s: %s: %s", cases[_i].name, err.where, err.message);
    ck_assert(shards_get(set, "layers.0.m.weight", &t));
    ck_assert_int_eq(t.dtype, cases[_i].codes);
    ck_assert_int_eq(t.ndim, 2);
    ck_assert_int_eq(t.shape[0], f.value.shape[0]);
    ck_assert_int_eq(t.shape[1], f.value.shape[1]);
    ck_assert_int_eq(shards_dtype(set), TN_BF16);
    expect_values(set, "layers.0.m.weight", f.value.data, f.value.shape[1], cases[_i].ulps);
    size_t left = 0;
    for (size_t i = 0; i < shards_count(set); i++)
        left += shards_get(set, shards_name(set, i), &t);
    ck_assert_uint_eq(left, 1); /* all others are hidden */
}
END_TEST

/* Of gates and ups in turns each expert gets two matrices, and its biases one after the other. */
START_TEST(experts_of_gpt_oss)
{
    tn_error err = TN_ERROR_INIT;
    quantised_folder f = quantised_folder_of("mxfp4", "mlp.experts.gate_up_proj_"),
                     down = quantised_folder_of("mxfp4", "mlp.experts.down_proj_");
    static const float bias[2][8] = {{0, 10, 1, 11, 2, 12, 3, 13}, {20, 30, 21, 31, 22, 32, 23, 33}};
    static const float halves[2][8] = {{0, 1, 2, 3, 10, 11, 12, 13}, {20, 21, 22, 23, 30, 31, 32, 33}};
    const float *values = f.value.data;
    for (size_t i = 0; i < down.count; i++)
        f.tensors[f.count++] = down.tensors[i];
    f.tensors[f.count++] =
        (tn_named_tensor){"mlp.experts.gate_up_proj_bias", tn_tensor_dense((void *)bias, TN_F32, 2, (int64_t[]){2, 8})};
    shards *set = quantised_folder_resolve(&f, CONFIG("\"quant_method\": \"mxfp4\""), &err);
    ck_assert_msg(set != NULL, "%s: %s", err.where, err.message);
    tn_tensor t;
    for (int e = 0; e < 2; e++) {
        char name[64];
        const float *expert = values + (ptrdiff_t)e * 8 * 96;
        snprintf(name, sizeof name, "mlp.experts.%d.gate_proj.weight", e);
        expect_values(set, name, expert, 2 * 96, 0);
        snprintf(name, sizeof name, "mlp.experts.%d.up_proj.weight", e);
        expect_values(set, name, expert + 96, 2 * 96, 0);
        snprintf(name, sizeof name, "mlp.experts.%d.down_proj.weight", e);
        expect_values(set, name, expert, 96, 0);
        ck_assert(shards_get(set, name, &t));
        ck_assert_int_eq(t.shape[0], 8);
    }
    ck_assert(shards_get(set, "mlp.experts.gate_up_proj_bias", &t));
    ck_assert_mem_eq(t.data, halves, sizeof halves);
}
END_TEST

/* Of int8, one for each row or one for all. */
START_TEST(zero_points_of_bytes)
{
    static const int8_t zeros[4] = {3, -7, 0, 127};
    for (int64_t count = 1; count <= 4; count += 3) {
        tn_error err = TN_ERROR_INIT;
        quantised_folder f = quantised_folder_of("ct_int8_rows", "m.");
        const int8_t *codes = quantised_folder_tensor(&f, "m.weight")->data;
        tn_tensor *scale = quantised_folder_tensor(&f, "m.weight_scale");
        float scales[4], expected[4 * 256];
        convert_to_f32(scale->data, TN_BF16, scales, 4);
        for (int i = 0; i < 4 * 256; i++) {
            int64_t row = count == 4 ? i / 256 : 0;
            expected[i] = (float)(codes[i] - zeros[row]) * scales[row];
        }
        scale->shape[0] = count;
        f.tensors[f.count++] =
            (tn_named_tensor){"m.weight_zero_point", tn_tensor_dense((void *)zeros, TN_I8, 2, (int64_t[]){count, 1})};
        shards *set = quantised_folder_resolve(&f, CT("8"), &err);
        ck_assert_msg(set != NULL, "%s: %s", err.where, err.message);
        expect_values(set, "m.weight", expected, 256, 0);
    }
}
END_TEST

/* ---- what is damaged ----------------------------------------------------------------------------- */

typedef enum damage { FILL, REMOVE, SHORTEN, RETYPE } damage;

#define MXFP4 CONFIG("\"quant_method\": \"mxfp4\"")
#define GPTQ4 GPTQ("\"bits\": 4")
#define QUANT_STATE "weight.quant_state.bitsandbytes__nf4"

static const struct {
    const char *name, *config, *tensor;
    damage damage;
    uint8_t value;    /* FILL: of all bytes of the second element; RETYPE: the type                     */
    const char *word; /* beside the tensor's name, or that of the one that needs it                     */
} damages[] = {
    {"fp8_block", FP8_BLOCK, "weight_scale_inv", FILL, 0xff, "NaN"},
    {"fp8_block", FP8_BLOCK, "weight_scale_inv", SHORTEN, 0, "does not fit a weight of [136,8] in blocks of [128,128]"},
    {"fp8_block", FP8_BLOCK, "weight_scale_inv", RETYPE, TN_I32, "has dtype i32"},
    {"fp8_block", FP8_BLOCK, "weight_scale_inv", REMOVE, 0, "no scales of a known form"},
    {"fp8_block", FP8_BLOCK, "weight", REMOVE, 0, "weight_scale_inv' needs"},
    {"fp8_block", FP8_BLOCK, "weight", RETYPE, TN_U8, "expected f8_e4m3"},
    {"fp8_rows", CT("8"), "weight_scale", FILL, 0xff, "NaN"},
    {"fp8_rows", CT("8"), "weight_scale", SHORTEN, 0, "does not fit"},
    {"ct_nvfp4", CT("4"), "weight_scale", FILL, 0xff, "NaN"},
    {"ct_nvfp4", CT("4"), "weight_global_scale", RETYPE, TN_I32, "has dtype i32"},
    {"ct_int4_g64", CT("4"), "weight_shape", FILL, 0x01, "columns"},
    {"ct_int4_g64", CT("4"), "weight_shape", FILL, 0xff, "columns"},
    {"ct_int4_g64", CT("8"), "weight_packed", FILL, 0, "num_bits"},
    {"ct_int4_g64", CT("4"), "weight_packed", SHORTEN, 0, "its codes have 3 rows"},
    {"ct_int4_g64", CT("4"), "weight_packed", RETYPE, TN_F32, "expected i32"},
    {"ct_int4_g64", CT("4"), "weight_scale", REMOVE, 0, "weight_packed' needs"},
    {"ct_int4_g64", CT("4"), "weight_shape", REMOVE, 0, "weight_packed' needs"},
    {"ct_int4_g128_asym", CT("4"), "weight_zero_point", RETYPE, TN_F32, "expected i32 [1,2]"},
    {"gptq4_act_order", GPTQ4, "g_idx", FILL, 0x04, "groups 0 to 3"},
    {"gptq4_act_order", GPTQ4, "g_idx", FILL, 0xff, "is of group -1"},
    {"gptq4_act_order", GPTQ4, "g_idx", SHORTEN, 0, "expected i32 [256]"},
    {"gptq4_asym_v1", GPTQ4, "qzeros", FILL, 0xff, "damaged"},
    {"gptq4_asym_v1", GPTQ4, "qzeros", SHORTEN, 0, "expected i32 [4,1]"},
    {"gptq4_asym_v1", GPTQ4, "qzeros", REMOVE, 0, "qweight' needs"},
    {"gptq4_asym_v1", GPTQ4, "qweight", SHORTEN, 0, "expected i32 [248]"},
    {"gptq4_sym", GPTQ4, "scales", FILL, 0xff, "NaN"},
    {"gptq4_sym", GPTQ4, "scales", REMOVE, 0, "qweight' needs"},
    {"gptq4_sym", GPTQ("\"bits\": 3"), "qweight", FILL, 0, "do not fill"},
    {"awq4", AWQ, "scales", FILL, 0xff, "NaN"},
    {"awq4", AWQ, "qzeros", RETYPE, TN_F32, "expected i32 [4,1]"},
    {"bnb_int8", BNB, "SCB", FILL, 0xff, "NaN"},
    {"bnb_int8", BNB, "SCB", REMOVE, 0, "no scales of a known form"},
    {"bnb_int8", BNB, "weight", RETYPE, TN_U8, "expected i8"},
    {"bnb_nf4", BNB, "weight.nested_absmax", REMOVE, 0, "needs"},
    {"bnb_nf4", BNB, "weight.nested_quant_map", FILL, 0xff, "NaN"},
    {"bnb_nf4", BNB, "weight.quant_map", FILL, 0, "levels"},
    {"bnb_nf4", BNB, "weight.absmax", SHORTEN, 0, "expected u8 [16]"},
    {"bnb_nf4", BNB, QUANT_STATE, FILL, '[', "JSON"},
    {"bnb_nf4_plain", BNB, "weight.absmax", FILL, 0xff, "NaN"},
    {"mxfp4", MXFP4, "scales", FILL, 0xff, "NaN"},
    {"mxfp4", MXFP4, "scales", SHORTEN, 0, "expected u8 [2,8,3]"},
    {"mxfp4", MXFP4, "scales", REMOVE, 0, "blocks' needs"},
    {"mxfp4", MXFP4, "blocks", RETYPE, TN_I8, "expected u8"},
};

static void change(quantised_folder *f, size_t i, const char *name)
{
    tn_tensor *t = quantised_folder_tensor(f, name);
    ck_assert_ptr_nonnull(t);
    size_t size = tn_dtype_size(t->dtype), at = tn_tensor_count(t) > 1 ? size : 0;
    if (damages[i].damage == FILL)
        memset((char *)t->data + at, damages[i].value, size);
    if (damages[i].damage == SHORTEN)
        t->shape[0]--;
    if (damages[i].damage == RETYPE)
        t->dtype = (tn_dtype)damages[i].value;
    for (size_t k = 0; k < f->count && damages[i].damage == REMOVE; k++)
        if (&f->tensors[k].tensor == t)
            f->tensors[k] = f->tensors[--f->count];
}

START_TEST(what_is_damaged)
{
    tn_error err = TN_ERROR_INIT;
    const char *stem = !strcmp(damages[_i].name, "mxfp4") ? "experts.gate_up_proj_" : "m.";
    char name[96];
    quantised_folder f = quantised_folder_of(damages[_i].name, stem);
    snprintf(name, sizeof name, "%s%s", stem, damages[_i].tensor);
    change(&f, (size_t)_i, name);
    shards *set = quantised_folder_resolve(&f, damages[_i].config, &err);
    ck_assert_msg(set == NULL, "%s: %s is accepted", damages[_i].name, damages[_i].tensor);
    snprintf(name, sizeof name, "tensor '%s", stem);
    broken_expect(&err, TN_E_INPUT, "model.safetensors", name, damages[_i].word, NULL);
}
END_TEST

START_TEST(a_tensor_that_two_make)
{
    tn_error err = TN_ERROR_INIT;
    quantised_folder f = quantised_folder_of("gptq4_sym", "m.");
    float one = 1;
    f.tensors[f.count++] = (tn_named_tensor){"m.weight", tn_tensor_dense(&one, TN_F32, 1, (int64_t[]){1})};
    ck_assert_ptr_null(quantised_folder_resolve(&f, GPTQ4, &err));
    broken_expect(&err, TN_E_INPUT, "model.safetensors", "'m.weight'", "twice", NULL);
}
END_TEST

/* A matrix that is not quantised stays what it is. */
START_TEST(what_is_plain)
{
    tn_error err = TN_ERROR_INIT;
    quantised_folder f = quantised_folder_of("gptq4_sym", "m.");
    float one = 1;
    tn_tensor t;
    f.tensors[f.count++] = (tn_named_tensor){"lm_head.weight", tn_tensor_dense(&one, TN_F32, 1, (int64_t[]){1})};
    shards *set = quantised_folder_resolve(&f, GPTQ4, &err);
    ck_assert(set && shards_get(set, "lm_head.weight", &t) && t.dtype == TN_F32);
    ck_assert_int_eq(shards_parts_of(set, "lm_head.weight").scale.dtype, TN_DTYPE_NONE);
    ck_assert(quantised_folder_resolve(&f, "{}", &err) != NULL);
}
END_TEST

/* The same codes in reading order as rows of other lengths, whose blocks of 64 go on in the next row. */
START_TEST(blocks_that_cross_rows)
{
    static const int64_t shapes[][2] = {{32, 32}, {10, 96}, {12, 80}, {14, 70}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        tn_error err = TN_ERROR_INIT;
        quantised_folder f = quantised_folder_of("bnb_nf4_plain", "m.");
        char state[128];
        int64_t rows = shapes[i][0], columns = shapes[i][1], count = rows * columns;
        int length = snprintf(state, sizeof state, "{\"shape\": [%d, %d], \"blocksize\": 64}", (int)rows, (int)columns);
        ck_assert_int_le(count, tn_tensor_count(&f.value));
        quantised_folder_tensor(&f, "m.weight")->shape[0] = count / 2;
        quantised_folder_tensor(&f, "m.weight.absmax")->shape[0] = (count + 63) / 64;
        *quantised_folder_tensor(&f, "m." QUANT_STATE) = tn_tensor_dense(state, TN_U8, 1, (int64_t[]){length});
        shards *set = quantised_folder_resolve(&f, BNB, &err);
        ck_assert_msg(set != NULL, "%s: %s", err.where, err.message);
        expect_values(set, "m.weight", f.value.data, columns, 0);
    }
}
END_TEST

/* Folders of a time when config.json had no place for it. */
START_TEST(what_an_older_file_says)
{
    static const struct {
        const char *name, *file, *text;
    } older[] = {
        {"gptq4_sym", "quantize_config.json", "{\"bits\": 4, \"group_size\": 128, \"sym\": true}"},
        {"awq4", "quant_config.json",
         "{\"zero_point\": true, \"q_group_size\": 64, \"w_bit\": 4, \"version\": \"GEMM\"}"},
        {"modelopt_nvfp4", "hf_quant_config.json", "{\"quantization\": {\"quant_algo\": \"NVFP4\"}}"},
    };
    for (size_t i = 0; i < sizeof older / sizeof older[0]; i++) {
        tn_error err = TN_ERROR_INIT;
        quantised_folder f = quantised_folder_of(older[i].name, "m.");
        f.settings = older[i].file;
        shards *set = quantised_folder_resolve(&f, older[i].text, &err);
        ck_assert_msg(set != NULL, "%s: %s", err.where, err.message);
        expect_values(set, "m.weight", f.value.data, f.value.shape[1], 2);
        tn_error why = TN_ERROR_INIT;
        ck_assert_ptr_null(quantised_folder_resolve(&f, "[4]", &why));
        broken_expect(&why, TN_E_INPUT, older[i].file, NULL);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("quantised", 0);
    tcase_add_loop_test(tc, values_of_every_kind, 0, sizeof cases / sizeof cases[0]);
    tcase_add_loop_test(tc, what_is_damaged, 0, sizeof damages / sizeof damages[0]);
    suite_add(tc, experts_of_gpt_oss, zero_points_of_bytes, a_tensor_that_two_make, what_is_plain,
              blocks_that_cross_rows, what_an_older_file_says);
    return suite_run();
}
