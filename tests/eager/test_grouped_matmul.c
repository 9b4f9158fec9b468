/* GROUPED_MATMUL and its gradients: golden data in all four layouts, a reference in f64 for other shapes, strides, and
 * counts that do not describe x. */
#include "device/device.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
static const tn_layout layouts[] = {TN_LAYOUT_STACKED_OI, TN_LAYOUT_STACKED_IO, TN_LAYOUT_EXPERT_LIST,
                                    TN_LAYOUT_LIST_IO};

#define MAX_GROUPS 16

typedef struct grouped {
    tn_call call;
    tn_site *site;
    tn_grads *grads;
    tn_layout layout;
    int64_t groups, in, out;
} grouped;

static bool is_oi(tn_layout layout)
{
    return layout == TN_LAYOUT_STACKED_OI || layout == TN_LAYOUT_EXPERT_LIST;
}

static bool is_list(tn_layout layout)
{
    return layout == TN_LAYOUT_EXPERT_LIST || layout == TN_LAYOUT_LIST_IO;
}

/* Weights of the layout, one tensor or one per group. */
static int64_t weight_tensors(const grouped *g, tn_dtype dtype, tn_tensor *tensors)
{
    int64_t rows = is_oi(g->layout) ? g->out : g->in, columns = is_oi(g->layout) ? g->in : g->out;
    if (!is_list(g->layout)) {
        tensors[0] = optest_zeros(dtype, 3, (int64_t[]){g->groups, rows, columns});
        return 1;
    }
    for (int64_t e = 0; e < g->groups; e++)
        tensors[e] = optest_zeros(dtype, 2, (int64_t[]){rows, columns});
    return g->groups;
}

/* Element (group, output, input) of weights or of their gradients: its tensor and index there. */
static tn_tensor *weight_at(const grouped *g, const tn_tensor *tensors, int64_t e, int64_t o, int64_t i, int64_t *index)
{
    *index = is_oi(g->layout) ? o * g->in + i : i * g->out + o;
    if (!is_list(g->layout))
        *index += e * g->in * g->out;
    return (tn_tensor *)(uintptr_t)&tensors[is_list(g->layout) ? e : 0];
}

static double weight_get(const grouped *g, const tn_tensor *tensors, int64_t e, int64_t o, int64_t i)
{
    int64_t index;
    const tn_tensor *t = weight_at(g, tensors, e, o, i, &index);
    return optest_at(t, index);
}

/* A call with zero tensors, forward and backward. */
static void grouped_make(grouped *g, tn_layout layout, tn_dtype dtype, int64_t groups, const int64_t *counts,
                         int64_t rows, int64_t in, int64_t out)
{
    *g = (grouped){.layout = layout, .groups = groups, .in = in, .out = out};
    tn_tensor w[MAX_GROUPS];
    g->call = optest_call(TN_OP_GROUPED_MATMUL, dtype, 2, 1);
    g->site = optest_site_of(&g->call);
    g->site->meaning[TN_AXIS_LAYOUT] = (int32_t)layout;
    optest_param(g->site, TN_ROLE_WEIGHT, w, weight_tensors(g, dtype, w));
    g->call.in[0] = optest_zeros(dtype, 2, (int64_t[]){rows, in});
    g->call.in[1] = optest_zeros(TN_I64, 1, &groups);
    g->call.out[0] = optest_zeros(dtype, 2, (int64_t[]){rows, out});
    for (int64_t e = 0; e < groups; e++)
        optest_set(&g->call.in[1], e, (double)counts[e]);
    g->grads = optest_grads(&g->call, 1);
}

static void fill(tn_tensor *t, const tn_tensor *from)
{
    for (int64_t i = 0; i < tn_tensor_count(t); i++)
        optest_set(t, i, optest_at(from, i));
}

static void fill_random(grouped *g, uint32_t seed)
{
    tn_dtype dtype = g->call.in[0].dtype;
    tn_tensor x = optest_random(dtype, 2, g->call.in[0].shape, seed);
    tn_tensor up = optest_random(dtype, 2, g->grads->out[0].shape, seed + 1);
    fill(&g->call.in[0], &x);
    fill(&g->grads->out[0], &up);
    tn_param *w = &g->site->param[TN_ROLE_WEIGHT];
    for (int64_t i = 0; i < w->count; i++) {
        tn_tensor values = optest_random(dtype, w->tensors[i].ndim, w->tensors[i].shape, seed + 2 + (uint32_t)i);
        fill((tn_tensor *)(uintptr_t)&w->tensors[i], &values);
    }
}

/* ---- golden data --------------------------------------------------------------------------------------------- */

static void golden_case(const optest_case *c, tn_layout layout)
{
    tn_tensor x = optest_truth(c, "x"), w = optest_truth(c, "w"), up = optest_truth(c, "grad_out");
    tn_tensor list = optest_truth(c, "group_list"), dw = optest_zeros(c->dtype, 3, w.shape);
    grouped g;
    grouped_make(&g, layout, c->dtype, w.shape[0], list.data, x.shape[0], x.shape[1], w.shape[2]);
    fill(&g.call.in[0], &x);
    fill(&g.grads->out[0], &up);
    for (int64_t e = 0, at = 0; e < g.groups; e++)
        for (int64_t i = 0; i < g.in; i++)
            for (int64_t o = 0; o < g.out; o++, at++) {
                int64_t index;
                tn_tensor *t = weight_at(&g, g.site->param[TN_ROLE_WEIGHT].tensors, e, o, i, &index);
                optest_set(t, index, optest_at(&w, at));
            }
    optest_threads(&g.call);
    optest_expect(c, "out", &g.call.out[0]);
    optest_backward_threads(&g.call);
    optest_expect_grad(c, "grad_x", &g.grads->in[0]);
    for (int64_t e = 0, at = 0; e < g.groups; e++)
        for (int64_t i = 0; i < g.in; i++)
            for (int64_t o = 0; o < g.out; o++, at++)
                optest_set(&dw, at, weight_get(&g, g.grads->param[TN_ROLE_WEIGHT].tensors, e, o, i));
    optest_expect_grad(c, "grad_w", &dw);
}

START_TEST(golden)
{
    for (optest_case c = optest_cases("gmm", "x"); optest_next(&c, 4);)
        golden_case(&c, layouts[_i]);
}
END_TEST

/* ---- other shapes ----------------------------------------------------------------------------------------------- */

/* A sum of `terms` products, with their magnitude: f32 sums in another order, then one rounding. */
static void expect_sum(double got, double sum, double magnitude, int64_t terms, tn_dtype dtype, const char *what)
{
    double bound = magnitude * (double)(terms + 1) * 0x1p-24 + fabs(sum) * optest_epsilon(dtype);
    if (!(fabs(got - sum) <= bound))
        ck_abort_msg("%s, %s: %.9g, expected %.9g +- %.2g", what, tn_dtype_name(dtype), got, sum, bound);
}

static void check_rows(const grouped *g, const int64_t *counts)
{
    const tn_tensor *w = g->site->param[TN_ROLE_WEIGHT].tensors;
    tn_dtype dtype = g->call.in[0].dtype;
    for (int64_t e = 0, row = 0; e < g->groups; e++)
        for (int64_t end = row + counts[e]; row < end; row++) {
            for (int64_t o = 0; o < g->out; o++) {
                double sum = 0, size = 0;
                for (int64_t i = 0; i < g->in; i++) {
                    double term = optest_at(&g->call.in[0], row * g->in + i) * weight_get(g, w, e, o, i);
                    sum += term;
                    size += fabs(term);
                }
                expect_sum(optest_at(&g->call.out[0], row * g->out + o), sum, size, g->in, dtype, "y");
            }
            for (int64_t i = 0; i < g->in; i++) {
                double sum = 0, size = 0;
                for (int64_t o = 0; o < g->out; o++) {
                    double term = optest_at(&g->grads->out[0], row * g->out + o) * weight_get(g, w, e, o, i);
                    sum += term;
                    size += fabs(term);
                }
                expect_sum(optest_at(&g->grads->in[0], row * g->in + i), sum, size, g->out, dtype, "dx");
            }
        }
}

static void check_weights(const grouped *g, const int64_t *counts)
{
    for (int64_t e = 0, first = 0; e < g->groups; first += counts[e++])
        for (int64_t o = 0; o < g->out; o++)
            for (int64_t i = 0; i < g->in; i++) {
                double sum = 0, size = 0;
                for (int64_t row = first; row < first + counts[e]; row++) {
                    double term =
                        optest_at(&g->grads->out[0], row * g->out + o) * optest_at(&g->call.in[0], row * g->in + i);
                    sum += term;
                    size += fabs(term);
                }
                expect_sum(weight_get(g, g->grads->param[TN_ROLE_WEIGHT].tensors, e, o, i), sum, size, counts[e],
                           g->call.in[0].dtype, "dw");
            }
}

static const struct {
    int64_t groups, counts[MAX_GROUPS], in, out;
} shapes[] = {
    {1, {1}, 1, 1},          {1, {0}, 3, 2},
    {3, {0, 0, 0}, 5, 7},    {4, {0, 9, 0, 0}, 33, 17},
    {3, {1, 600, 2}, 8, 12}, {7, {3, 0, 1, 16, 17, 0, 5}, 65, 130},
    {2, {40, 50}, 530, 70},  {2, {30, 20}, 24, 600},
};

START_TEST(any_shape)
{
    for (size_t l = 0; l < 4; l++)
        for (int d = 0; d < 3; d++) {
            int64_t rows = 0;
            for (int64_t e = 0; e < shapes[_i].groups; e++)
                rows += shapes[_i].counts[e];
            grouped g;
            grouped_make(&g, layouts[l], dtypes[d], shapes[_i].groups, shapes[_i].counts, rows, shapes[_i].in,
                         shapes[_i].out);
            fill_random(&g, 5);
            optest_threads(&g.call);
            optest_backward_threads(&g.call);
            check_rows(&g, shapes[_i].counts);
            check_weights(&g, shapes[_i].counts);
        }
}
END_TEST

/* A view of every second row; of the columns of a wider tensor; and all rows the same one. */
START_TEST(strided_rows)
{
    const int64_t counts[] = {3, 0, 4};
    for (int d = 0; d < 3; d++) {
        grouped g;
        grouped_make(&g, TN_LAYOUT_STACKED_IO, dtypes[d], 3, counts, 7, 10, 6);
        fill_random(&g, 3);
        tn_tensor wide_x = optest_zeros(dtypes[d], 2, (int64_t[]){14, 10});
        tn_tensor wide_y = optest_zeros(dtypes[d], 2, (int64_t[]){7, 9}),
                  wide_dx = optest_zeros(dtypes[d], 2, (int64_t[]){7, 13});
        wide_x.shape[0] = 7;
        wide_x.stride[0] = 20;
        wide_y.shape[1] = 6;
        wide_dx.shape[1] = 10;
        fill(&wide_x, &g.call.in[0]);
        g.call.in[0] = wide_x;
        g.call.out[0] = wide_y;
        g.grads->in[0] = wide_dx;
        g.grads->out[0].stride[0] = 0;
        optest_threads(&g.call);
        optest_backward_threads(&g.call);
        check_rows(&g, counts);
        check_weights(&g, counts);
        for (int64_t row = 0; row < 7; row++)
            for (int64_t i = 6; i < 9; i++) {
                tn_tensor whole = tn_tensor_dense(wide_y.data, dtypes[d], 2, (int64_t[]){7, 9});
                ck_assert_double_eq(optest_at(&whole, row * 9 + i), 0.0);
            }
    }
}
END_TEST

/* Weights at odd addresses, of another type than x, and stacked with gaps. */
START_TEST(weights_as_they_come)
{
    const int64_t counts[] = {2, 5};
    for (int io = 0; io < 2; io++) {
        grouped g;
        grouped_make(&g, io ? TN_LAYOUT_STACKED_IO : TN_LAYOUT_STACKED_OI, TN_BF16, 2, counts, 7, 10, 6);
        fill_random(&g, 3);
        tn_tensor *w = (tn_tensor *)(uintptr_t)g.site->param[TN_ROLE_WEIGHT].tensors;
        tn_tensor wide = optest_zeros(TN_BF16, 3, (int64_t[]){2, w->shape[1] + 1, w->shape[2] + 3}), values = *w;
        wide.data = (char *)wide.data + 1;
        wide.shape[1]--;
        wide.shape[2] -= 3;
        fill(&wide, &values);
        *w = wide;
        optest_threads(&g.call);
        optest_backward_threads(&g.call);
        check_rows(&g, counts);
        *w = optest_from(TN_F32, &values);
        optest_run(&g.call);
        optest_backward(&g.call);
        check_rows(&g, counts);
        check_weights(&g, counts);
    }
}
END_TEST

START_TEST(only_what_is_wanted)
{
    const int64_t counts[] = {2, 0, 3};
    grouped g;
    grouped_make(&g, TN_LAYOUT_LIST_IO, TN_F32, 3, counts, 5, 4, 6);
    fill_random(&g, 9);
    void *dx = g.grads->in[0].data;
    g.grads->in[0].data = NULL;
    optest_backward(&g.call);
    check_weights(&g, counts);
    g.grads->in[0].data = dx;
    g.grads->param[TN_ROLE_WEIGHT].count = 0;
    optest_run(&g.call);
    optest_backward(&g.call);
    check_rows(&g, counts);
    /* Without an upstream gradient all are zero. */
    g.grads->param[TN_ROLE_WEIGHT].count = 3;
    g.grads->out[0].data = NULL;
    optest_backward(&g.call);
    optest_expect_zero(&g.grads->in[0]);
    for (int64_t e = 0; e < 3; e++)
        optest_expect_zero(&g.grads->param[TN_ROLE_WEIGHT].tensors[e]);
}
END_TEST

/* ---- bad counts ------------------------------------------------------------------------------------------------- */

START_TEST(counts_that_do_not_describe_x)
{
    static const struct {
        int64_t counts[3];
        const char *why;
    } bad[] = {
        {{3, -1, 5}, "group 1 has -1 rows; counts must not be negative"},
        {{INT64_MIN, 0, 0}, "group 0 has -9223372036854775808 rows; counts must not be negative"},
        {{3, 5, 0}, "group 1 has 5 rows, of the 7 rows of x 4 are left; the counts must add up to the rows of x"},
        {{3, INT64_MAX, INT64_MAX},
         "group 1 has 9223372036854775807 rows, of the 7 rows of x 4 are left; the counts must add up to the rows of "
         "x"},
        {{3, 0, 3}, "the last group, 2, ends at row 6 of 7; the counts must add up to the rows of x"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        grouped g;
        grouped_make(&g, TN_LAYOUT_STACKED_OI, TN_BF16, 3, (int64_t[]){7, 0, 0}, 7, 4, 5);
        fill_random(&g, 1);
        memcpy(g.call.in[1].data, bad[i].counts, sizeof bad[i].counts);
        tn_error err = TN_ERROR_INIT, again = TN_ERROR_INIT;
        ck_assert_int_eq(optest_try(&g.call, &err), TN_E_INPUT);
        ck_assert_str_eq(err.message, bad[i].why);
        ck_assert_str_eq(err.where, "model.layers.0.test");
        ck_assert_int_eq(optest_try_backward(&g.call, &again), TN_E_INPUT);
        ck_assert_str_eq(again.message, bad[i].why);
        optest_expect_zero(&g.call.out[0]);
        optest_expect_zero(&g.grads->in[0]);
        optest_expect_zero(g.grads->param[TN_ROLE_WEIGHT].tensors);
    }
}
END_TEST

START_TEST(without_meaning)
{
    grouped g;
    grouped_make(&g, TN_LAYOUT_STACKED_OI, TN_F32, 1, (int64_t[]){2}, 2, 4, 5);
    g.site->meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
    ck_assert_int_eq(optest_try(&g.call, NULL), TN_E_INTERNAL);
    g.site->meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_STACKED_OI;
    g.site->param[TN_ROLE_WEIGHT].count = 0;
    ck_assert_int_eq(optest_try(&g.call, NULL), TN_E_INTERNAL);
    ck_assert_int_eq(optest_try_backward(&g.call, NULL), TN_E_INTERNAL);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: grouped products", 120);
    tcase_add_loop_test(tc, golden, 0, 4);
    tcase_add_loop_test(tc, any_shape, 0, (int)(sizeof shapes / sizeof *shapes));
    suite_add(tc, strided_rows, weights_as_they_come, only_what_is_wanted, counts_that_do_not_describe_x,
              without_meaning);
    return suite_run();
}
