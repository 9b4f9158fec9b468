/* What is decided by times alone: whose spreads are apart, who gains, who comes first. */
#include "plugin/registry.h"
#include "select/measure.h"
#include "select/plan.h"
#include "select/rank.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Microseconds of one call without kernels and with them in every round; scale: calls in a step. */
static measure_turns turns_of(double without, double with, double noise, double scale)
{
    measure_turns t = {.contested = true, .scale = scale};
    for (int r = 0; r < MEASURE_ROUNDS; r++) {
        t.seconds[0][r] = 1e-6 * (without + noise * (r % 5 - 2));
        t.seconds[1][r] = 1e-6 * (with + noise * (r % 3 - 1));
    }
    return t;
}

static const measure_step looked = {.rounds = 15, .look = {28e-6, 30e-6, 32e-6}}, unlooked = {.rounds = 15};

START_TEST(a_step_must_gain_more_than_what_is_done_around_it)
{
    bool keeps[2];
    measure_turns one[] = {turns_of(20, 10, 0, 1)}, four[] = {turns_of(20, 10, 0, 4)};
    ck_assert(!measure_step_gains(&looked, one, 1, keeps));
    ck_assert(measure_step_gains(&looked, four, 1, keeps));
    ck_assert(measure_step_gains(&unlooked, one, 1, keeps));
    /* Added up over shapes, without those that lose, and without those that nobody contests. */
    measure_turns both[] = {turns_of(20, 10, 0, 2), turns_of(15, 5, 0, 2)};
    ck_assert(measure_step_gains(&looked, both, 2, keeps) && keeps[0] && keeps[1]);
    both[1] = turns_of(5, 15, 0, 2);
    both[0].scale = 4;
    ck_assert(measure_step_gains(&looked, both, 2, keeps) && keeps[0] && !keeps[1]);
    both[0].contested = false;
    both[1] = turns_of(15, 5, 0, 2);
    ck_assert(!measure_step_gains(&looked, both, 2, keeps) && !keeps[0] && keeps[1]);
}
END_TEST

START_TEST(a_step_whose_gain_is_noise_does_not_gain)
{
    bool keeps[1];
    measure_turns clear[] = {turns_of(20, 10, 1, 1)}, noise[] = {turns_of(20, 19, 8, 1)},
                  none[] = {turns_of(9, 9, 0, 1)};
    ck_assert(measure_step_gains(&unlooked, clear, 1, keeps));
    ck_assert(!measure_step_gains(&unlooked, noise, 1, keeps));
    ck_assert(!measure_step_gains(&unlooked, none, 1, keeps) && !keeps[0]);
}
END_TEST

/* ---- what times say --------------------------------------------------------------------------------------- */

static timing_spread around(double ms, double noise)
{
    return (timing_spread){1e-3 * (ms - noise), 1e-3 * ms, 1e-3 * (ms + noise)};
}

/* Milliseconds with and without at each size, and half of what lies between the quartiles of all of them. */
static plan_fit timed(double a, double b, double c, double without, double noise)
{
    plan_fit fit = {.takes = true, .times = {.known = true, .tokens = {1, 16, 512}}};
    const double ms[] = {a, b, c};
    for (int i = 0; i < GRAPH_SIZES; i++) {
        fit.times.kernel[i] = around(ms[i], noise);
        fit.times.without[i] = around(without, noise);
    }
    measure_entry entry = {.fit_count = 1, .fits = {{.fit = &fit}}};
    measure_settle(&entry);
    return fit;
}

START_TEST(only_what_gains_clearly_is_used)
{
    ck_assert_uint_eq(timed(0.9, 0.9, 0.9, 1, 0.01).not_at, 0);
    /* Equal, a little slower and a little faster within the noise: what is there stays. */
    ck_assert_uint_eq(timed(1, 0.9, 0.9, 1, 0.01).not_at, 1);
    ck_assert_uint_eq(timed(0.9, 1.05, 0.9, 1, 0.01).not_at, 2);
    ck_assert_uint_eq(timed(0.9, 0.9, 0.99, 1, 0.01).not_at, 4);
    ck_assert_uint_eq(timed(0.9, 0.9, 0.9, 1, 0.06).not_at, 7);
    /* However short a call is: less than 0.2 microseconds count, too. */
    ck_assert_uint_eq(timed(0.00018, 0.00018, 0.00018, 0.00015, 0.000001).not_at, 7);
    ck_assert_uint_eq(timed(0.00012, 0.00012, 0.00012, 0.00015, 0.000001).not_at, 0);
    ck_assert(timed(0.5, 1.2, 1.2, 1, 0.01).takes);
}
END_TEST

START_TEST(what_gains_nowhere_says_why)
{
    plan_fit slower = timed(1.2, 1.2, 1.2, 1, 0.01), equal = timed(1, 1, 1.2, 1, 0.01);
    ck_assert(!slower.takes && !equal.takes);
    ck_assert_str_eq(slower.reason,
                     "measured: slower than what it would replace: 1 token 1.2 ms (without 1 ms, which is "
                     "used), 16 tokens 1.2 ms (without 1 ms, which is used), 512 tokens 1.2 ms (without 1 "
                     "ms, which is used)");
    ck_assert_msg(strstr(equal.reason,
                         "measured: no clear gain over what it would replace: 1 token 1 ms (without 1 ms, "
                         "used: no clear gain), "),
                  "%s", equal.reason);
    plan_fit idle = timed(0.5, 0.5, 1.2, 1, 0.01);
    measure_idle(&idle, GRAPH_ONE);
    ck_assert(idle.takes);
    ck_assert_uint_eq(idle.not_at, 5);
    measure_idle(&idle, GRAPH_SOME);
    ck_assert(!idle.takes);
    suite_expect_in(idle.reason, "measured: no clear gain in a whole step: ");
}
END_TEST

START_TEST(spreads_that_overlap_are_looked_at_again)
{
    timing_spread without = around(1, 0.1), faster = around(0.9, 0.1), slower = around(1.05, 0.1),
                  clear = around(0.7, 0.1);
    ck_assert(measure_is_open(&faster, &without, 1) && measure_is_open(&slower, &without, 1));
    ck_assert(measure_is_open(&faster, &without, 2) && !measure_is_open(&slower, &without, 2));
    ck_assert(!measure_is_open(&clear, &without, 1) && !measure_is_open(&without, &clear, 1));
}
END_TEST

/* Below 0: a comes first because of what was measured. */
static int faster(const plan_fit *a, const plan_fit *b)
{
    const registry_kernel k = {.kernel = {.id = "kernel"}, .file = "file.so"};
    const rank_side x = {&k, RANK_AUTO, plan_share(a)}, y = {&k, RANK_AUTO, plan_share(b)};
    int order;
    return rank_decide(&x, &y, &order) == RANK_TIME ? order : 0;
}

START_TEST(the_clearly_faster_one_comes_first)
{
    plan_fit a = timed(0.5, 0.5, 0.5, 1, 0.03), b = timed(0.52, 0.52, 0.52, 1, 0.03);
    plan_fit c = timed(0.3, 0.3, 0.3, 1, 0.03), unknown = {.takes = true}, partly = timed(0.4, 2, 2, 1, 0.03);
    ck_assert_int_eq(faster(&a, &b), 0);
    ck_assert_int_lt(faster(&c, &a), 0);
    ck_assert_int_gt(faster(&a, &c), 0);
    ck_assert_int_eq(faster(&a, &unknown), 0);
    /* A token costs most where tokens come one by one. */
    ck_assert_int_lt(faster(&partly, &a), 0);
}
END_TEST

START_TEST(the_middle_half_is_the_spread)
{
    double nine[] = {9, 1, 5, 3, 7, 2, 8, 4, 1000}, two[] = {2, 1}, one[] = {3};
    timing_spread s = timing_spread_of(nine, 9);
    ck_assert(s.low == 3 && s.median == 5 && s.high == 8);
    s = timing_spread_of(two, 2);
    ck_assert(s.low == 1 && s.high == 2);
    s = timing_spread_of(one, 1);
    ck_assert(s.low == 3 && s.high == 3);
    timing_spread early = {1, 2, 3}, touching = {3, 4, 5}, late = {3.1, 4, 5};
    ck_assert_int_eq(timing_compare(&early, &touching), 0);
    ck_assert_int_lt(timing_compare(&early, &late), 0);
    ck_assert_int_gt(timing_compare(&late, &early), 0);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("measure: decisions", 60);
    suite_add(all, a_step_must_gain_more_than_what_is_done_around_it, a_step_whose_gain_is_noise_does_not_gain,
              only_what_gains_clearly_is_used, what_gains_nowhere_says_why, spreads_that_overlap_are_looked_at_again,
              the_clearly_faster_one_comes_first, the_middle_half_is_the_spread);
    return suite_run();
}
