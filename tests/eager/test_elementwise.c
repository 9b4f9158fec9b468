/* Norms, ropes, GLU, add, embedding and the cache: strides, odd sizes, aliasing, values that are not numbers, errors.
 */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* ---- norms ------------------------------------------------------------------------------------ */

static tn_call norm_call(tn_norm variant, tn_dtype dtype, int64_t rows, int64_t width, double eps)
{
    tn_call call = optest_call(TN_OP_RMS_NORM, dtype, 2, 1);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_NORM] = (int32_t)variant;
    site->num[TN_NUM_EPS] = eps;
    tn_tensor weight = optest_random(dtype, 1, &width, 4);
    optest_param(site, TN_ROLE_WEIGHT, &weight, variant == TN_NORM_NO_WEIGHT ? 0 : 1);
    call.in[0] = optest_random(dtype, 2, (int64_t[]){rows, width}, 5);
    call.in[1] = optest_random(dtype, 2, (int64_t[]){rows, width}, 6);
    call.out[0] = optest_zeros(dtype, 2, (int64_t[]){rows, width});
    return call;
}

/* Squares of the inputs sum exactly, so mean, root and every product are known to the last bit of f32, and with them
 * every rounding. Only the gate's exponential may be an ulp off. */
static double norm_expected(const tn_call *call, float scale, int64_t r, int64_t i, int64_t width)
{
    tn_norm variant = (tn_norm)call->site->meaning[TN_AXIS_NORM];
    tn_dtype dt = call->in[0].dtype;
    float n = (float)optest_at(&call->in[0], r * width + i) * scale;
    if (variant == TN_NORM_NO_WEIGHT)
        return optest_rounded((double)n, dt);
    float w = (float)optest_at(call->site->param[TN_ROLE_WEIGHT].tensors, i);
    if (variant == TN_NORM_W_F32 || variant == TN_NORM_1_PLUS_W)
        return optest_rounded((double)(n * (variant == TN_NORM_1_PLUS_W ? 1.0f + w : w)), dt);
    double t = optest_rounded((double)((float)optest_rounded((double)n, dt) * w), dt);
    if (variant == TN_NORM_W)
        return t;
    double z = optest_at(&call->in[1], r * width + i);
    return optest_rounded(t * (z / (1.0 + exp(-z))), dt);
}

static void norm_check(const tn_call *call)
{
    const tn_tensor *x = &call->in[0];
    int64_t width = x->shape[x->ndim - 1], rows = tn_tensor_count(x) / width;
    bool gated = call->site->meaning[TN_AXIS_NORM] == TN_NORM_W_GATED;
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int64_t i = 0; i < width; i++)
            sum += optest_at(x, r * width + i) * optest_at(x, r * width + i);
        float scale = 1.0f / sqrtf((float)(sum / (double)width) + (float)call->site->num[TN_NUM_EPS]);
        for (int64_t i = 0; i < width; i++) {
            double expected = norm_expected(call, scale, r, i, width), got = optest_at(&call->out[0], r * width + i);
            double bound = gated ? fabs(expected) * (2.0 * optest_epsilon(x->dtype) + 4.0 * 0x1p-24) : 0.0;
            if (!(fabs(got - expected) <= bound))
                ck_abort_msg("norm %d of %s, row %d, element %d of %d: %.9g, expected %.9g",
                             (int)call->site->meaning[TN_AXIS_NORM], tn_dtype_name(x->dtype), (int)r, (int)i,
                             (int)width, got, expected);
        }
    }
}

static const int64_t widths[] = {1, 2, 15, 16, 17, 511, 512, 513, 900};

START_TEST(norms_of_any_width)
{
    for (tn_norm variant = TN_NORM_W; variant <= TN_NORM_NO_WEIGHT; variant = (tn_norm)(variant + 1))
        for (int d = 0; d < 3; d++) {
            tn_call call = norm_call(variant, dtypes[d], 35, widths[_i], 1e-6);
            optest_threads(&call);
            norm_check(&call);
        }
}
END_TEST

/* q and k norms: rows of [B,T,heads,D] in a view with heads and tokens exchanged, in place. */
START_TEST(norms_of_strided_rows)
{
    for (int d = 0; d < 3; d++) {
        tn_call dense = norm_call(TN_NORM_W, dtypes[d], 24, 20, 0.0);
        dense.in[0] = optest_random(dtypes[d], 4, (int64_t[]){2, 3, 4, 20}, 5);
        dense.out[0] = optest_zeros(dtypes[d], 4, (int64_t[]){2, 3, 4, 20});
        optest_run(&dense);
        tn_call call = norm_call(TN_NORM_W, dtypes[d], 24, 20, 0.0);
        tn_tensor storage = optest_zeros(dtypes[d], 4, (int64_t[]){2, 4, 3, 20});
        call.in[0] = optest_transpose(storage, 1, 2);
        for (int64_t i = 0; i < 480; i++)
            optest_set(&call.in[0], i, optest_at(&dense.in[0], i));
        call.out[0] = call.in[0];
        optest_run(&call);
        optest_close(&call.out[0], &dense.out[0], 0.0, 0.0, "strided norm");
    }
}
END_TEST

START_TEST(norms_of_odd_values)
{
    /* eps 0 and a row of zeros: 0 * inf, as in transformers; its neighbours are well. */
    tn_call call = norm_call(TN_NORM_W, TN_F32, 3, 8, 0.0);
    for (int64_t i = 8; i < 16; i++)
        optest_set(&call.in[0], i, 0.0);
    optest_run(&call);
    for (int64_t i = 0; i < 24; i++)
        ck_assert_int_eq(isnan(optest_at(&call.out[0], i)) != 0, i / 8 == 1);
    /* eps 0, one element: its sign times the weight. */
    call = norm_call(TN_NORM_W_F32, TN_BF16, 1, 1, 0.0);
    optest_set(&call.in[0], 0, -3.0);
    optest_run(&call);
    ck_assert_double_eq(optest_at(&call.out[0], 0), -optest_at(call.site->param[TN_ROLE_WEIGHT].tensors, 0));
    call = norm_call(TN_NORM_NO_WEIGHT, TN_F16, 2, 600, 1e-6);
    optest_set(&call.in[0], 599, (double)NAN);
    optest_run(&call);
    for (int64_t i = 0; i < 1200; i++)
        if ((isnan(optest_at(&call.out[0], i)) != 0) != (i < 600))
            ck_abort_msg("element %d", (int)i);
    call = norm_call(TN_NORM_W, TN_BF16, 0, 16, 1e-6);
    optest_run(&call);
}
END_TEST

START_TEST(norms_without_meaning_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    tn_call call = norm_call((tn_norm)0, TN_F32, 1, 4, 0.0);
    ck_assert_int_eq(optest_try(&call, &err), TN_E_INTERNAL);
    call = norm_call(TN_NORM_W, TN_F32, 1, 4, 0.0);
    optest_site_of(&call)->param[TN_ROLE_WEIGHT].count = 0;
    ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
}
END_TEST

START_TEST(add_and_norm_in_one)
{
    for (int d = 0; d < 3; d++) {
        tn_call call = norm_call(TN_NORM_1_PLUS_W, dtypes[d], 40, 700, 1e-5);
        call.op = TN_OP_ADD_RMS_NORM;
        call.out_count = 2;
        call.out[1] = call.out[0];
        call.out[0] = optest_zeros(dtypes[d], 2, call.out[1].shape);
        optest_threads(&call);
        tn_call add = {.op = TN_OP_ADD, .in_count = 2, .out_count = 1};
        memcpy(add.in, call.in, sizeof add.in);
        add.out[0] = optest_zeros(dtypes[d], 2, call.out[1].shape);
        optest_threads(&add);
        for (int64_t i = 0; i < 40 * 700; i++) {
            double sum = optest_rounded(optest_at(&add.in[0], i) + optest_at(&add.in[1], i), dtypes[d]);
            if (optest_at(&add.out[0], i) != sum)
                ck_abort_msg("sum %d", (int)i);
        }
        tn_call norm = {.op = TN_OP_RMS_NORM, .site = call.site, .in_count = 1, .out_count = 1};
        norm.in[0] = add.out[0];
        norm.out[0] = optest_zeros(dtypes[d], 2, call.out[1].shape);
        optest_run(&norm);
        optest_close(&call.out[0], &add.out[0], 0.0, 0.0, "sum");
        optest_close(&call.out[1], &norm.out[0], 0.0, 0.0, "norm");
    }
}
END_TEST

/* ---- rope -------------------------------------------------------------------------------------- */

/* Pairs of halves with tables of the whole width. */
static bool rope_wide(tn_rope style)
{
    return style == TN_ROPE_HALF || style == TN_ROPE_HALF_F32;
}

static tn_call rope_call(tn_rope style, tn_dtype dtype, tn_dtype table, int64_t d, int64_t r)
{
    tn_call call = optest_call(TN_OP_ROPE, dtype, 4, 2);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_ROPE] = (int32_t)style;
    int64_t width = style == TN_ROPE_HALF_NARROW ? r / 2 : r;
    call.in[0] = optest_random(dtype, 4, (int64_t[]){2, 5, 3, d}, 1);
    call.in[1] = optest_random(dtype, 4, (int64_t[]){2, 5, 1, d}, 2);
    call.in[2] = optest_zeros(table, 3, (int64_t[]){1, 5, width});
    call.in[3] = optest_zeros(table, 3, (int64_t[]){1, 5, width});
    for (int64_t i = 0; i < 5 * width; i++) {
        optest_set(&call.in[2], i, cos((double)(i + 1)));
        optest_set(&call.in[3], i, sin((double)(i + 1)));
    }
    call.out[0] = optest_zeros(dtype, 4, call.in[0].shape);
    call.out[1] = optest_zeros(dtype, 4, call.in[1].shape);
    return call;
}

/* One pair in the roundings of tn_rope. half: R / 2; j: index of the pair. */
static void rope_check(const tn_call *call, int which, int64_t head, int64_t t, int64_t r)
{
    const tn_tensor *x = &call->in[which], *y = &call->out[which];
    tn_rope style = (tn_rope)call->site->meaning[TN_AXIS_ROPE];
    int64_t d = x->shape[3], half = r / 2, at = ((5 + t) * x->shape[2] + head) * d, width = call->in[2].shape[2];
    bool paired = !rope_wide(style) && style != TN_ROPE_HALF_NARROW, apart = paired && style != TN_ROPE_DEINTERLEAVED;
    bool wide = style == TN_ROPE_COMPLEX || style == TN_ROPE_HALF_F32;
    tn_dtype step = wide || call->in[2].dtype != x->dtype ? TN_F32 : x->dtype;
    for (int64_t j = 0; j < half; j++) {
        double x1 = optest_at(x, at + (paired ? 2 * j : j)), x2 = optest_at(x, at + (paired ? 2 * j + 1 : j + half));
        int64_t second = rope_wide(style) ? j + half : j;
        double c1 = optest_at(&call->in[2], t * width + j), s1 = optest_at(&call->in[3], t * width + j);
        double c2 = optest_at(&call->in[2], t * width + second), s2 = optest_at(&call->in[3], t * width + second);
        double y1 = optest_rounded(optest_rounded(optest_rounded(x1 * c1, step) - optest_rounded(x2 * s1, step), step),
                                   x->dtype);
        double y2 = optest_rounded(optest_rounded(optest_rounded(x2 * c2, step) + optest_rounded(x1 * s2, step), step),
                                   x->dtype);
        double got1 = optest_at(y, at + (apart ? 2 * j : j)), got2 = optest_at(y, at + (apart ? 2 * j + 1 : j + half));
        if (got1 != y1 || got2 != y2)
            ck_abort_msg("style %d, pair %d: %.9g %.9g, expected %.9g %.9g", (int)style, (int)j, got1, got2, y1, y2);
    }
    for (int64_t i = r; i < d; i++)
        if (optest_at(y, at + i) != optest_at(x, at + i))
            ck_abort_msg("dimension %d did not pass through", (int)i);
}

/* Products of two values of at most 11 bits are exact in double, so every rounding is known: equal bit for bit. In f32
 * tables and data have 24 and 7 bits. */
START_TEST(ropes_round_where_they_should)
{
    tn_rope style = (tn_rope)(_i + TN_ROPE_HALF);
    for (int d = 0; d < 3; d++)
        for (int f32_tables = 0; f32_tables < 2; f32_tables++)
            for (int64_t r = 2; r <= 34; r += 16) {
                tn_call call = rope_call(style, dtypes[d], f32_tables ? TN_F32 : dtypes[d], r + (r > 2 ? 7 : 0), r);
                optest_threads(&call);
                for (int64_t t = 0; t < 5; t++) {
                    rope_check(&call, 0, 2, t, r);
                    rope_check(&call, 1, 0, t, r);
                }
            }
}
END_TEST

START_TEST(ropes_that_cannot_be_are_refused)
{
    tn_call call = rope_call(TN_ROPE_HALF, TN_F32, TN_F32, 8, 8);
    call.in[2].shape[2] = call.in[3].shape[2] = 10;
    ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
    call = rope_call((tn_rope)0, TN_F32, TN_F32, 8, 8);
    ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
    call = rope_call(TN_ROPE_HALF, TN_F32, TN_F32, 8, 8);
    for (int i = 0; i < 2; i++)
        call.in[i].shape[1] = call.out[i].shape[1] = 0;
    optest_run(&call);
}
END_TEST

/* ---- GLU ------------------------------------------------------------------------------------------ */

START_TEST(glu_rounds_twice)
{
    for (int d = 0; d < 3; d++) {
        bool squared = _i != 0;
        tn_call call = optest_call(TN_OP_MLP, dtypes[d], 2, 1);
        call.op = TN_OP_GLU;
        /* Exact, so that only the product rounds; then one that rounds before it. */
        optest_site_of(&call)->meaning[TN_AXIS_ACT] = squared ? TN_ACT_RELU2 : TN_ACT_RELU;
        tn_tensor both = optest_random(dtypes[d], 2, (int64_t[]){30, 1300}, 1);
        call.in[0] = call.in[1] = both;
        call.in[0].shape[1] = call.in[1].shape[1] = 650;
        call.in[1].data = (char *)both.data + 650 * tn_dtype_size(dtypes[d]);
        call.out[0] = optest_zeros(dtypes[d], 2, (int64_t[]){30, 650});
        optest_threads(&call);
        for (int64_t i = 0; i < 30 * 650; i++) {
            double gate = fmax(optest_at(&call.in[0], i), 0.0);
            gate = squared ? optest_rounded(gate * gate, dtypes[d]) : gate;
            double expected = optest_rounded(gate * optest_at(&call.in[1], i), dtypes[d]);
            if (optest_at(&call.out[0], i) != expected)
                ck_abort_msg("element %d: %g, expected %g", (int)i, optest_at(&call.out[0], i), expected);
        }
        optest_in_place(&call);
    }
}
END_TEST

START_TEST(one_gate_for_all_features)
{
    tn_call call = optest_call(TN_OP_MLP, TN_BF16, 2, 1);
    call.op = TN_OP_GLU;
    optest_site_of(&call)->meaning[TN_AXIS_ACT] = TN_ACT_LINEAR;
    call.in[0] = optest_random(TN_BF16, 2, (int64_t[]){3, 1}, 1);
    call.in[0].shape[1] = 600;
    call.in[0].stride[1] = 0;
    call.in[1] = optest_random(TN_BF16, 2, (int64_t[]){3, 600}, 2);
    call.out[0] = optest_zeros(TN_BF16, 2, (int64_t[]){3, 600});
    optest_run(&call);
    for (int64_t i = 0; i < 1800; i++)
        if (optest_at(&call.out[0], i) !=
            optest_rounded(optest_at(&call.in[0], i / 600 * 600) * optest_at(&call.in[1], i), TN_BF16))
            ck_abort_msg("element %d", (int)i);
    optest_site_of(&call)->meaning[TN_AXIS_ACT] = 0;
    ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
}
END_TEST

/* ---- embedding and cache ------------------------------------------------------------------------------ */

START_TEST(embeddings)
{
    for (int d = 0; d < 3; d++)
        for (int scaled = 0; scaled < 2; scaled++) {
            tn_site site = optest_site(TN_OP_EMBEDDING, dtypes[d]);
            tn_tensor table = optest_random(dtypes[d], 2, (int64_t[]){11, 530}, 1);
            optest_param(&site, TN_ROLE_WEIGHT, &table, 1);
            site.num[TN_NUM_SCALE] = scaled ? sqrt(530.0) : 0.0;
            tn_call call = {.op = TN_OP_EMBEDDING, .site = &site, .in_count = 1, .out_count = 1};
            call.in[0] = optest_zeros(TN_I64, 1, (int64_t[]){40});
            for (int64_t i = 0; i < 40; i++)
                optest_set(&call.in[0], i, (double)(i * 7 % 11));
            call.out[0] = optest_zeros(dtypes[d], 2, (int64_t[]){40, 530});
            optest_threads(&call);
            for (int64_t i = 0; i < 40 * 530; i++) {
                double x = optest_at(&table, i / 530 * 7 % 11 * 530 + i % 530);
                double expected = scaled ? optest_rounded(x * optest_rounded(sqrt(530.0), dtypes[d]), dtypes[d]) : x;
                if (optest_at(&call.out[0], i) != expected)
                    ck_abort_msg("element %d", (int)i);
            }
        }
}
END_TEST

START_TEST(ids_outside_the_vocabulary)
{
    const int64_t bad[] = {11, -1, INT64_MAX, INT64_MIN};
    for (int i = 0; i < 4; i++) {
        tn_site site = optest_site(TN_OP_EMBEDDING, TN_F32);
        tn_tensor table = optest_random(TN_F32, 2, (int64_t[]){11, 8}, 1);
        optest_param(&site, TN_ROLE_WEIGHT, &table, 1);
        tn_call call = {.op = TN_OP_EMBEDDING, .site = &site, .in_count = 1, .out_count = 1};
        call.in[0] = optest_zeros(TN_I64, 1, (int64_t[]){5});
        ((int64_t *)call.in[0].data)[3] = bad[i];
        call.out[0] = optest_zeros(TN_F32, 2, (int64_t[]){5, 8});
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(optest_try(&call, &err), TN_E_INPUT);
        char id[32];
        snprintf(id, sizeof id, "id %lld,", (long long)bad[i]);
        ck_assert_msg(strstr(err.message, "token 3") && strstr(err.message, id), "%s", err.message);
        optest_expect_zero(&call.out[0]);
    }
}
END_TEST

/* Quarters times numbers of few bits: sums are exact, so that only the last rounding is left. */
START_TEST(bags_of_embeddings)
{
    for (int d = 0; d < 3; d++) {
        tn_site site = optest_site(TN_OP_EMBEDDING_BAG, dtypes[d]);
        tn_tensor table = optest_random(dtypes[d], 2, (int64_t[]){11, 530}, 1);
        optest_param(&site, TN_ROLE_WEIGHT, &table, 1);
        site.dim[TN_DIM_TOP_K] = 3;
        tn_call call = {.op = TN_OP_EMBEDDING_BAG, .site = &site, .in_count = 2, .out_count = 1};
        call.in[0] = optest_zeros(TN_I64, 2, (int64_t[]){40, 3});
        call.in[1] = optest_zeros(TN_F32, 2, (int64_t[]){40, 3});
        for (int64_t i = 0; i < 120; i++) {
            ((int64_t *)call.in[0].data)[i] = i * 7 % 11;
            optest_set(&call.in[1], i, (double)(i % 9 - 4) / 4.0);
        }
        call.out[0] = optest_zeros(dtypes[d], 2, (int64_t[]){40, 530});
        optest_threads(&call);
        for (int64_t i = 0; i < 40 * 530; i++) {
            double sum = 0.0;
            for (int64_t j = i / 530 * 3; j < i / 530 * 3 + 3; j++)
                sum += optest_at(&call.in[1], j) * optest_at(&table, j * 7 % 11 * 530 + i % 530);
            if (optest_at(&call.out[0], i) != optest_rounded(sum, dtypes[d]))
                ck_abort_msg("element %d", (int)i);
        }
        ((int64_t *)call.in[0].data)[100] = 11;
        ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
    }
}
END_TEST

START_TEST(cache_slots)
{
    const int32_t slots[] = {3, -1, 0, 4, 2, -7};
    tn_call call = {.op = TN_OP_CACHE_APPEND, .in_count = 2, .out_count = 1};
    call.in[0] = optest_transpose(optest_random(TN_BF16, 4, (int64_t[]){2, 3, 3, 6}, 1), 1, 2);
    call.in[1] = optest_zeros(TN_I32, 2, (int64_t[]){2, 3});
    memcpy(call.in[1].data, slots, sizeof slots);
    call.out[0] = optest_zeros(TN_BF16, 4, (int64_t[]){2, 5, 3, 6});
    optest_run(&call);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t slot = 0; slot < 5; slot++)
            for (int64_t i = 0; i < 18; i++) {
                double expected = 0.0;
                for (int64_t t = 0; t < 3; t++)
                    if (slots[b * 3 + t] == slot)
                        expected = optest_at(&call.in[0], (b * 3 + t) * 18 + i);
                ck_assert_double_eq(optest_at(&call.out[0], (b * 5 + slot) * 18 + i), expected);
            }
    ((int32_t *)call.in[1].data)[4] = 5;
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(optest_try(&call, &err), TN_E_INTERNAL);
    suite_expect_in(err.message, "slot 5");
    ((int32_t *)call.in[1].data)[4] = 0;
    call.out[0].dtype = TN_F32;
    ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: element by element", 120);
    tcase_add_loop_test(tc, norms_of_any_width, 0, (int)(sizeof widths / sizeof *widths));
    suite_add(tc, norms_of_strided_rows, norms_of_odd_values, norms_without_meaning_are_refused, add_and_norm_in_one);
    tcase_add_loop_test(tc, ropes_round_where_they_should, 0, 6);
    suite_add(tc, ropes_that_cannot_be_are_refused);
    tcase_add_loop_test(tc, glu_rounds_twice, 0, 2);
    suite_add(tc, one_gate_for_all_features, embeddings, ids_outside_the_vocabulary, bags_of_embeddings, cache_slots);
    return suite_run();
}
