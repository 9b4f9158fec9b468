/* Gradients of LINEAR. Inputs hold multiples of 1/64 below 2: up to 1000 of their products sum exactly in f32, in any
 * order, so gradients must equal the correctly rounded sums bit for bit. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

typedef struct linear {
    tn_call call;
    tn_site *site;
    tn_grads *grads;
    int64_t m, n, k; /* tokens, out, in                                                           */
} linear;

static void make(linear *l, tn_dtype dtype, int64_t m, int64_t n, int64_t k)
{
    l->m = m;
    l->n = n;
    l->k = k;
    l->call = optest_call(TN_OP_LINEAR, dtype, 1, 1);
    l->site = optest_site_of(&l->call);
    tn_tensor w = optest_random(dtype, 2, (int64_t[]){n, k}, 1), b = optest_random(dtype, 1, &n, 2);
    optest_param(l->site, TN_ROLE_WEIGHT, &w, 1);
    optest_param(l->site, TN_ROLE_BIAS, &b, 1);
    l->site->features = TN_HAS_BIAS;
    l->call.in[0] = optest_random(dtype, 2, (int64_t[]){m, k}, 3);
    l->call.out[0] = optest_zeros(dtype, 2, (int64_t[]){m, n});
    l->grads = optest_grads(&l->call, 4);
}

static void equals(const tn_tensor *t, int64_t at, double sum, const char *what)
{
    float exact = (float)sum, expected;
    uint32_t rounded = 0;
    convert_from_f32(&exact, t->dtype, &rounded, 1);
    convert_to_f32(&rounded, t->dtype, &expected, 1);
    if (optest_at(t, at) != (double)expected)
        ck_abort_msg("%s of %s, element %d: %.9g, expected %.9g", what, tn_dtype_name(t->dtype), (int)at,
                     optest_at(t, at), (double)expected);
}

/* All elements of small products, every seventh of large ones. */
static void check(const linear *l)
{
    const tn_tensor *x = &l->call.in[0], *w = l->site->param[TN_ROLE_WEIGHT].tensors, *g = &l->grads->out[0];
    const tn_param *dw = &l->grads->param[TN_ROLE_WEIGHT], *db = &l->grads->param[TN_ROLE_BIAS];
    int64_t step = l->m * l->n * l->k > 1000000 ? 7 : 1;
    for (int64_t e = 0; l->grads->in[0].data && e < l->m * l->k; e += step) {
        double sum = 0.0;
        for (int64_t j = 0; j < l->n; j++)
            sum += optest_at(g, e / l->k * l->n + j) * optest_at(w, j * l->k + e % l->k);
        equals(&l->grads->in[0], e, sum, "dx");
    }
    for (int64_t e = 0; dw->count && e < l->n * l->k; e += step) {
        double sum = 0.0;
        for (int64_t i = 0; i < l->m; i++)
            sum += optest_at(g, i * l->n + e / l->k) * optest_at(x, i * l->k + e % l->k);
        equals(dw->tensors, e, sum, "dweight");
    }
    for (int64_t j = 0; db->count && j < l->n; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < l->m; i++)
            sum += optest_at(g, i * l->n + j);
        equals(db->tensors, j, sum, "dbias");
    }
}

static const int64_t sizes[][3] = {{0, 5, 7},    {1, 1, 1},      {1, 130, 33},  {3, 127, 100}, {5, 1, 300},
                                   {8, 513, 31}, {17, 300, 99},  {33, 64, 64},  {65, 129, 70}, {100, 600, 40},
                                   {513, 40, 8}, {1000, 70, 16}, {20, 15, 1030}};

START_TEST(any_size)
{
    for (int d = 0; d < 3; d++) {
        linear l;
        make(&l, dtypes[d], sizes[_i][0], sizes[_i][1], sizes[_i][2]);
        optest_backward_threads(&l.call);
        check(&l);
    }
}
END_TEST

/* A matrix that is columns 3 .. of a wider one with the same contents in them. */
static tn_tensor within(const tn_tensor *t)
{
    int64_t rows = t->shape[0], width = t->shape[1];
    tn_tensor wide = optest_random(t->dtype, 2, (int64_t[]){rows, width + 9}, 99), view = wide;
    view.shape[1] = width;
    view.data = (char *)wide.data + 3 * tn_dtype_size(t->dtype);
    for (int64_t i = 0; i < rows * width; i++)
        optest_set(&view, i, optest_at(t, i));
    return view;
}

/* Nothing around a strided gradient may change. */
START_TEST(strided_rows)
{
    for (int d = 0; d < 3; d++) {
        linear l;
        make(&l, dtypes[d], 20, 150, 40);
        l.call.in[0] = within(&l.call.in[0]);
        l.grads->out[0] = within(&l.grads->out[0]);
        l.grads->in[0] = within(&l.grads->in[0]);
        optest_backward_threads(&l.call);
        check(&l);
        tn_tensor all = optest_random(dtypes[d], 2, (int64_t[]){20, 49}, 99), got = l.grads->in[0];
        got.data = (char *)got.data - 3 * tn_dtype_size(dtypes[d]);
        got.shape[1] = 49;
        for (int64_t i = 0; i < 20 * 49; i++)
            if ((i % 49 < 3 || i % 49 >= 43) && optest_at(&got, i) != optest_at(&all, i))
                ck_abort_msg("column %d was written", (int)(i % 49));
    }
}
END_TEST

START_TEST(leading_dimensions_fold)
{
    linear l;
    make(&l, TN_BF16, 24, 33, 20);
    l.call.in[0] = optest_random(TN_BF16, 4, (int64_t[]){2, 3, 4, 20}, 3);
    l.grads->in[0] = optest_zeros(TN_BF16, 4, (int64_t[]){2, 3, 4, 20});
    l.grads->out[0] = optest_random(TN_BF16, 4, (int64_t[]){2, 3, 4, 33}, 4);
    optest_backward(&l.call);
    check(&l);
    l.call.in[0] = optest_transpose(l.call.in[0], 0, 1);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(optest_try_backward(&l.call, &err), TN_E_INTERNAL);
}
END_TEST

/* Types of x and weight need not be the same; a gradient has the type of what it belongs to. */
START_TEST(mixed_types)
{
    for (int xd = 0; xd < 3; xd++)
        for (int wd = 0; wd < 3; wd++) {
            linear l;
            make(&l, dtypes[xd], 9, 140, 50);
            tn_tensor w = optest_random(dtypes[wd], 2, (int64_t[]){140, 50}, 1);
            optest_param(l.site, TN_ROLE_WEIGHT, &w, 1);
            l.grads = optest_grads(&l.call, 4);
            optest_backward(&l.call);
            check(&l);
        }
}
END_TEST

START_TEST(absent_tensors)
{
    for (int left_out = 0; left_out < 3; left_out++) {
        linear l;
        make(&l, TN_BF16, 9, 30, 20);
        if (left_out == 0)
            l.grads->in[0].data = NULL;
        else
            l.grads->param[left_out == 1 ? TN_ROLE_WEIGHT : TN_ROLE_BIAS].count = 0;
        optest_backward(&l.call);
        check(&l);
    }
    linear l;
    make(&l, TN_F16, 9, 30, 20);
    optest_backward(&l.call);
    l.grads->out[0].data = NULL;
    optest_backward(&l.call);
    optest_expect_zero(&l.grads->in[0]);
    optest_expect_zero(l.grads->param[TN_ROLE_WEIGHT].tensors);
    optest_expect_zero(l.grads->param[TN_ROLE_BIAS].tensors);
    l.site->param[TN_ROLE_WEIGHT].count = 0;
    ck_assert_int_eq(optest_try_backward(&l.call, NULL), TN_E_INTERNAL);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of linear layers", 120);
    tcase_add_loop_test(tc, any_size, 0, (int)(sizeof sizes / sizeof *sizes));
    suite_add(tc, strided_rows, leading_dimensions_fold, mixed_types, absent_tensors);
    return suite_run();
}
