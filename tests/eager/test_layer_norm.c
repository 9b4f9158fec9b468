/* LAYER_NORM and its gradients against double precision, element by element, in all types: inputs are numbers that
 * every type holds, so one truth serves them all. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { WIDTH_MAX = 1100 };

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

typedef struct shape {
    int64_t rows, width;
    double eps;
    float offset; /* of all of x                                                                   */
    bool bias;
} shape;

static const shape shapes[] = {{0, 5, 1e-5, 0, true},    {1, 1, 1e-5, 0, true},     {3, 2, 1e-6, 0, false},
                               {5, 33, 1e-6, 0, true},   {2, 130, 1e-5, 64, true},  {70, 7, 1e-6, 0, false},
                               {2, 1100, 1e-5, 0, true}, {3, 513, 1e-5, -16, false}};

enum { SHAPES = sizeof shapes / sizeof *shapes };

/* What one rounding to the type may change: half the distance of its numbers near x. */
static double rounding(tn_dtype dtype, double x)
{
    double unit = optest_epsilon(dtype);
    return fabs(x) * unit + (dtype == TN_F16 ? 0x1p-25 : 0);
}

static tn_call make_call(tn_dtype dtype, const shape *s)
{
    int64_t dims[2] = {s->rows, s->width};
    tn_call call = optest_call(TN_OP_LAYER_NORM, dtype, 1, 1);
    tn_site *site = optest_site_of(&call);
    site->num[TN_NUM_EPS] = s->eps;
    tn_tensor w = optest_random(dtype, 1, &s->width, 4), b = optest_random(dtype, 1, &s->width, 6);
    optest_param(site, TN_ROLE_WEIGHT, &w, 1);
    if (s->bias)
        optest_param(site, TN_ROLE_BIAS, &b, 1);
    call.in[0] = optest_random(dtype, 2, dims, 5);
    for (int64_t i = 0; s->offset != 0 && i < s->rows * s->width; i++) {
        /* Whole numbers and quarters: every type holds them with the offset. */
        double value = floor(4 * optest_at(&call.in[0], i)) / 4;
        optest_set(&call.in[0], i, (double)s->offset + value);
    }
    call.out[0] = optest_zeros(dtype, 2, dims);
    return call;
}

/* ---- the truth ---------------------------------------------------------------------------------------- */

typedef struct truth {
    int64_t width;
    double eps;
    double x[WIDTH_MAX], w[WIDTH_MAX], b[WIDTH_MAX], g[WIDTH_MAX]; /* one row                      */
    double *moving;                                                /* what is differentiated by    */
} truth;

static void statistics(const truth *t, double *mean, double *scale)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < t->width; i++)
        sum += t->x[i];
    *mean = sum / (double)t->width;
    for (int64_t i = 0; i < t->width; i++)
        squares += (t->x[i] - *mean) * (t->x[i] - *mean);
    *scale = 1 / sqrt(squares / (double)t->width + t->eps);
}

static void load_row(const tn_call *call, int64_t row, truth *t)
{
    const tn_param *p = call->site->param;
    t->width = call->in[0].shape[1];
    t->eps = (double)(float)call->site->num[TN_NUM_EPS];
    for (int64_t i = 0; i < t->width; i++) {
        t->x[i] = optest_at(&call->in[0], row * t->width + i);
        t->w[i] = optest_at(p[TN_ROLE_WEIGHT].tensors, i);
        t->b[i] = p[TN_ROLE_BIAS].count ? optest_at(p[TN_ROLE_BIAS].tensors, i) : 0;
    }
}

/* ---- forward ------------------------------------------------------------------------------------------ */

/* The mean is off by a rounding of itself, n by four more of what it is made of, the product and the sum by one each.
 */
static double forward_bound(const truth *t, int64_t i, double mean, double scale, double y, tn_dtype dtype)
{
    double n = fabs((t->x[i] - mean) * scale), w = fabs(t->w[i]);
    return 0x1p-24 * (fabs(mean) * scale * w + 6 * n * w + fabs(t->b[i])) + rounding(dtype, y);
}

START_TEST(every_element)
{
    const shape *s = &shapes[_i % SHAPES];
    tn_dtype dtype = dtypes[_i / SHAPES];
    static truth t;
    tn_call call = make_call(dtype, s);
    optest_threads(&call);
    for (int64_t row = 0; row < s->rows; row++) {
        double mean, scale;
        load_row(&call, row, &t);
        statistics(&t, &mean, &scale);
        for (int64_t i = 0; i < s->width; i++) {
            double y = (t.x[i] - mean) * scale * t.w[i] + t.b[i], got = optest_at(&call.out[0], row * s->width + i);
            ck_assert_msg(fabs(got - y) <= forward_bound(&t, i, mean, scale, y, dtype),
                          "row %lld, element %lld is %.9g, expected %.9g", (long long)row, (long long)i, got, y);
        }
    }
}
END_TEST

START_TEST(in_place)
{
    tn_call call = make_call(TN_BF16, &shapes[3]);
    optest_run(&call);
    optest_in_place(&call);
}
END_TEST

/* A row that is the same everywhere has no direction: the bias remains. */
START_TEST(a_constant_row)
{
    tn_call call = make_call(TN_F32, &shapes[3]);
    for (int64_t i = 0; i < shapes[3].width; i++)
        optest_set(&call.in[0], i, 3.1);
    optest_run(&call);
    for (int64_t i = 0; i < shapes[3].width; i++)
        ck_assert_double_eq(optest_at(&call.out[0], i), optest_at(call.site->param[TN_ROLE_BIAS].tensors, i));
}
END_TEST

/* ---- gradients ------------------------------------------------------------------------------------------ */

/* sum g y over the row, with *moving = value. */
static double loss(void *ctx, double value)
{
    truth *t = ctx;
    double kept = *t->moving, sum = 0, mean, scale;
    *t->moving = value;
    statistics(t, &mean, &scale);
    for (int64_t i = 0; i < t->width; i++)
        sum += t->g[i] * ((t->x[i] - mean) * scale * t->w[i] + t->b[i]);
    *t->moving = kept;
    return sum;
}

/* dx is a difference of three terms, each of numbers that are off by some six units of f32. */
static double dx_bound(const truth *t, int64_t i, double dx, tn_dtype dtype)
{
    double mean, scale, h = 0, hn = 0;
    statistics(t, &mean, &scale);
    for (int64_t j = 0; j < t->width; j++) {
        h += fabs(t->g[j] * t->w[j]) / (double)t->width;
        hn += fabs(t->g[j] * t->w[j] * (t->x[j] - mean) * scale) / (double)t->width;
    }
    double n = fabs((t->x[i] - mean) * scale), off = fabs(mean) * scale;
    double size = scale * (fabs(t->g[i] * t->w[i]) + h + (n + off) * (hn + h * off));
    return 8 * 0x1p-24 * size + rounding(dtype, dx) + 1e-8 * (1 + size);
}

/* Sums over rows of g n and of g: each term off by six units of f32. */
static void check_sums(const tn_call *call, const shape *s, const tn_grads *grads, tn_dtype dtype)
{
    static truth t;
    for (int64_t i = 0; i < s->width; i++) {
        double dw = 0, db = 0, size = 0;
        for (int64_t row = 0; row < s->rows; row++) {
            double mean, scale, g = optest_at(&grads->out[0], row * s->width + i);
            load_row(call, row, &t);
            statistics(&t, &mean, &scale);
            dw += g * (t.x[i] - mean) * scale;
            db += g;
            size += fabs(g) * (fabs(t.x[i] - mean) + fabs(mean)) * scale;
        }
        double got = optest_at(grads->param[TN_ROLE_WEIGHT].tensors, i);
        ck_assert_msg(fabs(got - dw) <= 6 * 0x1p-24 * size + rounding(dtype, dw), "dweight %lld is %.9g, expected %.9g",
                      (long long)i, got, dw);
        if (s->bias)
            ck_assert_double_le(fabs(optest_at(grads->param[TN_ROLE_BIAS].tensors, i) - db), rounding(dtype, db));
    }
}

START_TEST(gradients)
{
    const shape *s = &shapes[_i % SHAPES];
    tn_dtype dtype = dtypes[_i / SHAPES];
    static truth t;
    if (s->width == 1)
        return; /* nothing comes back: a difference of rounding errors                            */
    tn_call call = make_call(dtype, s);
    tn_grads *grads = optest_grads(&call, 9);
    optest_backward_threads(&call);
    check_sums(&call, s, grads, dtype);
    for (int64_t row = 0; row < s->rows && row < 4; row++) {
        load_row(&call, row, &t);
        for (int64_t i = 0; i < s->width; i++)
            t.g[i] = optest_at(&grads->out[0], row * s->width + i);
        for (int64_t i = 0; i<s->width; i += s->width> 200 ? 37 : 1) {
            t.moving = &t.x[i];
            double dx = optest_derivative(loss, &t, t.x[i], 1e-3), got = optest_at(&grads->in[0], row * s->width + i);
            ck_assert_msg(fabs(got - dx) <= dx_bound(&t, i, dx, dtype), "row %lld, dx %lld is %.9g, expected %.9g",
                          (long long)row, (long long)i, got, dx);
        }
    }
}
END_TEST

/* What is not wanted is not written; without an upstream gradient there are zeros. */
START_TEST(unwanted_and_absent)
{
    tn_call call = make_call(TN_F32, &shapes[3]);
    tn_grads *grads = optest_grads(&call, 9);
    grads->out[0].data = NULL;
    optest_backward(&call);
    optest_expect_zero(&grads->in[0]);
    optest_expect_zero(grads->param[TN_ROLE_WEIGHT].tensors);
    grads->in[0].data = NULL;
    grads->param[TN_ROLE_WEIGHT].count = 0;
    optest_backward(&call);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("layer norm", 120);
    tcase_add_loop_test(tc, every_element, 0, 3 * SHAPES);
    suite_add(tc, in_place, a_constant_row);
    tcase_add_loop_test(tc, gradients, 0, 3 * SHAPES);
    suite_add(tc, unwanted_and_absent);
    return suite_run();
}
