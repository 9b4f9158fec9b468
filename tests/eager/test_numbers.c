/* Conversions, rounding and elementary functions, against double precision: every half-precision value where there are
 * few enough. */
#include "eager/vec.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state ^ *state >> 15;
}

/* The value nearest to x with digits significant bits and the given range of exponents, ties to even. */
static double nearest(double x, int digits, int lowest, double largest)
{
    int exponent;
    if (x == 0.0 || !isfinite(x))
        return x;
    frexp(x, &exponent);
    if (exponent < lowest)
        exponent = lowest;
    double unit = ldexp(1.0, exponent - digits), y = rint(x / unit) * unit;
    return fabs(y) > largest ? copysign((double)INFINITY, x) : y;
}

static double to_type(double x, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return nearest(x, 8, -125, 0x1.fep127);
    return dtype == TN_F16 ? nearest(x, 11, -13, 65504.0) : (double)(float)x;
}

static void expect_rounding(float x)
{
    for (tn_dtype dtype = TN_BF16; dtype <= TN_F16; dtype = (tn_dtype)(dtype + 1)) {
        unsigned char half[2];
        float back, again = x;
        convert_from_f32(&x, dtype, half, 1);
        convert_to_f32(half, dtype, &back, 1);
        vec_round(&again, 1, dtype);
        double expected = to_type((double)x, dtype);
        bool good = isnan(x) ? isnan(back) && isnan(again) && signbit(x) == signbit(back)
                             : (double)back == expected && (double)again == expected && signbit(back) == signbit(x);
        if (!good || (vec_round1(x, dtype) != again && !isnan(x)))
            ck_abort_msg("%a to %s is %a, expected %a", (double)x, tn_dtype_name(dtype), (double)back, expected);
    }
}

START_TEST(rounding_is_to_nearest_even)
{
    uint32_t state = 1;
    for (int i = 0; i < 400000; i++)
        expect_rounding(bits(next(&state)));
    /* Around every tie of both types, subnormal results included. */
    for (uint32_t high = 0; high < 0x10000; high++)
        for (uint32_t low = 0x7fff; low <= 0x8001; low++) {
            expect_rounding(bits(high << 16 | low));
            expect_rounding(bits(high << 16 | (low & 0x1fff) | (high & 1) << 13));
        }
    for (int e = -26; e < -12; e++)
        for (int i = 0; i < 4096; i++)
            expect_rounding((float)ldexp(1.0 + i / 4096.0, e));
}
END_TEST

START_TEST(halves_come_back)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint16_t in = (uint16_t)h, out;
        float f;
        convert_to_f32(&in, TN_BF16, &f, 1);
        convert_from_f32(&f, TN_BF16, &out, 1);
        if (isnan(f) ? (out | 0x40) != (in | 0x40) : out != in)
            ck_abort_msg("bf16 %04x becomes %04x", in, out);
        convert_to_f32(&in, TN_F16, &f, 1);
        convert_from_f32(&f, TN_F16, &out, 1);
        if (isnan(f) ? (out | 0x200) != (in | 0x200) : out != in)
            ck_abort_msg("f16 %04x becomes %04x", in, out);
    }
}
END_TEST

/* Any address and any count: the vectors' ends. */
START_TEST(counts_and_addresses)
{
    float source[70], back[70];
    for (int i = 0; i < 70; i++)
        source[i] = (float)(i - 30) / 8.0f;
    for (tn_dtype dtype = TN_F32; dtype <= TN_F16; dtype = (tn_dtype)(dtype + 1))
        for (size_t shift = 0; shift < 3; shift++)
            for (int64_t n = 0; n <= 67; n++) {
                unsigned char room[70 * 4 + 8];
                memset(room, 0xa5, sizeof room);
                memset(back, 0, sizeof back);
                convert_from_f32(source, dtype, room + shift, n);
                convert_to_f32(room + shift, dtype, back, n);
                size_t end = shift + (size_t)n * tn_dtype_size(dtype);
                bool same = n == 0 || memcmp(source, back, (size_t)n * sizeof(float)) == 0;
                if (!same || room[end] != 0xa5 || back[n] != 0.0f || (shift > 0 && room[shift - 1] != 0xa5))
                    ck_abort_msg("%s: %d values at %d", tn_dtype_name(dtype), (int)n, (int)shift);
            }
}
END_TEST

static void expect_within(float x, float got, double expected, double ulps, const char *what)
{
    if (isnan(expected) ? isnan(got) : (double)got == expected)
        return;
    double unit = ldexp(1.0, (isfinite(expected) && expected != 0.0 ? ilogb(expected) : 0) - 23);
    unit = unit < 0x1p-149 ? 0x1p-149 : unit;
    if (!(fabs((double)got - expected) <= ulps * unit))
        ck_abort_msg("%s(%a) is %a, expected %a: %.2f ulps", what, (double)x, (double)got, expected,
                     fabs((double)got - expected) / unit);
}

START_TEST(exponential_and_tangent)
{
    for (double x = -110.0; x < 92.0; x += 0.00037)
        expect_within((float)x, vec_exp((float)x), (double)(float)exp((double)(float)x), 1.0, "exp");
    for (double x = -12.0; x < 12.0; x += 0.000051)
        expect_within((float)x, vec_tanh((float)x), tanh((double)(float)x), 2.0, "tanh");
    for (int e = -140; e < 0; e++)
        expect_within(ldexpf(1.3f, e), vec_tanh(ldexpf(1.3f, e)), tanh(ldexp((double)1.3f, e)), 2.0, "tanh");
    ck_assert(isnan(vec_exp(NAN)) && isnan(vec_tanh(NAN)));
    ck_assert(vec_exp(-INFINITY) == 0.0f && vec_exp(INFINITY) == INFINITY && vec_exp(0.0f) == 1.0f);
    ck_assert(vec_tanh(INFINITY) == 1.0f && vec_tanh(-INFINITY) == -1.0f && signbit(vec_tanh(-0.0f)));
}
END_TEST

static double act_truth(tn_act act, double x)
{
    switch (act) {
    case TN_ACT_SILU:
        return x / (1.0 + exp(-x));
    case TN_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case TN_ACT_GELU:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case TN_ACT_RELU:
        return x < 0.0 ? 0.0 : x;
    case TN_ACT_RELU2:
        return x < 0.0 ? 0.0 : x * x;
    case TN_ACT_RELU6:
        return x < 0.0 ? 0.0 : fmin(x, 6.0);
    case TN_ACT_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case TN_ACT_TANH:
        return tanh(x);
    case TN_ACT_MISH:
        return x * tanh(x > 40.0 ? x : log1p(exp(x)));
    case TN_ACT_HARD_SWISH:
        return x * fmin(fmax(x + 3.0, 0.0), 6.0) / 6.0;
    case TN_ACT_LEAKY_RELU:
        return x < 0.0 ? 0.01 * x : x;
    case TN_ACT_LAPLACE:
        return 0.5 * (1.0 + erf((x - 0.707107) / (0.282095 * sqrt(2.0))));
    case TN_ACT_GELU_10:
        return fmin(act_truth(TN_ACT_GELU, x), 10.0);
    case TN_ACT_SQRT_SOFTPLUS:
        return sqrt(x > 40.0 ? x : log1p(exp(x)));
    default:
        return x;
    }
}

/* The composed ones, rounded after every operation, which itself is one in f32. */
static double act_steps(tn_act act, tn_dtype dtype, double x)
{
    if (act == TN_ACT_QUICK_GELU) {
        double gate = to_type(1.0 / (1.0 + exp(-to_type((double)(1.702f * (float)x), dtype))), dtype);
        return to_type(x * gate, dtype);
    }
    if (act == TN_ACT_LAPLACE) {
        double z = to_type((double)((float)to_type(x - 0.707107, dtype) / 0.39894257f), dtype);
        return to_type(0.5 * to_type(1.0 + to_type(erf(z), dtype), dtype), dtype);
    }
    if (act == TN_ACT_SQRT_SOFTPLUS)
        return to_type(sqrt(to_type(x > 40.0 ? x : log1p(exp(x)), dtype)), dtype);
    double t = to_type((double)((float)x * (float)x * (float)x), dtype);
    t = to_type(x + to_type((double)(0.044715f * (float)t), dtype), dtype);
    t = to_type(1.0 + to_type(tanh(to_type((double)(0.7978845608028654f * (float)t), dtype)), dtype), dtype);
    return to_type(to_type(0.5 * x, dtype) * t, dtype);
}

static const tn_act plain_acts[] = {TN_ACT_SILU,       TN_ACT_GELU_TANH,  TN_ACT_GELU,   TN_ACT_RELU,   TN_ACT_RELU2,
                                    TN_ACT_RELU6,      TN_ACT_SIGMOID,    TN_ACT_TANH,   TN_ACT_LINEAR, TN_ACT_MISH,
                                    TN_ACT_HARD_SWISH, TN_ACT_LEAKY_RELU, TN_ACT_GELU_10};
static const tn_act composed_acts[] = {TN_ACT_LAPLACE, TN_ACT_SQRT_SOFTPLUS, TN_ACT_QUICK_GELU, TN_ACT_GELU_NEW};
enum { PLAIN = sizeof plain_acts / sizeof *plain_acts, COMPOSED = sizeof composed_acts / sizeof *composed_acts };

/* In f32 within 2e-7 of the size of what is added up: x itself where 1 + tanh cancels. */
START_TEST(activations_in_f32)
{
    tn_act act = _i < PLAIN ? plain_acts[_i] : composed_acts[_i - PLAIN];
    double least = act == TN_ACT_LAPLACE ? 0.5 : 0.0; /* it is half of 1 and another number       */
    for (double v = -20.0; v < 20.0; v += 0.00123) {
        float x = (float)v, y = x;
        vec_act(act, TN_F32, &y, 1);
        double truth = act_truth(act, (double)x);
        if (!(fabs((double)y - truth) <= 3e-7 * fmax(fmax(fabs(truth), least), fmin(fabs((double)x), 1.0))))
            ck_abort_msg("activation %d of %.9g is %.9g, expected %.9g", (int)act, v, (double)y, truth);
    }
    float nan = NAN;
    vec_act(act, TN_F32, &nan, 1);
    ck_assert(isnan(nan));
}
END_TEST

/* All values of bf16 and f16: the nearest value, or its neighbour where the truth lies between two. */
START_TEST(activations_in_half)
{
    bool composed = _i >= PLAIN;
    tn_act act = !composed ? plain_acts[_i] : composed_acts[_i - PLAIN];
    for (tn_dtype dtype = TN_BF16; dtype <= TN_F16; dtype = (tn_dtype)(dtype + 1)) {
        int64_t off = 0, n = 0;
        for (uint32_t h = 0; h < 0x10000; h++) {
            uint16_t half = (uint16_t)h;
            float x, y;
            convert_to_f32(&half, dtype, &x, 1);
            if (!isfinite(x) || fabsf(x) > 100.0f || (x != 0.0f && fabsf(x) < 1e-5f))
                continue;
            y = x;
            vec_act(act, dtype, &y, 1);
            double exact = composed ? act_steps(act, dtype, (double)x) : act_truth(act, (double)x);
            double truth = to_type(exact, dtype);
            double unit = truth == 0.0 ? 0x1p-24 : ldexp(1.0, ilogb(truth) - (dtype == TN_BF16 ? 7 : 10));
            /* e^89 is infinite in f32: what is left of a gate then is less than 1e-36. */
            double slack = composed ? 2.0 * unit + 1e-36 : unit + 3e-7 * fmin(fabs((double)x), 1.0);
            n++;
            off += (double)y != truth;
            if (!(fabs((double)y - truth) <= slack))
                ck_abort_msg("activation %d of %.9g in %s is %.9g, expected %.9g", (int)act, (double)x,
                             tn_dtype_name(dtype), (double)y, truth);
        }
        ck_assert_int_gt(n, 5000);
        ck_assert_msg(off * 100 <= n * 3, "%d of %d values are off", (int)off, (int)n);
    }
}
END_TEST

START_TEST(long_arrays_are_like_short_ones)
{
    float x[1300];
    for (int act = TN_ACT_SILU; act <= TN_ACT_SQRT_SOFTPLUS; act++)
        for (tn_dtype dtype = TN_F32; dtype <= TN_F16; dtype = (tn_dtype)(dtype + 1)) {
            for (int i = 0; i < 1300; i++)
                x[i] = vec_round1((float)(i - 650) / 64.0f, dtype);
            vec_act((tn_act)act, dtype, x, 1300);
            for (int i = 0; i < 1300; i++) {
                float one = vec_round1((float)(i - 650) / 64.0f, dtype);
                vec_act((tn_act)act, dtype, &one, 1);
                if (one != x[i])
                    ck_abort_msg("activation %d, element %d: %a and %a", act, i, (double)x[i], (double)one);
            }
        }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("eager: numbers", 120);
    suite_add(tc, rounding_is_to_nearest_even, halves_come_back, counts_and_addresses, exponential_and_tangent);
    tcase_add_loop_test(tc, activations_in_f32, 0, PLAIN + 2);
    tcase_add_loop_test(tc, activations_in_half, 0, PLAIN + COMPOSED);
    suite_add(tc, long_arrays_are_like_short_ones);
    return suite_run();
}
