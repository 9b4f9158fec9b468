/* Tokens that a session may have to compute again. */
#include "generate/past.h"
#include "suite.h"

#include <check.h>
#include <stdlib.h>

START_TEST(what_fits_is_kept)
{
    tn_error err = TN_ERROR_INIT;
    session_past past;
    ck_assert_int_eq(past_init(&past, 2, 4, &err), TN_OK);
    const int64_t ids[] = {1, 2, 3, 11, 12, 13};
    float positions[6][3] = {{0}, {0}, {1}, {0}, {1}, {2}};
    const int32_t index[] = {-1, 0, 1, 0, 1, 2};
    past_keep(&past, 3, ids, positions, index);
    past_keep(&past, 3, ids, positions, index);
    tn_batch batch = past_batch(&past);
    ck_assert_int_eq(batch.rows, 2);
    ck_assert_int_eq(batch.tokens, 4);
    const int64_t kept[] = {1, 2, 3, 1, 11, 12, 13, 11}, at[] = {0, 0, 1, 0, 0, 1, 2, 0},
                  real[] = {0, 1, 1, 0, 1, 1, 1, 1};
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(batch.ids[i], kept[i]);
        ck_assert_int_eq(batch.positions[i], at[i]);
        ck_assert_int_eq(batch.mask[i], real[i]);
    }
    past_close(&past);
}
END_TEST

START_TEST(a_call_that_gets_beyond_starts_again)
{
    tn_error err = TN_ERROR_INIT;
    session_past past, none;
    ck_assert_int_eq(past_init(&past, 1, 4, &err), TN_OK);
    ck_assert_int_eq(past_init(&none, 1, 0, &err), TN_OK);
    ck_assert(!past_restarts(&past, 0, 9)); /* nothing lies before                                    */
    ck_assert(!past_restarts(&past, 2, 2));
    ck_assert(past_restarts(&past, 2, 3));
    ck_assert(past_restarts(&past, 4, 1));
    ck_assert(!past_restarts(&past, 5, 1)); /* it was done before                                    */
    ck_assert(!past_restarts(&none, 4, 1));
    past_close(&past);
    past_close(&none);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("past", 0);
    suite_add(tcase, what_fits_is_kept, a_call_that_gets_beyond_starts_again);
    return suite_run();
}
