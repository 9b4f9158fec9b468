/* TN_ACT_XIELU of ACT: values and gradients against double precision, in all types. */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <tenon/half.h>

static const double A = 0.75, N = 0.875, B = 0.5, E = -0x1p-20;
static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static double rounded(double x, tn_dtype dtype)
{
    return dtype == TN_BF16  ? (double)tn_bf16_to_f32(tn_f32_to_bf16((float)x))
           : dtype == TN_F16 ? (double)tn_f16_to_f32(tn_f32_to_f16((float)x))
                             : x;
}

/* Rounded as the modeling file does. */
static double value(double x, tn_dtype d)
{
    double line = rounded(B * x, d);
    if (x > 0)
        return rounded(rounded(rounded(A * x, d) * x, d) + line, d);
    return rounded(rounded(rounded(rounded(expm1(fmin(x, E)), d) - x, d) * N, d) + line, d);
}

static double slope(double x)
{
    return x > 0 ? 2 * A * x + B : N * ((x < E ? exp(x) : 0) - 1) + B;
}

static tn_call make_call(tn_dtype dtype)
{
    enum { ROWS = 2, WIDTH = 650 };
    tn_call call = optest_call(TN_OP_ACT, dtype, 1, 1);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_ACT] = TN_ACT_XIELU;
    site->num[TN_NUM_ALPHA] = A;
    site->num[TN_NUM_ALPHA_N] = N;
    site->num[TN_NUM_BETA] = B;
    site->num[TN_NUM_EPS] = E;
    call.in[0] = optest_zeros(dtype, 2, (int64_t[]){ROWS, WIDTH});
    for (int64_t i = 0; i < ROWS * WIDTH; i++)
        optest_set(&call.in[0], i, i % 50 == 7 ? 0 : i % 50 == 8 ? E / 2 : (double)(i - WIDTH) / 64);
    call.out[0] = optest_zeros(dtype, 2, (int64_t[]){ROWS, WIDTH});
    return call;
}

/* Numbers on the way are no larger than x where the value is smaller. */
START_TEST(values)
{
    tn_call call = make_call(dtypes[_i]);
    optest_threads(&call);
    for (int64_t i = 0; i < tn_tensor_count(&call.in[0]); i++) {
        double x = optest_at(&call.in[0], i), want = value(x, dtypes[_i]);
        ck_assert_double_eq_tol(optest_at(&call.out[0], i), want,
                                4 * optest_epsilon(dtypes[_i]) * fmax(fabs(want), 1 + fabs(x)));
    }
}
END_TEST

START_TEST(gradients)
{
    tn_call call = make_call(dtypes[_i]);
    tn_grads *grads = optest_grads(&call, 3);
    optest_backward_threads(&call);
    for (int64_t i = 0; i < tn_tensor_count(&call.in[0]); i++) {
        double want = slope(optest_at(&call.in[0], i)) * optest_at(&grads->out[0], i);
        double size = fmax(fabs(want), fabs(optest_at(&grads->out[0], i)));
        ck_assert_double_le(fabs(optest_at(&grads->in[0], i) - want), 4 * optest_epsilon(dtypes[_i]) * size);
    }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("xielu", 60);
    tcase_add_loop_test(tc, values, 0, 3);
    tcase_add_loop_test(tc, gradients, 0, 3);
    return suite_run();
}
