/* The emulated tile instructions do what Intel's manual says: values, order of roundings, denormals, faults. */
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define TN_EMULATE_AMX
#include "amx.h"
#include "suite.h"

#include <fenv.h>

static uint16_t bf16(float f) /* of numbers that it holds exactly */
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

/* c [4 x 3] += a [4 x 6] * b [6 x 3], in tiles 0, 1 and 2. */
static const amx_config config = {.palette = 1, .row_bytes = {12, 12, 12}, .rows = {4, 4, 3}};

START_TEST(products_are_exact)
{
    uint16_t a[4][6], b[3][3][2];
    float c[4][5]; /* rows farther apart than they are long */
    for (int i = 0; i < 24; i++)
        a[i / 6][i % 6] = bf16((float)(i % 7 - 3));
    for (int i = 0; i < 18; i++)
        b[i / 6][i / 2 % 3][i % 2] = bf16((float)(i % 5 - 2));
    for (int i = 0; i < 20; i++)
        c[i / 5][i % 5] = (float)i;
    amx_load_config(&config);
    amx_load(0, c, sizeof c[0]);
    amx_load(1, a, sizeof a[0]);
    amx_load(2, b, sizeof b[0]);
    amx_dot_bf16(0, 1, 2);
    amx_store(0, c, sizeof c[0]);
    amx_release();
    for (int m = 0; m < 4; m++)
        for (int n = 0; n < 5; n++) {
            int want = 5 * m + n;
            for (int k = 0; k < 6 && n < 3; k++)
                want += ((6 * m + k) % 7 - 3) * ((k / 2 * 6 + n * 2 + k % 2) % 5 - 2);
            ck_assert_float_eq(c[m][n], (float)want);
        }
}
END_TEST

/* One row and one column of n pairs. */
static float dot(float c, int n, const float *a, const float *b)
{
    const amx_config one = {.palette = 1, .row_bytes = {4, (uint16_t)(4 * n), 4}, .rows = {1, 1, (uint8_t)n}};
    uint16_t x[32], y[32];
    for (int i = 0; i < 2 * n; i++) {
        x[i] = bf16(a[i]);
        y[i] = bf16(b[i]);
    }
    amx_load_config(&one);
    amx_load(0, &c, 4);
    amx_load(1, x, 64);
    amx_load(2, y, 4);
    amx_dot_bf16(0, 1, 2);
    amx_store(0, &c, 4);
    amx_release();
    return c;
}

/* 2^24 + 1 is 2^24 in f32, and so is 2^24 + 1 + 1 in this order; 2^24 + 2 is not. */
START_TEST(even_and_odd_elements_are_summed_apart)
{
    const float ones[4] = {1, 1, 1, 1};
    const float odd_last[4] = {0x1p24f, 1, 0, 1}, even_last[4] = {0x1p24f, 0, 1, 0}, both[4] = {0x1p24f, 1, 1, 1};
    ck_assert_float_eq(dot(0, 2, odd_last, ones), 0x1p24f + 2);
    ck_assert_float_eq(dot(0, 2, even_last, ones), 0x1p24f);
    ck_assert_float_eq(dot(0, 2, both, ones), 0x1p24f + 2);
    ck_assert_float_eq(dot(1, 1, odd_last + 2, ones), 2);
    ck_assert_float_eq(dot(0x1p24f, 1, both + 2, ones), 0x1p24f + 2); /* c comes last */
}
END_TEST

START_TEST(denormals_are_zeros)
{
    const float tiny[2] = {0x1p-127f, 0}, large[2] = {0x1p100f, 0};
    ck_assert_float_eq(dot(0, 1, tiny, large), 0); /* as input */
    const float a[2] = {0x1p-64f, 0}, b[2] = {0x1p-63f, 0};
    ck_assert_float_eq(dot(0, 1, a, b), 0); /* as result */
    const float c[4] = {0x1p-63f, 0, -0x1.8p-64f, 0}, d[4] = {0x1p-63f, 0, 0x1p-63f, 0};
    ck_assert_float_eq(dot(0, 2, c, d), 0);
    const float none[2] = {0, 0};
    ck_assert_float_eq(dot(0x1p-127f, 1, none, none), 0); /* as sum */
    ck_assert_float_eq(dot(0, 1, d, d), 0x1p-126f);
}
END_TEST

START_TEST(mode_is_neither_asked_nor_changed)
{
    const float a[2] = {1, 0x1.02p-24f}, b[2] = {1, 1}; /* rounds up only when told to round upward */
    float nearest = dot(0, 1, a, b);
    fesetround(FE_DOWNWARD);
    unsigned before = _mm_getcsr();
    float downward = dot(0, 1, a, b);
    unsigned after = _mm_getcsr();
    fesetround(FE_TONEAREST);
    ck_assert_float_eq(nearest, 1 + 0x1p-23f);
    ck_assert_float_eq(downward, nearest);
    ck_assert_uint_eq(before, after);
}
END_TEST

START_TEST(infinities_and_nan)
{
    const float a[4] = {INFINITY, 0, 1, 0}, b[4] = {0, 0, 1, 0}, c[4] = {-1, 0, 1, 0};
    ck_assert_float_nan(dot(0, 2, a, b));
    ck_assert_float_infinite(dot(0, 2, a, c));
    ck_assert_float_nan(dot(INFINITY, 2, a, c));
}
END_TEST

START_TEST(loads_and_zero_fill_whole_tiles)
{
    unsigned char ones[16 * 64], got[16 * 64];
    const amx_config small = {.palette = 1, .row_bytes = {8}, .rows = {2}};
    memset(ones, 1, sizeof ones);
    amx_load_config(&small);
    amx_load(0, ones, 64);
    memset(got, 2, sizeof got);
    amx_store(0, got, 16);
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(got[i], i < 24 && i % 16 < 8 ? 1 : 2);
    amx_zero(0);
    amx_store(0, got, 16);
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(got[i], i < 24 && i % 16 < 8 ? 0 : 2);
}
END_TEST

/* What faults on the processor. */
START_TEST(wrong_use_ends_the_process)
{
    amx_config bad = config;
    static unsigned char memory[16 * 64];
    switch (_i) {
    case 0:
        bad.palette = 2;
        break;
    case 1:
        bad.rows[0] = 17;
        break;
    case 2:
        bad.row_bytes[1] = 65;
        break;
    case 3:
        bad.rows[3] = 1;
        break;
    case 4:
        bad.rows[8] = 1;
        break;
    case 5:
        bad.reserved[3] = 1;
        break;
    case 6: /* the shapes do not fit */
        bad.rows[2] = 2;
        break;
    case 7:
        bad.row_bytes[2] = 8;
        break;
    case 8:
        bad.rows[1] = 3;
        break;
    }
    amx_load_config(&bad);
    switch (_i) {
    case 9:
        amx_load(3, memory, 64);
        break;
    case 10:
        amx_release();
        amx_zero(0);
        break;
    case 11:
        amx_release();
        amx_store(0, memory, 64);
        break;
    case 12:
        amx_dot_bf16(0, 1, 1);
        break;
    default:
        amx_dot_bf16(0, 1, 2);
    }
}
END_TEST
enum { WRONG_USES = 13 };
#endif

int main(void)
{
    TCase *tc = suite_open("amx emulator", 0);
#if defined(__x86_64__)
    suite_add(tc, products_are_exact, even_and_odd_elements_are_summed_apart, denormals_are_zeros,
              mode_is_neither_asked_nor_changed, infinities_and_nan, loads_and_zero_fill_whole_tiles);
    tcase_add_loop_test_raise_signal(tc, wrong_use_ends_the_process, SIGABRT, 0, WRONG_USES);
#endif
    return suite_run();
}
