/* The slope of PReLU below 0, a number of the site: ACT and GLU, forward and back. It is a power of two, so that
 * products with it are exact. */
#include "optest.h"
#include "suite.h"

#include <check.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
static const double slopes[] = {0.25, -2, 0};
enum { ROWS = 3, WIDTH = 650 };

static double act(double x, double slope)
{
    return x < 0 ? slope * x : x;
}

static tn_call make_call(tn_op op, tn_dtype dtype, double slope)
{
    int32_t inputs = op == TN_OP_GLU ? 2 : 1;
    tn_call call = optest_call(op, dtype, inputs, 1);
    optest_site_of(&call)->meaning[TN_AXIS_ACT] = TN_ACT_PRELU;
    optest_site_of(&call)->num[TN_NUM_ALPHA] = slope;
    for (int32_t i = 0; i < inputs; i++)
        call.in[i] = optest_random(dtype, 2, (int64_t[]){ROWS, WIDTH}, 1 + (uint32_t)i);
    call.out[0] = optest_zeros(dtype, 2, (int64_t[]){ROWS, WIDTH});
    return call;
}

START_TEST(values)
{
    for (int op = 0; op < 2; op++)
        for (int s = 0; s < 3; s++) {
            tn_call call = make_call(op ? TN_OP_GLU : TN_OP_ACT, dtypes[_i], slopes[s]);
            optest_threads(&call);
            for (int64_t i = 0; i < ROWS * WIDTH; i++) {
                double y = act(optest_at(&call.in[0], i), slopes[s]);
                y = op ? optest_rounded(y * optest_at(&call.in[1], i), dtypes[_i]) : y;
                ck_assert_double_eq(optest_at(&call.out[0], i), y);
            }
        }
}
END_TEST

START_TEST(gradients)
{
    for (int op = 0; op < 2; op++)
        for (int s = 0; s < 3; s++) {
            tn_call call = make_call(op ? TN_OP_GLU : TN_OP_ACT, dtypes[_i], slopes[s]);
            tn_grads *grads = optest_grads(&call, 5);
            optest_backward_threads(&call);
            for (int64_t i = 0; i < ROWS * WIDTH; i++) {
                double x = optest_at(&call.in[0], i), dy = optest_at(&grads->out[0], i);
                double da = op ? optest_rounded(dy * optest_at(&call.in[1], i), dtypes[_i]) : dy;
                ck_assert_double_eq(optest_at(&grads->in[0], i), da * (x > 0 ? 1 : slopes[s]));
                if (op)
                    ck_assert_double_eq(optest_at(&grads->in[1], i),
                                        optest_rounded(dy * act(x, slopes[s]), dtypes[_i]));
            }
        }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: slope of PReLU", 60);
    tcase_add_loop_test(tc, values, 0, 3);
    tcase_add_loop_test(tc, gradients, 0, 3);
    return suite_run();
}
