/* GLU: gradients of every activation, with one gate per feature or per token, and with Gaussian top-k sparsity, against
 * differences of a forward in double precision, element by element and in all types. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static double act(tn_act a, double x)
{
    double relu = x > 0.0 ? x : 0.0;
    switch (a) {
    case TN_ACT_SILU:
        return x / (1.0 + exp(-x));
    case TN_ACT_GELU_TANH:
    case TN_ACT_GELU_NEW:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case TN_ACT_GELU:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case TN_ACT_RELU:
        return relu;
    case TN_ACT_RELU2:
        return relu * relu;
    case TN_ACT_RELU6:
        return fmin(relu, 6.0);
    case TN_ACT_QUICK_GELU:
        return x / (1.0 + exp(-1.702 * x));
    case TN_ACT_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case TN_ACT_TANH:
        return tanh(x);
    case TN_ACT_MISH:
        return x * tanh(log1p(exp(x)));
    case TN_ACT_HARD_SWISH:
        return x * fmin(fmax(x + 3.0, 0.0), 6.0) / 6.0;
    case TN_ACT_LEAKY_RELU:
        return x < 0.0 ? 0.01 * x : x;
    case TN_ACT_LAPLACE:
        return 0.5 * (1.0 + erf((x - 0.707107) / (0.282095 * sqrt(2.0))));
    case TN_ACT_GELU_10:
        return fmin(0.5 * x * (1.0 + erf(x / sqrt(2.0))), 10.0);
    case TN_ACT_SQRT_SOFTPLUS:
        return sqrt(log1p(exp(x)));
    default:
        return x;
    }
}

/* Do numbers between the argument and the derivative round? */
static bool composed(tn_act a)
{
    return a == TN_ACT_QUICK_GELU || a == TN_ACT_GELU_NEW || a == TN_ACT_SIGMOID || a == TN_ACT_TANH ||
           a == TN_ACT_LAPLACE || a == TN_ACT_SQRT_SOFTPLUS;
}

static double act_of(void *ctx, double x)
{
    return act(*(tn_act *)ctx, x);
}

/* ---- magnitudes that roundings are relative to -------------------------------------------------- */

/* Of act: sums of the terms that it is computed from are at most this. */
static double act_size(tn_act a, double x)
{
    return a == TN_ACT_RELU2 ? x * x : fmax(fabs(x), 1.0);
}

/* Of its derivative. With s or t rounded, 1 - s and 1 - t^2 are off by as much as s and t are, times what multiplies
 * them: x, and for the tanh form x (1 + 0.134 x^2). */
static double slope_size(tn_act a, double x)
{
    double size = a == TN_ACT_RELU2 ? 2.0 * fabs(x) : 1.0 + fabs(x);
    if (a == TN_ACT_SIGMOID || a == TN_ACT_TANH)
        return 1.0;
    return a == TN_ACT_GELU_TANH || a == TN_ACT_GELU_NEW ? size + 0.134 * fabs(x * x * x) : size;
}

/* Roundings on the way to a gradient. In f32 those of act's formula count; in bf16 and f16 one for every operation that
 * transformers performs, and what f32 adds to them. */
static double bound(tn_act a, tn_dtype dtype, double slope, double size)
{
    double once = dtype == TN_F32 ? 4.0 * size : composed(a) ? 3.0 * size : 2.1 * fabs(slope) + 16.0 * 0x1p-13 * size;
    return once * optest_epsilon(dtype);
}

static void close_to(double got, double expected, double most, tn_dtype dtype, tn_act a, const char *what, int64_t at)
{
    most += 1e-9 + (dtype == TN_F16 ? 0x1p-22 : 0.0); /* differences; the smallest numbers of f16      */
    if (!(fabs(got - expected) <= most))
        ck_abort_msg("%s of activation %d in %s, element %d: %.9g, expected %.9g within %.3g", what, (int)a,
                     tn_dtype_name(dtype), (int)at, got, expected, most);
}

/* ---- one gate per feature ---------------------------------------------------------------------------- */

/* Gates are odd multiples of 1/32 below 8: none lies on a kink, some lie beyond that of relu6. */
static tn_tensor gates(tn_dtype dtype, int32_t ndim, const int64_t *shape, uint32_t seed)
{
    tn_tensor t = optest_random(dtype, ndim, shape, seed);
    for (int64_t i = 0; i < tn_tensor_count(&t); i++) {
        double steps = floor(optest_at(&t, i) * 64.0);
        optest_set(&t, i, (2.0 * steps + 1.0) / 32.0);
    }
    return t;
}

static tn_call make_call(tn_act a, tn_dtype dtype, const int64_t shape[2])
{
    tn_call call = optest_call(TN_OP_MLP, dtype, 2, 1);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_ACT] = (int32_t)a;
    call.op = TN_OP_GLU;
    call.in[0] = gates(dtype, 2, shape, 1);
    call.in[1] = optest_random(dtype, 2, shape, 2);
    call.out[0] = optest_zeros(dtype, 2, shape);
    return call;
}

static const int64_t sizes[][2] = {{0, 3}, {1, 1}, {3, 17}, {2, 515}, {40, 33}};

static void check_call(tn_call *call, tn_act a)
{
    const tn_grads *grads = call->grads;
    tn_dtype dtype = call->in[0].dtype;
    for (int64_t i = 0; i < tn_tensor_count(&call->in[0]); i++) {
        double x = optest_at(&call->in[0], i), up = optest_at(&call->in[1], i), g = optest_at(&grads->out[0], i);
        double slope = optest_derivative(act_of, &a, x, 1e-3), y = act(a, x);
        close_to(optest_at(&grads->in[0], i), g * up * slope, fabs(g * up) * bound(a, dtype, slope, slope_size(a, x)),
                 dtype, a, "dgate", i);
        close_to(optest_at(&grads->in[1], i), g * y, fabs(g) * bound(a, dtype, y, act_size(a, x)), dtype, a, "dup", i);
    }
}

START_TEST(every_activation)
{
    tn_act a = (tn_act)_i;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int d = 0; d < 3; d++) {
            tn_call call = make_call(a, dtypes[d], sizes[s]);
            optest_grads(&call, 3);
            optest_backward_threads(&call);
            check_call(&call, a);
            /* Over the upstream gradient. */
            optest_backward_in_place(&call);
        }
}
END_TEST

/* Where forward saturates or overflows gradients are 0 or those of a line. */
START_TEST(far_out)
{
    static const double slopes[TN_ACT_SQRT_SOFTPLUS + 1] = {
        [TN_ACT_SILU] = 1.0, [TN_ACT_GELU_TANH] = 1.0,  [TN_ACT_GELU] = 1.0,
        [TN_ACT_RELU] = 1.0, [TN_ACT_QUICK_GELU] = 1.0, [TN_ACT_LINEAR] = 1.0,
        [TN_ACT_MISH] = 1.0, [TN_ACT_HARD_SWISH] = 1.0, [TN_ACT_LEAKY_RELU] = 1.0,
    };
    for (int a = TN_ACT_SILU; a <= TN_ACT_SQRT_SOFTPLUS; a++)
        for (int negative = 0; negative < 2; negative++) {
            bool root = a == TN_ACT_SQRT_SOFTPLUS && !negative;
            /* They grow; overflow where transformers' do; take two; fall slowly. */
            if (a == TN_ACT_RELU2 || a == TN_ACT_GELU_NEW || a == TN_ACT_CLAMPED_SWIGLU || root)
                continue;
            tn_call call = make_call((tn_act)a, TN_F32, (int64_t[]){1, 3});
            tn_grads *grads = optest_grads(&call, 3);
            for (int64_t i = 0; i < 3; i++) {
                const double x[] = {120.0, 1e6, 1e30};
                optest_set(&call.in[0], i, negative ? -x[i] : x[i]);
                optest_set(&call.in[1], i, 1.0);
                optest_set(&grads->out[0], i, 1.0);
            }
            optest_backward(&call);
            for (int64_t i = 0; i < 3; i++) {
                double expected = negative && a != TN_ACT_LINEAR ? 0.0 : slopes[a];
                expected = negative && a == TN_ACT_LEAKY_RELU ? (double)0.01f : expected;
                if (optest_at(&grads->in[0], i) != expected)
                    ck_abort_msg("activation %d: slope %g, expected %g", a, optest_at(&grads->in[0], i), expected);
            }
        }
}
END_TEST

START_TEST(absent_tensors)
{
    tn_call call = make_call(TN_ACT_SILU, TN_BF16, (int64_t[]){3, 17});
    tn_grads *grads = optest_grads(&call, 3);
    optest_backward(&call);
    tn_tensor dup = optest_from(TN_BF16, &grads->in[1]);
    grads->in[0].data = NULL;
    optest_backward(&call);
    optest_close(&grads->in[1], &dup, 0.0, 0.0, "only dup");
    grads->out[0].data = NULL;
    optest_backward(&call);
    optest_expect_zero(&grads->in[1]);
    optest_site_of(&call)->meaning[TN_AXIS_ACT] = 0;
    ck_assert_int_eq(optest_try_backward(&call, NULL), TN_E_INTERNAL);
}
END_TEST

/* ---- one gate per token ----------------------------------------------------------------------------- */

START_TEST(one_gate_for_all_features)
{
    const int64_t tokens = 5, width = 600;
    tn_act a = TN_ACT_SIGMOID;
    for (int d = 0; d < 3; d++) {
        tn_call call = make_call(a, dtypes[d], (int64_t[]){tokens, width});
        tn_tensor narrow = gates(dtypes[d], 2, (int64_t[]){tokens, 1}, 7);
        call.in[0] = narrow;
        call.in[0].shape[1] = width;
        call.in[0].stride[1] = 0;
        tn_grads *grads = optest_grads(&call, 3);
        tn_tensor dgate = optest_zeros(dtypes[d], 2, narrow.shape);
        grads->in[0] = call.in[0];
        grads->in[0].data = dgate.data;
        optest_backward_threads(&call);
        for (int64_t t = 0; t < tokens; t++) {
            double x = optest_at(&narrow, t), slope = optest_derivative(act_of, &a, x, 1e-3), sum = 0.0, size = 0.0;
            for (int64_t i = 0; i < width; i++) {
                double g = optest_at(&grads->out[0], t * width + i), up = optest_at(&call.in[1], t * width + i);
                sum += g * up;
                size += fabs(g * up);
                close_to(optest_at(&grads->in[1], t * width + i), g * act(a, x),
                         fabs(g) * bound(a, dtypes[d], act(a, x), 1.0), dtypes[d], a, "dup", i);
            }
            /* Each product is rounded, then the sum, then the result. */
            close_to(optest_at(&dgate, t), sum * slope, (size + fabs(sum)) * bound(a, dtypes[d], slope, 1.0), dtypes[d],
                     a, "dgate", t);
        }
    }
}
END_TEST

/* ---- sparsity -------------------------------------------------------------------------------------------- */

enum { INTER = 600 };

/* One token. */
typedef struct row {
    tn_act act;
    int64_t width, moving;
    double z, gate[INTER], up[INTER], g[INTER];
    double mean, deviation, cut;
} row;

static void statistics(row *r)
{
    double sum = 0.0;
    for (int64_t i = 0; i < r->width; i++)
        sum += r->gate[i];
    r->mean = sum / (double)r->width;
    sum = 0.0;
    for (int64_t i = 0; i < r->width; i++)
        sum += (r->gate[i] - r->mean) * (r->gate[i] - r->mean);
    r->deviation = sqrt(sum / (double)r->width);
    r->cut = r->mean + r->z * r->deviation;
}

/* sum g y with another value of the moving gate. */
static double row_loss(void *ctx, double value)
{
    row r = *(const row *)ctx;
    double sum = 0.0;
    r.gate[r.moving] = value;
    statistics(&r);
    for (int64_t i = 0; i < r.width; i++)
        sum += r.g[i] * r.up[i] * act(r.act, fmax(r.gate[i] - r.cut, 0.0));
    return sum;
}

static void load_row(const tn_call *call, int64_t t, row *r)
{
    r->act = (tn_act)call->site->meaning[TN_AXIS_ACT];
    r->width = call->in[0].shape[1];
    r->z = optest_rounded(call->site->num[TN_NUM_SPARSITY], call->in[0].dtype);
    for (int64_t i = 0; i < r->width; i++) {
        r->gate[i] = optest_at(&call->in[0], t * r->width + i);
        r->up[i] = optest_at(&call->in[1], t * r->width + i);
        r->g[i] = optest_at(&call->grads->out[0], t * r->width + i);
    }
    statistics(r);
}

/* How far a row's mean and deviation reach into the gradient of gate i: 1 + z (x - mean) / deviation, by terms. */
static double spread(const row *r, int64_t i)
{
    return 1.0 + fabs(r->z * (r->gate[i] - r->mean)) / r->deviation;
}

static tn_call make_sparse(tn_act a, tn_dtype dtype, const int64_t shape[2], double z)
{
    tn_call call = make_call(a, dtype, shape);
    tn_site *site = optest_site_of(&call);
    site->features = TN_HAS_SPARSITY;
    site->num[TN_NUM_SPARSITY] = z;
    return call;
}

/* f32 against differences. What act is applied to is off by an eps of gate and cut, which enters its derivative. */
static void check_sparse_row(const tn_call *call, int64_t t)
{
    static row r;
    load_row(call, t, &r);
    double margin = INFINITY, total = 0.0, own[INTER];
    for (int64_t i = 0; i < r.width; i++) {
        double above = r.gate[i] - r.cut, size = slope_size(r.act, above) + fabs(r.gate[i]) + fabs(r.cut);
        margin = fmin(margin, fabs(above));
        own[i] = above > 0.0 ? fabs(r.g[i] * r.up[i]) * size : 0.0;
        total += own[i] / (double)r.width;
    }
    ck_assert_double_gt(margin, 1e-5);
    for (int64_t i = 0; i < r.width; i++) {
        r.moving = i;
        /* Steps that leave every gate on its side of the cut. */
        double dx = optest_derivative(row_loss, &r, r.gate[i], fmin(1e-3, 0.1 * margin));
        double above = fmax(r.gate[i] - r.cut, 0.0), size = act_size(r.act, above) + fabs(r.gate[i]) + fabs(r.cut);
        close_to(optest_at(&call->grads->in[0], t * r.width + i), dx,
                 4.0 * 0x1p-24 * (own[i] + total * spread(&r, i)) + 1e-8, TN_F32, r.act, "sparse dgate", i);
        close_to(optest_at(&call->grads->in[1], t * r.width + i), r.g[i] * act(r.act, above),
                 4.0 * 0x1p-24 * fabs(r.g[i]) * size, TN_F32, r.act, "sparse dup", i);
    }
}

static const int64_t sparse_sizes[][2] = {{0, 3}, {2, 2}, {3, 17}, {2, 515}, {1, 600}};
static const double quantiles[] = {1.6448536269514722, 0.0, -0.5};

START_TEST(sparse_gradients)
{
    for (size_t s = 0; s < sizeof sparse_sizes / sizeof *sparse_sizes; s++)
        for (int q = 0; q < 3; q++) {
            tn_call call = make_sparse((tn_act)_i, TN_F32, sparse_sizes[s], quantiles[q]);
            optest_grads(&call, 3);
            optest_backward_threads(&call);
            for (int64_t t = 0; t < sparse_sizes[s][0]; t++)
                check_sparse_row(&call, t);
            optest_backward_in_place(&call);
        }
}
END_TEST

/* The cut as transformers rounds it, and what passes it. */
static double rounded_cut(const row *r, tn_dtype dtype)
{
    double above = optest_rounded(optest_rounded(r->deviation, dtype) * r->z, dtype);
    return optest_rounded(optest_rounded(r->mean, dtype) + above, dtype);
}

static double passes(const row *r, int64_t i, double cut, tn_dtype dtype)
{
    return fmax(optest_rounded(r->gate[i] - cut, dtype), 0.0);
}

/* With an exact activation every rounding of forward is known: equal bit for bit, in place too. */
START_TEST(sparse_forward)
{
    static row r;
    for (size_t s = 0; s < sizeof sparse_sizes / sizeof *sparse_sizes; s++)
        for (int d = 0; d < 3; d++)
            for (int q = 0; q < 3; q++) {
                tn_call call = make_sparse(TN_ACT_RELU, dtypes[d], sparse_sizes[s], quantiles[q]);
                optest_grads(&call, 3);
                optest_threads(&call);
                for (int64_t t = 0; t < sparse_sizes[s][0]; t++) {
                    load_row(&call, t, &r);
                    double cut = rounded_cut(&r, dtypes[d]);
                    for (int64_t i = 0; i < r.width; i++) {
                        double expected = optest_rounded(passes(&r, i, cut, dtypes[d]) * r.up[i], dtypes[d]);
                        double got = optest_at(&call.out[0], t * r.width + i);
                        if (got != expected)
                            ck_abort_msg("%s, gate %d: %.9g, expected %.9g", tn_dtype_name(dtypes[d]), (int)i, got,
                                         expected);
                    }
                }
                optest_in_place(&call);
            }
}
END_TEST

/* bf16 and f16: what passes is known exactly; then g up, h and the result are rounded. */
START_TEST(sparse_gradients_round)
{
    static row r;
    static double h[INTER];
    tn_act a = TN_ACT_GELU_TANH;
    for (int d = 1; d < 3; d++)
        for (int q = 0; q < 3; q++) {
            double eps = optest_epsilon(dtypes[d]);
            tn_call call = make_sparse(a, dtypes[d], (int64_t[]){3, 515}, quantiles[q]);
            tn_grads *grads = optest_grads(&call, 3);
            optest_backward_threads(&call);
            for (int64_t t = 0; t < 3; t++) {
                load_row(&call, t, &r);
                double cut = rounded_cut(&r, dtypes[d]), sum = 0.0, total = 0.0;
                for (int64_t i = 0; i < r.width; i++) {
                    double arg = passes(&r, i, cut, dtypes[d]);
                    h[i] = arg > 0.0 ? r.g[i] * r.up[i] * optest_derivative(act_of, &a, arg, 1e-3) : 0.0;
                    sum += h[i] / (double)r.width;
                    total += fabs(h[i]) / (double)r.width;
                }
                for (int64_t i = 0; i < r.width; i++) {
                    double dx = h[i] - sum * (1.0 + r.z * (r.gate[i] - r.mean) / r.deviation);
                    double most = eps * (2.1 * (fabs(h[i]) + total * spread(&r, i)) + 1.1 * fabs(dx));
                    close_to(optest_at(&grads->in[0], t * r.width + i), dx, most, dtypes[d], a, "sparse dgate", i);
                }
            }
        }
}
END_TEST

/* Equal gates have no deviation: nothing passes, and no gradient comes back. */
START_TEST(sparse_without_deviation)
{
    for (int64_t width = 1; width < 40; width += 38)
        for (int d = 0; d < 3; d++) {
            tn_call call = make_sparse(TN_ACT_GELU_TANH, dtypes[d], (int64_t[]){2, width}, 1.5);
            for (int64_t i = 0; i < 2 * width; i++)
                optest_set(&call.in[0], i, 1.25);
            tn_grads *grads = optest_grads(&call, 3);
            optest_run(&call);
            optest_backward(&call);
            optest_expect_zero(&call.out[0]);
            optest_expect_zero(&grads->in[0]);
            optest_expect_zero(&grads->in[1]);
        }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of GLU", 120);
    tcase_add_loop_test(tc, every_activation, TN_ACT_SILU, TN_ACT_MISH + 1);
    tcase_add_loop_test(tc, every_activation, TN_ACT_HARD_SWISH, TN_ACT_SQRT_SOFTPLUS + 1);
    suite_add(tc, far_out, absent_tensors, one_gate_for_all_features);
    tcase_add_loop_test(tc, sparse_gradients, TN_ACT_SILU, TN_ACT_GELU + 1);
    suite_add(tc, sparse_forward, sparse_gradients_round, sparse_without_deviation);
    return suite_run();
}
