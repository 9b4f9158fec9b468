/* CHOOSE_KEYS: which keys queries get, against a plain count of the better ones in double precision. */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>

enum { BATCH = 2, TOKENS = 5, KEYS = 40, HEADS = 3, D = 8, TOP = 6 };
static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static double score(const tn_call *call, int64_t b, int64_t t, int64_t s)
{
    double sum = 0;
    for (int64_t n = 0; n < HEADS; n++) {
        double dot = 0;
        for (int64_t i = 0; i < D; i++)
            dot += optest_at(&call->in[0], ((b * TOKENS + t) * HEADS + n) * D + i) *
                   optest_at(&call->in[1], (b * KEYS + s) * D + i);
        sum += optest_at(&call->in[2], (b * TOKENS + t) * HEADS + n) * (dot < 0 ? 0 : dot);
    }
    return sum;
}

/* A ring, in which position p lies in slot (p + 7) % KEYS; the last slots are not used, nor is the first of row 1. */
static tn_call make_call(tn_dtype dtype)
{
    tn_call call = optest_call(TN_OP_CHOOSE_KEYS, dtype, 5, 1);
    optest_site_of(&call)->dim[TN_DIM_TOP_K] = TOP;
    call.in[0] = optest_random(dtype, 4, (int64_t[]){BATCH, TOKENS, HEADS, D}, 1);
    call.in[1] = optest_random(dtype, 4, (int64_t[]){BATCH, KEYS, 1, D}, 2);
    call.in[2] = optest_random(dtype, 3, (int64_t[]){BATCH, TOKENS, HEADS}, 3);
    call.in[3] = optest_zeros(TN_I32, 2, (int64_t[]){BATCH, TOKENS});
    call.in[4] = optest_zeros(TN_I32, 2, (int64_t[]){BATCH, KEYS});
    for (int64_t i = 0; i < BATCH * TOKENS; i++) /* sees nothing, fewer than TOP, exactly those, more, all  */
        optest_set(&call.in[3], i, (double[]){-1, 2, TOP - 1, 20, KEYS}[i % TOKENS]);
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t p = 0; p < KEYS; p++)
            optest_set(&call.in[4], b * KEYS + (p + 7) % KEYS, p < KEYS - 4 && (b == 0 || p > 0) ? (double)p : -1);
    call.out[0] = optest_zeros(TN_I32, 3, (int64_t[]){BATCH, TOKENS, KEYS});
    return call;
}

static bool sees(const tn_call *call, int64_t b, int64_t t, int64_t s)
{
    double at = optest_at(&call->in[4], b * KEYS + s);
    return at >= 0 && at <= optest_at(&call->in[3], b * TOKENS + t);
}

/* out is what a plain count gives of the keys that are seen with better scores, or equal ones at earlier positions. */
static void check_chosen(const tn_call *call, int64_t most)
{
    for (int64_t i = 0; i < BATCH * TOKENS * KEYS; i++) {
        int64_t b = i / KEYS / TOKENS, t = i / KEYS % TOKENS, s = i % KEYS, better = 0;
        double own = score(call, b, t, s), at = optest_at(&call->in[4], b * KEYS + s);
        for (int64_t other = 0; other < KEYS; other++) {
            double theirs = score(call, b, t, other);
            bool earlier = optest_at(&call->in[4], b * KEYS + other) < at;
            bool equal = theirs == own || (isnan(theirs) && isnan(own));
            better += sees(call, b, t, other) && (equal ? earlier : isnan(own) || theirs > own);
        }
        ck_assert_msg(optest_at(&call->out[0], i) == (sees(call, b, t, s) && better < most),
                      "%s, row %d, query %d, slot %d", tn_dtype_name(call->in[0].dtype), (int)b, (int)t, (int)s);
    }
}

START_TEST(the_best_that_are_seen)
{
    static const int64_t most[] = {1, 2, TOP, 7, KEYS - 1, KEYS, KEYS + 9};
    for (size_t k = 0; k < sizeof most / sizeof *most; k++) {
        tn_call call = make_call(dtypes[_i]);
        optest_site_of(&call)->dim[TN_DIM_TOP_K] = most[k];
        optest_threads(&call);
        check_chosen(&call, most[k]);
    }
}
END_TEST

/* Pairs of keys that are the same: one of each last pair is left over. */
START_TEST(ties_between_others)
{
    tn_call call = make_call(dtypes[_i]);
    for (int64_t i = 0; i < BATCH * KEYS * D; i++)
        if (i / D % 2)
            optest_set(&call.in[1], i, optest_at(&call.in[1], i - D));
    optest_site_of(&call)->dim[TN_DIM_TOP_K] = 5;
    optest_run(&call);
    check_chosen(&call, 5);
}
END_TEST

/* Keys and a query that are not numbers: behind all others, the earlier ones first. */
START_TEST(not_a_number_comes_last)
{
    for (int64_t most = 1; most <= KEYS; most += 13) {
        tn_call call = make_call(dtypes[_i]);
        for (int64_t s = 0; s < KEYS; s += 3)
            optest_set(&call.in[1], s * D + s % D, (double)NAN);
        optest_set(&call.in[0], (4 * HEADS + 1) * D + 2, (double)NAN);
        optest_set(&call.in[2], (TOKENS + 3) * HEADS, (double)NAN);
        optest_site_of(&call)->dim[TN_DIM_TOP_K] = most;
        optest_threads(&call);
        check_chosen(&call, most);
    }
}
END_TEST

/* Equal scores: the earlier positions, wherever they lie. */
START_TEST(the_earlier_of_equals)
{
    tn_call call = make_call(dtypes[_i]);
    for (int64_t i = 0; i < BATCH * TOKENS * HEADS; i++)
        optest_set(&call.in[2], i, 0);
    optest_run(&call);
    for (int64_t i = 0; i < BATCH * TOKENS * KEYS; i++) {
        int64_t b = i / KEYS / TOKENS, t = i / KEYS % TOKENS, s = i % KEYS;
        double at = optest_at(&call.in[4], b * KEYS + s);
        ck_assert_double_eq(optest_at(&call.out[0], i), sees(&call, b, t, s) && at < TOP + (double)b);
    }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("chosen keys", 60);
    tcase_add_loop_test(tc, the_best_that_are_seen, 0, 3);
    tcase_add_loop_test(tc, the_earlier_of_equals, 0, 3);
    tcase_add_loop_test(tc, ties_between_others, 0, 3);
    tcase_add_loop_test(tc, not_a_number_comes_last, 0, 3);
    return suite_run();
}
