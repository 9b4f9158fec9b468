/* Rows that two right kernels may compute differently are found, and no others. */
#include "check/unclear.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <stdlib.h>

enum { ROWS = 2, TOKENS = 3, HEADS = 4, KV_HEADS = 2, DIM = 8, CACHED = 5 };

static tn_call attention_call(tn_site *site, tn_dtype dtype)
{
    *site = optest_site(TN_OP_ATTENTION, dtype);
    site->num[TN_NUM_SCALE] = 0.5;
    tn_call call = {.size = sizeof call, .op = site->op, .site = site, .in_count = 5, .out_count = 1};
    call.in[0] = optest_random(dtype, 4, (int64_t[]){ROWS, TOKENS, HEADS, DIM}, 1);
    call.in[1] = optest_random(dtype, 4, (int64_t[]){ROWS, CACHED, KV_HEADS, DIM}, 2);
    call.in[2] = optest_random(dtype, 4, (int64_t[]){ROWS, CACHED, KV_HEADS, DIM}, 3);
    call.in[3] = optest_zeros(TN_I32, 2, (int64_t[]){ROWS, TOKENS});
    call.in[4] = optest_zeros(TN_I32, 2, (int64_t[]){ROWS, CACHED});
    call.out[0] = optest_zeros(dtype, 4, (int64_t[]){ROWS, TOKENS, HEADS, DIM});
    for (int64_t b = 0; b < ROWS; b++) {
        for (int64_t t = 0; t < TOKENS; t++)
            optest_set(&call.in[3], b * TOKENS + t, (double)(CACHED - TOKENS + t));
        for (int64_t s = 0; s < CACHED; s++)
            optest_set(&call.in[4], b * CACHED + s, (double)s);
    }
    return call;
}

static int64_t count_marked(const tn_call *call, bool *first)
{
    bool *skip = NULL;
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(unclear_find(call, &skip, &err) == TN_OK, "%s", err.message);
    int64_t count = 0;
    for (int64_t i = 0; skip && i < ROWS * TOKENS * HEADS; i++)
        count += skip[i];
    *first = skip && skip[0];
    free(skip);
    return count;
}

/* A key of the second batch row that is a hundred times as long: seen by the heads of its group whose query is not
 * nearly orthogonal to it, and by no query of the other row or before its position. */
START_TEST(large_scores_are_left_out)
{
    static const tn_dtype dtypes[] = {TN_BF16, TN_F16, TN_F32};
    bool first;
    tn_site site;
    tn_call call = attention_call(&site, dtypes[_i]);
    ck_assert_int_eq(count_marked(&call, &first), 0);
    for (int64_t d = 0; d < DIM; d++) /* head 0 of the last key                                    */
        optest_set(&call.in[1], ((CACHED + CACHED - 1) * KV_HEADS) * DIM + d, 900);
    int64_t marked = count_marked(&call, &first);
    if (dtypes[_i] == TN_F32)
        ck_assert_int_eq(marked, 0);
    else
        ck_assert(marked >= 1 && marked <= HEADS / KV_HEADS && !first);
    optest_set(&call.in[4], 2 * CACHED - 1, -1); /* an empty place                                  */
    ck_assert_int_eq(count_marked(&call, &first), 0);
}
END_TEST

START_TEST(other_operations_are_clear)
{
    bool *skip = NULL;
    tn_site site = optest_site(TN_OP_RMS_NORM, TN_BF16);
    tn_call call = {.size = sizeof call, .op = site.op, .site = &site};
    ck_assert_int_eq(unclear_find(&call, &skip, NULL), TN_OK);
    ck_assert_ptr_null(skip);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("rows that rounding decides", 0);
    tcase_add_checked_fixture(tc, optest_setup, optest_teardown);
    tcase_add_loop_test(tc, large_scores_are_left_out, 0, 3);
    suite_add(tc, other_operations_are_clear);
    return suite_run();
}
