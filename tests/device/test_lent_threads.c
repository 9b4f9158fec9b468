/* Regions of work on threads that the program lends. */
#include "pool.h"
#include "suite.h"

#include <tenon/tenon.h>

#include <check.h>
#include <stdatomic.h>

static tn_error err = TN_ERROR_INIT;

typedef struct tally {
    atomic_llong sum;
    atomic_int threads, most, after;
} tally;

static void add_numbers(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    tally *t = ctx;
    if (thread >= atomic_load(&t->most))
        atomic_store(&t->most, thread + 1);
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&t->sum, i);
}

static void meet(void *ctx, int32_t thread, int32_t threads)
{
    tally *t = ctx;
    (void)thread;
    atomic_fetch_add(&t->threads, 1);
    tn_barrier();
    if (atomic_load(&t->threads) == threads)
        atomic_fetch_add(&t->after, 1);
    tn_barrier();
    tn_parallel(NULL, NULL);
    ck_assert_int_eq(tn_threads_use(NULL, NULL), TN_E_USAGE);
}

START_TEST(pools)
{
    pool p = {.width = 3};
    tn_team team = {.size = sizeof team, .width = 4, .context = &p, .run = pool_run};
    for (int width = 0; width <= 6; width++) { /* the pool may have fewer threads than it said, or more           */
        p.width = width;
        ck_assert_int_eq(tn_threads_use(&team, &err), TN_OK);
        ck_assert_int_eq(tn_thread_count(), 4);
        tally t = {0};
        int32_t before = p.runs;
        tn_parallel_for(100000, 10, add_numbers, &t);
        ck_assert_int_gt(p.runs, before);
        ck_assert_int_eq(atomic_load(&t.sum), 99999LL * 50000);
        ck_assert_int_le(atomic_load(&t.most), 4);
        tn_parallel(meet, &t);
        int want = width == 0 ? 1 : width < 4 ? width : 4;
        ck_assert_int_eq(atomic_load(&t.threads), want);
        ck_assert_int_eq(atomic_load(&t.after), want);
    }
    ck_assert_int_eq(tn_threads_use(NULL, &err), TN_OK);
    int32_t runs = p.runs;
    tally t = {0};
    tn_parallel_for(100000, 10, add_numbers, &t);
    ck_assert_int_eq(atomic_load(&t.sum), 99999LL * 50000);
    ck_assert_int_eq(p.runs, runs);
}
END_TEST

START_TEST(no_teams)
{
    tn_team team = {.size = sizeof team, .width = 0, .run = pool_run};
    ck_assert_int_eq(tn_threads_use(&team, &err), TN_E_USAGE);
    suite_expect_in(err.message, "0 threads");
    tn_error_clear(&err);
    team = (tn_team){.size = sizeof team, .width = 2};
    ck_assert_int_eq(tn_threads_use(&team, &err), TN_E_USAGE);
    suite_expect_in(err.message, "no run()");
}
END_TEST

int main(void)
{
    TCase *t = suite_open("lent threads", 60);
    suite_add(t, pools, no_teams);
    return suite_run();
}
