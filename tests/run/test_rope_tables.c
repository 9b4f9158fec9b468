/* Rotary frequencies of the kinds that only some files have, against their formulas in double precision, and how they
 * follow the length of calls. */
#include "run/rope_tables.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

/* A few roundings of f32. */
static void expect_near(float got, double want)
{
    ck_assert_msg(fabs(got - want) <= 8 * 0x1p-24 * fabs(want), "%g, expected %g", (double)got, want);
}

static double wave(const rope_params *rope, int64_t i)
{
    return pow(rope->theta, (double)(2 * i) / (double)rope->dim);
}

START_TEST(longrope_has_two_sets)
{
    rope_params rope = {.kind = ROPE_LONG, .dim = 8, .theta = 10000, .factor = 4, .max_positions = 128, .original = 32};
    float before[4], beyond[4], cosine[8], sine[8];
    for (int i = 0; i < 4; i++) {
        rope.inv_freq[i] = 1 + 0.25f * (float)i;
        rope.long_freq[i] = 1 + 2 * (float)i;
    }
    rope_tables_init(&rope);
    expect_near(rope.scaling, sqrt(1 + log(4) / log(32)));
    rope_tables_frequencies(&rope, 32, before);
    rope_tables_frequencies(&rope, 33, beyond);
    for (int i = 0; i < 4; i++) {
        expect_near(before[i], 1 / ((1 + 0.25 * i) * wave(&rope, i)));
        expect_near(beyond[i], 1 / ((1 + 2.0 * i) * wave(&rope, i)));
    }
    rope_tables_row(&rope, beyond, (const float[ROPE_AXES]){5, 5, 5}, cosine, sine);
    for (int i = 0; i < 8; i++) {
        ck_assert(fabs(cosine[i] - rope.scaling * cos(5.0 * beyond[i % 4])) <= 4 * 0x1p-24);
        ck_assert(fabs(sine[i] - rope.scaling * sin(5.0 * beyond[i % 4])) <= 4 * 0x1p-24);
    }
}
END_TEST

START_TEST(proportional_lets_the_rest_stand)
{
    rope_params rope = {.kind = ROPE_PROPORTIONAL, .dim = 16, .partial = 0.4, .theta = 1000000, .factor = 2};
    rope_tables_init(&rope);
    ck_assert(rope.scaling == 1);
    for (int i = 0; i < 8; i++)
        if (i < 3)
            expect_near(rope.inv_freq[i], 1 / (2 * wave(&rope, i)));
        else
            ck_assert(rope.inv_freq[i] == 0);
}
END_TEST

START_TEST(yarn_lies_between)
{
    rope_params rope = {.kind = ROPE_YARN,
                        .dim = 32,
                        .theta = 10000,
                        .factor = 4,
                        .original = 128,
                        .fast = 4,
                        .slow = 0.5,
                        .truncate = true};
    rope_tables_init(&rope);
    expect_near(rope.scaling, 0.1 * log(4) + 1);
    double pi = acos(-1), low = 32 * log(128 / (4 * 2 * pi)) / (2 * log(10000)),
           high = 32 * log(128 / (0.5 * 2 * pi)) / (2 * log(10000));
    for (int i = 0; i < 16; i++) {
        double ramp = fmin(fmax((i - floor(low)) / (ceil(high) - floor(low)), 0), 1);
        expect_near(rope.inv_freq[i], (1 - ramp + ramp / 4) / wave(&rope, i));
    }
}
END_TEST

START_TEST(lengths_are_followed)
{
    rope_params dynamic = {.kind = ROPE_DYNAMIC, .max_positions = 64}, is_long = {.kind = ROPE_LONG, .original = 64};
    rope_params plain = {.kind = ROPE_DEFAULT};
    /* dynamic: the longest so far, until a call is short again. */
    ck_assert_int_eq(rope_tables_length(&dynamic, 0, 100), 100);
    ck_assert_int_eq(rope_tables_length(&dynamic, 100, 80), 100);
    ck_assert_int_eq(rope_tables_length(&dynamic, 100, 120), 120);
    ck_assert_int_eq(rope_tables_length(&dynamic, 100, 20), 20);
    /* longrope: each call's own. */
    ck_assert_int_eq(rope_tables_length(&is_long, 100, 80), 80);
    ck_assert(rope_tables_follow(&dynamic) && rope_tables_follow(&is_long) && !rope_tables_follow(&plain));
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("rotary tables", 0);
    suite_add(tcase, longrope_has_two_sets, proportional_lets_the_rest_stand, yarn_lies_between, lengths_are_followed);
    return suite_run();
}
