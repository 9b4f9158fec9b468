/* CHOOSE_KEYS: which keys queries get, against a plain count of the better ones in double precision. */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>

enum { BATCH = 2, TOKENS = 5, KEYS = 40, HEADS = 3, D = 8, TOP = 6 };

static double score(const tn_call *call, int64_t b, int64_t t, int64_t s)
{
    double sum = 0;
    for (int64_t n = 0; n < HEADS; n++) {
        double dot = 0;
        for (int64_t i = 0; i < D; i++)
            dot += optest_at(&call->in[0], ((b * TOKENS + t) * HEADS + n) * D + i) *
                   optest_at(&call->in[1], (b * KEYS + s) * D + i);
        sum += optest_at(&call->in[2], (b * TOKENS + t) * HEADS + n) * fmax(dot, 0);
    }
    return sum;
}

/* A ring, in which position p lies in slot (p + 7) % KEYS; the last slots are not used, nor is the first of row 1. */
static tn_call make_call(void)
{
    tn_call call = optest_call(TN_OP_CHOOSE_KEYS, TN_F32, 5, 1);
    optest_site_of(&call)->dim[TN_DIM_TOP_K] = TOP;
    call.in[0] = optest_random(TN_F32, 4, (int64_t[]){BATCH, TOKENS, HEADS, D}, 1);
    call.in[1] = optest_random(TN_F32, 4, (int64_t[]){BATCH, KEYS, 1, D}, 2);
    call.in[2] = optest_random(TN_F32, 3, (int64_t[]){BATCH, TOKENS, HEADS}, 3);
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

START_TEST(the_best_that_are_seen)
{
    tn_call call = make_call();
    optest_threads(&call);
    for (int64_t i = 0; i < BATCH * TOKENS * KEYS; i++) {
        int64_t b = i / KEYS / TOKENS, t = i / KEYS % TOKENS, s = i % KEYS, better = 0;
        for (int64_t other = 0; other < KEYS; other++)
            better += sees(&call, b, t, other) && score(&call, b, t, other) > score(&call, b, t, s);
        ck_assert_double_eq(optest_at(&call.out[0], i), sees(&call, b, t, s) && better < TOP);
    }
}
END_TEST

/* Equal scores: the earlier positions, wherever they lie. */
START_TEST(the_earlier_of_equals)
{
    tn_call call = make_call();
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
    suite_add(tc, the_best_that_are_seen, the_earlier_of_equals);
    return suite_run();
}
