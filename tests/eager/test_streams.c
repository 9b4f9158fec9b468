/* Steps of models with several streams, and an embedding whose table lacks some tokens. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>

enum { STREAMS = 3, TOKENS = 5, WIDTH = 601 };

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static double stream_at(const tn_tensor *x, int64_t s, int64_t t, int64_t i)
{
    return optest_at(x, (s * TOKENS + t) * WIDTH + i);
}

/* What is wanted of one element, and the size of what it is a sum of. */
typedef struct wanted {
    double value, size;
} wanted;

static wanted mixed(const tn_call *call, int64_t s, int64_t t, int64_t i)
{
    wanted w = {stream_at(&call->in[0], s, t, i), 0};
    w.size = fabs(w.value);
    for (int64_t k = 0; k < STREAMS; k++) {
        double c = optest_at(&call->in[1], t * STREAMS * STREAMS + s * STREAMS + k);
        w.value += c * stream_at(&call->in[0], k, t, i);
        w.size += fabs(c * stream_at(&call->in[0], k, t, i));
    }
    return w;
}

static wanted added(const tn_call *call, int64_t s, int64_t t, int64_t i)
{
    double x = stream_at(&call->in[0], s, t, i), c = optest_at(&call->in[2], t * STREAMS + s);
    double more = optest_at(&call->in[1], t * WIDTH + i) * (1 + c);
    return (wanted){x + more, fabs(x) + 2 * fabs(more) + fabs(c)};
}

static void expect_streams(tn_call *call, wanted (*of)(const tn_call *, int64_t, int64_t, int64_t))
{
    double eps = optest_epsilon(call->in[0].dtype);
    optest_threads(call);
    for (int64_t s = 0; s < STREAMS; s++)
        for (int64_t t = 0; t < TOKENS; t++)
            for (int64_t i = 0; i < WIDTH; i++) {
                wanted w = of(call, s, t, i);
                double got = stream_at(&call->out[0], s, t, i);
                ck_assert_msg(fabs(got - w.value) <= 2 * eps * w.size, "stream %d token %d element %d: %g, not %g",
                              (int)s, (int)t, (int)i, got, w.value);
            }
}

static tn_call start(tn_op op, tn_dtype dtype, int32_t in_count)
{
    const int64_t shape[3] = {STREAMS, TOKENS, WIDTH};
    tn_call call = optest_call(op, dtype, in_count, 1);
    call.in[0] = optest_random(dtype, 3, shape, 1);
    call.out[0] = optest_zeros(dtype, 3, shape);
    return call;
}

START_TEST(streams_are_mixed)
{
    tn_call call = start(TN_OP_STREAM_MIX, dtypes[_i], 2);
    call.in[1] = optest_random(dtypes[_i], 2, (int64_t[]){TOKENS, STREAMS * STREAMS}, 2);
    expect_streams(&call, mixed);
    tn_call place = call; /* in place: the same                                                      */
    place.in[0] = place.out[0] = optest_random(dtypes[_i], 3, call.in[0].shape, 1);
    optest_run(&place);
    for (int64_t i = 0; i < tn_tensor_count(&call.out[0]); i++)
        ck_assert(optest_at(&place.out[0], i) == optest_at(&call.out[0], i));
}
END_TEST

START_TEST(streams_are_added_to)
{
    tn_call call = start(TN_OP_STREAM_ADD, dtypes[_i], 3);
    call.in[1] = optest_random(dtypes[_i], 2, (int64_t[]){TOKENS, WIDTH}, 2);
    call.in[2] = optest_random(dtypes[_i], 2, (int64_t[]){TOKENS, STREAMS}, 3);
    expect_streams(&call, added);
}
END_TEST

START_TEST(the_mean_is_of_all)
{
    tn_call call = start(TN_OP_STREAM_MEAN, dtypes[_i], 1);
    call.out[0] = optest_zeros(dtypes[_i], 2, (int64_t[]){TOKENS, WIDTH});
    optest_threads(&call);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < WIDTH; i++) {
            double sum = 0, size = 0;
            for (int64_t s = 0; s < STREAMS; s++) {
                sum += stream_at(&call.in[0], s, t, i);
                size += fabs(stream_at(&call.in[0], s, t, i));
            }
            ck_assert(fabs(optest_at(&call.out[0], t * WIDTH + i) - sum / STREAMS) <=
                      optest_epsilon(dtypes[_i]) * size);
        }
}
END_TEST

/* Row 1 is of zeros: its size counts as the least, and it stays zeros. */
START_TEST(rows_get_the_size_of_others)
{
    const int64_t shape[2] = {2, WIDTH};
    double eps = optest_epsilon(dtypes[_i]), wanted_sum = 0, sum = 0;
    tn_call call = optest_call(TN_OP_RMS_MATCH, dtypes[_i], 2, 1);
    optest_site_of(&call)->num[TN_NUM_EPS] = 1e-5;
    call.in[0] = optest_random(dtypes[_i], 2, shape, 1);
    call.in[1] = optest_random(dtypes[_i], 2, shape, 2);
    call.out[0] = optest_zeros(dtypes[_i], 2, shape);
    for (int64_t i = 0; i < WIDTH; i++) {
        optest_set(&call.in[0], i, 4 * optest_at(&call.in[0], i));
        optest_set(&call.in[0], WIDTH + i, 0);
    }
    optest_threads(&call);
    for (int64_t i = 0; i < WIDTH; i++) {
        sum += pow(optest_at(&call.out[0], i), 2);
        wanted_sum += pow(optest_at(&call.in[1], i), 2);
        ck_assert(optest_at(&call.out[0], WIDTH + i) == 0);
    }
    /* Each of eight roundings moves the quotient by half a unit at most, but for those of single elements. */
    ck_assert_msg(fabs(sqrt(sum / wanted_sum) - 1) <= 4 * eps, "%g", sqrt(sum / wanted_sum));
}
END_TEST

START_TEST(tokens_beyond_the_table_are_the_first)
{
    int64_t ids[3] = {4, 2, 7};
    tn_call call = optest_call(TN_OP_EMBEDDING, dtypes[_i], 1, 1);
    tn_tensor table = optest_random(dtypes[_i], 2, (int64_t[]){5, 9}, 1);
    optest_param(optest_site_of(&call), TN_ROLE_WEIGHT, &table, 1);
    call.in[0] = tn_tensor_dense(ids, TN_I64, 1, (int64_t[]){3});
    call.out[0] = optest_zeros(dtypes[_i], 2, (int64_t[]){3, 9});
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(optest_try(&call, &err), TN_E_INPUT);
    optest_site_of(&call)->features = TN_HAS_PARTIAL;
    optest_run(&call);
    const int64_t rows[3] = {4, 2, 0};
    for (int64_t i = 0; i < 27; i++)
        ck_assert(optest_at(&call.out[0], i) == optest_at(&table, rows[i / 9] * 9 + i % 9));
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: streams", 0);
    int count = (int)(sizeof dtypes / sizeof *dtypes);
    tcase_add_loop_test(tc, streams_are_mixed, 0, count);
    tcase_add_loop_test(tc, streams_are_added_to, 0, count);
    tcase_add_loop_test(tc, the_mean_is_of_all, 0, count);
    tcase_add_loop_test(tc, rows_get_the_size_of_others, 0, count);
    tcase_add_loop_test(tc, tokens_beyond_the_table_are_the_first, 0, count);
    return suite_run();
}
