/* SOFTCAP: its three roundings, and its gradients against those of double precision. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
static const int64_t sizes[][2] = {{0, 3}, {1, 1}, {3, 17}, {2, 515}, {40, 264}};
static const double caps[] = {30.0, 0.7, 6.0};

/* Random numbers have about unit size; times 2 cap they reach where tanh is flat. */
static tn_call make_call(tn_dtype dtype, const int64_t shape[2], double cap)
{
    tn_call call = optest_call(TN_OP_SOFTCAP, dtype, 1, 1);
    tn_site *site = optest_site_of(&call);
    site->num[TN_NUM_SOFTCAP] = cap;
    call.in[0] = optest_random(dtype, 2, shape, 1);
    for (int64_t i = 0; i < tn_tensor_count(&call.in[0]); i++)
        optest_set(&call.in[0], i, optest_at(&call.in[0], i) * 2.0 * cap);
    call.out[0] = optest_zeros(dtype, 2, shape);
    return call;
}

/* What follows from a tanh that is stretched by as much. */
static double capped(double x, double cap, double stretch, tn_dtype dtype)
{
    double t = optest_rounded(tanh(optest_rounded((double)((float)x / (float)cap), dtype)) * stretch, dtype);
    return optest_rounded((double)((float)t * (float)cap), dtype);
}

START_TEST(each_step_rounds)
{
    for (int d = 0; d < 3; d++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            tn_call call = make_call(dtypes[d], sizes[s], caps[_i]);
            optest_threads(&call);
            for (int64_t i = 0; i < tn_tensor_count(&call.in[0]); i++) {
                /* tanh is within 2 ulp of f32, and what follows does not turn the order round. */
                double x = optest_at(&call.in[0], i), got = fabs(optest_at(&call.out[0], i));
                double low = fabs(capped(x, caps[_i], 1.0 - 0x1p-22, dtypes[d]));
                double high = fabs(capped(x, caps[_i], 1.0 + 0x1p-22, dtypes[d]));
                if (!(low <= got && got <= high) || signbit(x) != signbit(optest_at(&call.out[0], i)))
                    ck_abort_msg("%s, element %d, x %.9g: %.9g, expected %.9g to %.9g", tn_dtype_name(dtypes[d]),
                                 (int)i, x, got, low, high);
            }
            optest_in_place(&call);
        }
}
END_TEST

/* g (1 - t^2) with t = tanh(u): u, t, g cap, the product and the quotient round; in f32 t is off by 2 ulp more. */
static double bound(double g, double u, tn_dtype dtype)
{
    double t = tanh(u), slope = 1.0 - t * t, off = dtype == TN_F32 ? 5.0 : 1.0 + 0x1p-10;
    double roundings = 3.0 * slope + 2.0 * t * t * off + 2.0 * fabs(t * u) * slope;
    return 1.05 * fabs(g) * roundings * optest_epsilon(dtype) + (dtype == TN_F16 ? 0x1p-22 : 1e-30);
}

START_TEST(gradients)
{
    for (int d = 0; d < 3; d++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            tn_call call = make_call(dtypes[d], sizes[s], caps[_i]);
            tn_grads *grads = optest_grads(&call, 3);
            optest_backward_threads(&call);
            for (int64_t i = 0; i < tn_tensor_count(&call.in[0]); i++) {
                double u = optest_at(&call.in[0], i) / caps[_i], g = optest_at(&grads->out[0], i);
                double got = optest_at(&grads->in[0], i), expected = g * (1.0 - tanh(u) * tanh(u));
                if (!(fabs(got - expected) <= bound(g, u, dtypes[d])))
                    ck_abort_msg("%s, element %d: %.9g, expected %.9g within %.3g", tn_dtype_name(dtypes[d]), (int)i,
                                 got, expected, bound(g, u, dtypes[d]));
            }
            optest_backward_in_place(&call);
        }
}
END_TEST

START_TEST(absent_gradients)
{
    tn_call call = make_call(TN_BF16, (int64_t[]){3, 17}, 30.0);
    tn_grads *grads = optest_grads(&call, 3);
    for (int64_t i = 0; i < 51; i++)
        optest_set(&grads->in[0], i, 7.0);
    grads->out[0].data = NULL;
    optest_backward(&call);
    optest_expect_zero(&grads->in[0]);
    grads->in[0].data = NULL;
    optest_backward(&call);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: softcap", 0);
    tcase_add_loop_test(tc, each_step_rounds, 0, (int)(sizeof caps / sizeof *caps));
    tcase_add_loop_test(tc, gradients, 0, (int)(sizeof caps / sizeof *caps));
    suite_add(tc, absent_gradients);
    return suite_run();
}
