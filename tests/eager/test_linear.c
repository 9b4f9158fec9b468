/* LINEAR. Inputs hold multiples of 1/64 below 2: up to 1000 of their products sum exactly in f32, in any order and any
 * instruction set, so results must equal the correctly rounded sum bit for bit. */
#include "eager/gemm.h"
#include "device/device.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* y[i,j] = rnd(sum_p x[i,p] w[j,p] + bias[j]) for some of the elements: all of a small result. */
static void check_product(const tn_call *call, const char *what)
{
    const tn_tensor *x = &call->in[0], *y = &call->out[0], *w = call->site->param[TN_ROLE_WEIGHT].tensors;
    const tn_tensor *bias = call->site->param[TN_ROLE_BIAS].count ? call->site->param[TN_ROLE_BIAS].tensors : NULL;
    int64_t k = x->shape[x->ndim - 1], n = y->shape[y->ndim - 1], m = tn_tensor_count(y) / (n ? n : 1);
    int64_t step = m * n * k > 4000000 ? 7 : 1;
    for (int64_t e = 0; e < m * n; e += step) {
        int64_t i = e / n, j = e % n;
        double sum = bias ? optest_at(bias, j) : 0.0;
        for (int64_t p = 0; p < k; p++)
            sum += optest_at(x, i * k + p) * optest_at(w, j * k + p);
        float exact = (float)sum;
        uint32_t rounded = 0;
        float expected;
        convert_from_f32(&exact, y->dtype, &rounded, 1);
        convert_to_f32(&rounded, y->dtype, &expected, 1);
        if (optest_at(y, e) != (double)expected)
            ck_abort_msg("%s: y[%d,%d] of %dx%dx%d is %.9g, expected %.9g", what, (int)i, (int)j, (int)m, (int)k,
                         (int)n, optest_at(y, e), (double)expected);
    }
}

static tn_call make_call(tn_dtype dtype, int64_t m, int64_t n, int64_t k, bool bias)
{
    tn_call call = optest_call(TN_OP_LINEAR, dtype, 1, 1);
    tn_site *site = optest_site_of(&call);
    tn_tensor w = optest_random(dtype, 2, (int64_t[]){n, k}, 1), b = optest_random(dtype, 1, &n, 2);
    optest_param(site, TN_ROLE_WEIGHT, &w, 1);
    if (bias) {
        optest_param(site, TN_ROLE_BIAS, &b, 1);
        site->features = TN_HAS_BIAS;
    }
    call.in[0] = optest_random(dtype, 2, (int64_t[]){m, k}, 3);
    call.out[0] = optest_zeros(dtype, 2, (int64_t[]){m, n});
    return call;
}

static const int64_t sizes[][3] = {
    {0, 5, 7},      {1, 1, 1},       {1, 3, 2},    {1, 130, 33},   {1, 1000, 256},   {2, 64, 64},
    {3, 127, 100},  {5, 1, 300},     {8, 513, 31}, {16, 200, 256}, {17, 300, 99},    {64, 257, 512},
    {65, 129, 640}, {200, 1025, 64}, {513, 40, 8}, {1030, 70, 16}, {129, 600, 1000},
};

START_TEST(any_size)
{
    for (int d = 0; d < 3; d++)
        for (int bias = 0; bias < 2; bias++) {
            tn_call call = make_call(dtypes[d], sizes[_i][0], sizes[_i][1], sizes[_i][2], bias != 0);
            optest_threads(&call);
            check_product(&call, tn_dtype_name(dtypes[d]));
        }
}
END_TEST

/* x is a slice of wider rows, y goes into columns of a wider tensor: nothing outside may change. */
START_TEST(strided_rows)
{
    for (int d = 0; d < 3; d++) {
        tn_call call = make_call(dtypes[d], 20, 150, 40, true);
        tn_tensor wide_x = optest_random(dtypes[d], 2, (int64_t[]){20, 57}, 9);
        tn_tensor wide_y = optest_random(dtypes[d], 2, (int64_t[]){20, 333}, 10);
        tn_tensor before = optest_from(dtypes[d], &wide_y);
        call.in[0].data = (char *)wide_x.data + 3 * tn_dtype_size(dtypes[d]);
        call.in[0].stride[0] = 57;
        call.out[0].data = (char *)wide_y.data + 100 * tn_dtype_size(dtypes[d]);
        call.out[0].stride[0] = 333;
        optest_threads(&call);
        check_product(&call, "strided");
        for (int64_t i = 0; i < 20 * 333; i++)
            if (i % 333 < 100 || i % 333 >= 250)
                if (optest_at(&wide_y, i) != optest_at(&before, i))
                    ck_abort_msg("column %d was written", (int)(i % 333));
    }
}
END_TEST

/* Weights lie in the file: anywhere, even at odd addresses. */
START_TEST(weights_at_any_address)
{
    for (int d = 0; d < 3; d++)
        for (size_t shift = 0; shift < 5; shift++) {
            tn_call call = make_call(dtypes[d], 1 + 40 * (int64_t)(shift % 2), 150, 70, false);
            tn_tensor w = call.site->param[TN_ROLE_WEIGHT].tensors[0];
            tn_tensor room = optest_zeros(TN_U8, 1, (int64_t[]){150 * 70 * 4 + 8});
            tn_tensor moved = w;
            moved.data = (char *)room.data + shift;
            memcpy(moved.data, w.data, 150 * 70 * tn_dtype_size(dtypes[d]));
            optest_param(optest_site_of(&call), TN_ROLE_WEIGHT, &moved, 1);
            optest_threads(&call);
            optest_param(optest_site_of(&call), TN_ROLE_WEIGHT, &w, 1);
            check_product(&call, "moved");
        }
}
END_TEST

/* Types of x, weight and y need not be the same. */
START_TEST(mixed_types)
{
    for (int xd = 0; xd < 3; xd++)
        for (int wd = 0; wd < 3; wd++)
            for (int yd = 0; yd < 3; yd++) {
                tn_call call = make_call(dtypes[xd], 9, 140, 50, true);
                tn_tensor w = optest_random(dtypes[wd], 2, (int64_t[]){140, 50}, 1);
                optest_param(optest_site_of(&call), TN_ROLE_WEIGHT, &w, 1);
                call.out[0] = optest_zeros(dtypes[yd], 2, (int64_t[]){9, 140});
                optest_run(&call);
                check_product(&call, "mixed");
            }
}
END_TEST

START_TEST(leading_dimensions_fold)
{
    tn_call call = make_call(TN_BF16, 24, 33, 20, false);
    call.in[0] = optest_random(TN_BF16, 4, (int64_t[]){2, 3, 4, 20}, 3);
    call.out[0] = optest_zeros(TN_BF16, 4, (int64_t[]){2, 3, 4, 33});
    optest_run(&call);
    check_product(&call, "folded");
    call.in[0] = optest_transpose(call.in[0], 0, 1);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(optest_try(&call, &err), TN_E_INTERNAL);
}
END_TEST

/* A NaN or an infinity reaches its own row and no other. */
START_TEST(not_a_number)
{
    for (int d = 0; d < 3; d++)
        for (int64_t m = 1; m <= 33; m += 32) {
            tn_call call = make_call(dtypes[d], m, 150, 64, true);
            optest_set(&call.in[0], (m - 1) * 64 + 5, d == 1 ? (double)INFINITY : (double)NAN);
            optest_run(&call);
            for (int64_t i = 0; i < m * 150; i++) {
                double y = optest_at(&call.out[0], i);
                double w = optest_at(call.site->param[TN_ROLE_WEIGHT].tensors, i % 150 * 64 + 5);
                bool bad = i / 150 == m - 1, finite = isfinite(y) != 0;
                if (finite == bad || (bad && d == 1 && (w == 0.0 ? !isnan(y) : y != (w > 0 ? INFINITY : -INFINITY))))
                    ck_abort_msg("y[%d] is %g with weight %g", (int)i, y, w);
            }
        }
}
END_TEST

/* The matrices of one form, filled. */
static gemm_shape make_product(tn_dtype dtype, gemm_form form, int64_t m, int64_t n, int64_t k, tn_tensor *a,
                               tn_tensor *w)
{
    *a = optest_random(dtype, 2, form == GEMM_TN ? (int64_t[]){k, m} : (int64_t[]){m, k}, 1);
    *w = optest_random(dtype, 2, form == GEMM_NT ? (int64_t[]){n, k} : (int64_t[]){k, n}, 2);
    return (gemm_shape){.type = dtype,
                        .w_type = dtype,
                        .form = form,
                        .m = m,
                        .n = n,
                        .k = k,
                        .lda = a->stride[0],
                        .ldw = w->stride[0],
                        .ldc = n};
}

/* An infinity at the end of a row, too, where the number of elements is odd: oneDNN pads such rows. Once with what it
 * takes on this machine, once with what it takes without AMX. */
START_TEST(infinity_at_the_end)
{
    const int64_t m = 29, n = 83;
    if (_i == 1)
        setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", 1); /* this process has not called oneDNN yet */
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int64_t k = 65; k < 69; k++)
            for (int form = 0; form < GEMM_FORMS; form++) {
                tn_dtype dtype = bf16 ? gemm_type(TN_BF16, TN_BF16) : TN_F32;
                tn_tensor a, w, c = optest_zeros(TN_F32, 2, (int64_t[]){m, n});
                gemm_shape shape = make_product(dtype, (gemm_form)form, m, n, k, &a, &w);
                optest_set(&a, form == GEMM_TN ? (k - 1) * m + 3 : 4 * k - 1, (double)-INFINITY);
                gemm_context *context = gemm_acquire();
                gemm_run(context, &shape, a.data, w.data, c.data, NULL);
                gemm_release(context);
                for (int64_t e = 0; e < m * n; e++) {
                    double y = optest_at(&c, e);
                    double last = optest_at(&w, form == GEMM_NT ? (e % n + 1) * k - 1 : (k - 1) * n + e % n);
                    if (e / n != 3 ? !isfinite(y) : last == 0.0 ? !isnan(y) : y != (last > 0 ? -INFINITY : INFINITY))
                        ck_abort_msg("%s, k %d, form %d: c[%d,%d] is %g with weight %g", tn_dtype_name(dtype), (int)k,
                                     form, (int)(e / n), (int)(e % n), y, last);
                }
            }
}
END_TEST

/* What is used where oneDNN is of no use (a NULL context) computes the same. */
START_TEST(plain_products)
{
    const int64_t m = 5, n = 9, k = 14;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int form = 0; form < GEMM_FORMS; form++) {
            tn_dtype dtype = bf16 ? gemm_type(TN_BF16, TN_BF16) : TN_F32;
            tn_tensor a, w, one = optest_zeros(TN_F32, 2, (int64_t[]){m, n}),
                            two = optest_zeros(TN_F32, 2, (int64_t[]){m, n});
            gemm_shape shape = make_product(dtype, (gemm_form)form, m, n, k, &a, &w);
            gemm_context *context = gemm_acquire();
            ck_assert_ptr_nonnull(context);
            gemm_run(context, &shape, a.data, w.data, one.data, NULL);
            gemm_release(context);
            gemm_run(NULL, &shape, a.data, w.data, two.data, NULL);
            ck_assert_int_eq(memcmp(one.data, two.data, (size_t)(m * n) * sizeof(float)), 0);
            double sum = 0.0;
            for (int64_t p = 0; p < k; p++)
                sum += optest_at(&a, form == GEMM_TN ? p * m + 2 : 2 * k + p) *
                       optest_at(&w, form == GEMM_NT ? 3 * k + p : p * n + 3);
            ck_assert_double_eq(optest_at(&one, 2 * n + 3), sum);
        }
    gemm_shape empty = {.type = TN_F32, .w_type = TN_F32, .m = 1, .n = 1, .lda = 1, .ldw = 1, .ldc = 1};
    float zero = 1.0f, nothing = 0.0f;
    gemm_run(NULL, &empty, &nothing, &nothing, &zero, NULL);
    ck_assert_float_eq(zero, 0.0f);
}
END_TEST

/* Tiles follow from shapes alone, cover everything, and leave several threads something to do. */
START_TEST(tiles)
{
    for (int64_t n = 1; n < 200000; n = n * 3 / 2 + 1) {
        int64_t tile = gemm_tile_columns(n);
        ck_assert(tile >= 128 && tile <= 512 && tile % 64 == 0);
        ck_assert(n < 1024 || (n + tile - 1) / tile >= 8);
    }
    for (int64_t m = 0; m < 3000; m++) {
        int64_t tile = gemm_tile_rows(m);
        if (tile < 1 || tile > 512 || (m <= 512 && m > 0 && tile != m))
            ck_abort_msg("%d tokens in tiles of %d", (int)m, (int)tile);
    }
}
END_TEST

START_TEST(no_weight)
{
    tn_call call = make_call(TN_F32, 2, 3, 4, false);
    optest_site_of(&call)->param[TN_ROLE_WEIGHT].count = 0;
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(optest_try(&call, &err), TN_E_INTERNAL);
    ck_assert_str_eq(err.where, "model.layers.0.test");
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: linear", 120);
    tcase_add_loop_test(tc, any_size, 0, (int)(sizeof sizes / sizeof *sizes));
    suite_add(tc, strided_rows, weights_at_any_address, mixed_types, leading_dimensions_fold, not_a_number);
    tcase_add_loop_test(tc, infinity_at_the_end, 0, 2);
    suite_add(tc, plain_products, tiles, no_weight);
    return suite_run();
}
