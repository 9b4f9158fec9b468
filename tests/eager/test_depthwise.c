/* DEPTHWISE: against sums in double precision that ask of each place whether it is there. */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static const struct {
    int64_t lines, places, channels, side, stride;
} cases[] = {{6, 9, 5, 3, 1},   {6, 9, 70, 3, 2}, {7, 4, 64, 5, 2}, {1, 1, 3, 5, 1},
             {2, 3, 130, 4, 1}, {5, 5, 8, 1, 2},  {9, 2, 4, 2, 2}};
enum { CASES = sizeof cases / sizeof *cases, DTYPES = sizeof dtypes / sizeof *dtypes };

/* How many zeros come before a line, or lines, of so many. */
static int64_t before(int64_t in, int64_t out, int64_t side, int64_t stride)
{
    int64_t beyond = (out - 1) * stride + side - in;
    return beyond > 0 ? beyond / 2 : 0;
}

START_TEST(each_channel_by_itself)
{
    int64_t h = cases[_i / DTYPES].lines, w = cases[_i / DTYPES].places, c = cases[_i / DTYPES].channels;
    int64_t side = cases[_i / DTYPES].side, g = cases[_i / DTYPES].stride, oh = (h + g - 1) / g, ow = (w + g - 1) / g;
    tn_dtype dtype = dtypes[_i % DTYPES];
    tn_call call = optest_call(TN_OP_DEPTHWISE, dtype, 1, 1);
    tn_site *site = optest_site_of(&call);
    tn_tensor weight = optest_random(dtype, 2, (int64_t[]){side * side, c}, 1);
    site->dim[TN_DIM_TAPS] = side;
    site->dim[TN_DIM_STRIDE] = g;
    optest_param(site, TN_ROLE_WEIGHT, &weight, 1);
    call.in[0] = optest_random(dtype, 3, (int64_t[]){h, w, c}, 2);
    call.out[0] = optest_zeros(dtype, 3, (int64_t[]){oh, ow, c});
    optest_threads(&call);
    int64_t top = before(h, oh, side, g), left = before(w, ow, side, g);
    for (int64_t i = 0; i < oh * ow * c; i++) {
        double sum = 0, size = 0;
        for (int64_t tap = 0; tap < side * side; tap++) {
            int64_t line = i / c / ow * g + tap / side - top, place = i / c % ow * g + tap % side - left;
            if (line < 0 || line >= h || place < 0 || place >= w)
                continue;
            double product =
                optest_at(&weight, tap * c + i % c) * optest_at(&call.in[0], (line * w + place) * c + i % c);
            sum += product;
            size += fabs(product);
        }
        double bound = 32 * size * optest_epsilon(TN_F32) + 1.01 * fabs(sum) * optest_epsilon(dtype) + 1e-7;
        ck_assert_double_le(fabs(optest_at(&call.out[0], i) - sum), bound);
    }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("depthwise", 60);
    tcase_add_loop_test(tc, each_channel_by_itself, 0, CASES * DTYPES);
    return suite_run();
}
