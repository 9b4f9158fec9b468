/* Gradients of RMS_NORM and ADD_RMS_NORM against differences of a forward in double precision, element by element, in
 * all types: inputs are numbers that every type holds, so one truth serves them all. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* Roundings on the longest way to a gradient, each at most eps of the magnitude below. In bf16 and f16: four (gated:
 * g s, times w or n, the sum, the result), and what f32 adds to them. In f32 the root, the quotient and the exponential
 * are a few units off as well. */
static double roundings(tn_dtype dtype)
{
    return dtype == TN_F32 ? 8.0 : 4.1;
}

/* ---- forward in double --------------------------------------------------------------------------- */

enum { WIDTH_MAX = 700 };

typedef struct truth {
    tn_norm variant;
    int64_t width;
    double eps;
    double x[WIDTH_MAX], w[WIDTH_MAX], gate[WIDTH_MAX], g[WIDTH_MAX]; /* one row                   */
    double *moving;                                                   /* what is differentiated by */
} truth;

static double silu(double z)
{
    return z / (1.0 + exp(-z));
}

static double factor(const truth *t)
{
    double squares = 0.0;
    for (int64_t i = 0; i < t->width; i++)
        squares += t->x[i] * t->x[i];
    return 1.0 / sqrt(squares / (double)t->width + t->eps);
}

/* dy/dn */
static double weight(const truth *t, int64_t i)
{
    switch (t->variant) {
    case TN_NORM_1_PLUS_W:
        return 1.0 + t->w[i];
    case TN_NORM_W_GATED:
        return t->w[i] * silu(t->gate[i]);
    case TN_NORM_NO_WEIGHT:
        return 1.0;
    default:
        return t->w[i];
    }
}

/* sum g y over the row, with *moving = value. */
static double loss(void *ctx, double value)
{
    truth *t = ctx;
    double kept = *t->moving, sum = 0.0;
    *t->moving = value;
    double r = factor(t);
    for (int64_t i = 0; i < t->width; i++)
        sum += t->g[i] * t->x[i] * r * weight(t, i);
    *t->moving = kept;
    return sum;
}

static double derivative(truth *t, double *by, double scale)
{
    t->moving = by;
    return optest_derivative(loss, t, *by, 1e-3 * scale);
}

/* ---- calls ------------------------------------------------------------------------------------------ */

typedef struct shape {
    int64_t rows, width;
    double eps;
} shape;

static const shape shapes[] = {{0, 5, 1e-6},  {1, 1, 0.0},   {1, 1, 1e-5},   {3, 2, 1e-6},  {1, 31, 0.0},
                               {5, 33, 1e-6}, {2, 64, 1e-6}, {2, 130, 1e-5}, {70, 7, 1e-6}, {2, 700, 1e-6}};

static tn_call make_call(tn_op op, tn_norm variant, tn_dtype dtype, const shape *s)
{
    bool adds = op == TN_OP_ADD_RMS_NORM, two = adds || variant == TN_NORM_W_GATED;
    tn_call call = optest_call(op, dtype, two ? 2 : 1, adds ? 2 : 1);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_NORM] = (int32_t)variant;
    site->num[TN_NUM_EPS] = s->eps;
    tn_tensor w = optest_random(dtype, 1, &s->width, 4);
    optest_param(site, TN_ROLE_WEIGHT, &w, variant == TN_NORM_NO_WEIGHT ? 0 : 1);
    int64_t dims[2] = {s->rows, s->width};
    for (int i = 0; i < call.in_count; i++)
        call.in[i] = optest_random(dtype, 2, dims, 5 + (uint32_t)i);
    for (int i = 0; i < call.out_count; i++)
        call.out[i] = optest_zeros(dtype, 2, dims);
    /* With eps 0 a row of one zero has no norm. */
    for (int64_t i = 0; i < s->rows; i++)
        optest_set(&call.in[0], i * s->width, 0.75);
    return call;
}

static void load_row(const tn_call *call, int64_t row, truth *t)
{
    bool adds = call->op == TN_OP_ADD_RMS_NORM;
    const tn_tensor *w = call->site->param[TN_ROLE_WEIGHT].count ? call->site->param[TN_ROLE_WEIGHT].tensors : NULL;
    t->variant = (tn_norm)call->site->meaning[TN_AXIS_NORM];
    t->eps = (double)(float)call->site->num[TN_NUM_EPS];
    t->width = call->in[0].shape[call->in[0].ndim - 1];
    for (int64_t i = 0; i < t->width; i++) {
        int64_t at = row * t->width + i;
        double second = call->in_count > 1 ? optest_at(&call->in[1], at) : 0.0;
        t->x[i] = optest_at(&call->in[0], at) + (adds ? second : 0.0);
        t->gate[i] = second;
        t->w[i] = w ? optest_at(w, i) : 0.0;
        t->g[i] = optest_at(&call->grads->out[adds ? 1 : 0], at);
    }
}

static void close_to(double got, double expected, double magnitude, tn_dtype dtype, const char *what, int64_t at)
{
    /* The smallest numbers of f16 are 2^-24 apart. */
    double bound = roundings(dtype) * optest_epsilon(dtype) * magnitude + 1e-10 + (dtype == TN_F16 ? 0x1p-24 : 0.0);
    if (!(fabs(got - expected) <= bound))
        ck_abort_msg("%s of %s, element %d: %.9g, expected %.9g within %.3g", what, tn_dtype_name(dtype), (int)at, got,
                     expected, bound);
}

/* Gradients of one row; returns in dw and size what it adds to that of the weight, and to its magnitude. */
static void check_row(const tn_call *call, int64_t row, double *dw, double *size)
{
    static truth t;
    tn_dtype dtype = call->in[0].dtype;
    load_row(call, row, &t);
    double r = factor(&t), mean = 0.0, scale = 1.0 / r;
    for (int64_t i = 0; i < t.width; i++)
        mean += fabs(t.g[i] * weight(&t, i) * t.x[i] * r) / (double)t.width;
    for (int64_t i = 0; i < t.width; i++) {
        int64_t at = row * t.width + i;
        double g = t.g[i], n = t.x[i] * r, extra = 0.0;
        if (call->op == TN_OP_ADD_RMS_NORM)
            extra = optest_at(&call->grads->out[0], at);
        double most = r * (fabs(g * weight(&t, i)) + fabs(n) * mean) + fabs(extra);
        double dx = derivative(&t, &t.x[i], scale) + extra;
        close_to(optest_at(&call->grads->in[0], at), dx, most, dtype, "dx", at);
        if (call->op == TN_OP_ADD_RMS_NORM)
            ck_assert(optest_at(&call->grads->in[0], at) == optest_at(&call->grads->in[1], at));
        if (t.variant == TN_NORM_W_GATED) {
            double dz = derivative(&t, &t.gate[i], 1.0);
            close_to(optest_at(&call->grads->in[1], at), dz, fabs(g * n * t.w[i]) * (1.0 + fabs(t.gate[i])), dtype,
                     "dgate", at);
        }
        double s = t.variant == TN_NORM_W_GATED ? silu(t.gate[i]) : 1.0;
        dw[i] += t.variant == TN_NORM_NO_WEIGHT ? 0.0 : derivative(&t, &t.w[i], 1.0);
        size[i] += fabs(g * n * s);
    }
}

static void check_call(const tn_call *call)
{
    static double dw[WIDTH_MAX], size[WIDTH_MAX];
    const tn_tensor *x = &call->in[0];
    int64_t width = x->shape[x->ndim - 1], rows = tn_tensor_count(x) / width;
    memset(dw, 0, sizeof dw);
    memset(size, 0, sizeof size);
    for (int64_t row = 0; row < rows; row++)
        check_row(call, row, dw, size);
    const tn_param *p = &call->grads->param[TN_ROLE_WEIGHT];
    for (int64_t i = 0; p->count && i < width; i++)
        close_to(optest_at(p->tensors, i), dw[i], size[i], x->dtype, "dweight", i);
}

/* ---- tests -------------------------------------------------------------------------------------------- */

START_TEST(norms)
{
    for (int variant = TN_NORM_W; variant <= TN_NORM_NO_WEIGHT; variant++)
        for (int d = 0; d < 3; d++)
            for (int adds = 0; adds < 2; adds++) {
                if (adds && variant == TN_NORM_W_GATED)
                    continue;
                tn_call call =
                    make_call(adds ? TN_OP_ADD_RMS_NORM : TN_OP_RMS_NORM, (tn_norm)variant, dtypes[d], &shapes[_i]);
                optest_grads(&call, 20);
                optest_backward_threads(&call);
                check_call(&call);
            }
}
END_TEST

/* Heads between tokens and batch, gradients in the memory of the upstream ones. */
START_TEST(strided_and_in_place)
{
    for (int variant = TN_NORM_W; variant <= TN_NORM_NO_WEIGHT; variant++)
        for (int d = 0; d < 3; d++) {
            const shape s = {24, 20, 1e-6};
            tn_call call = make_call(TN_OP_RMS_NORM, (tn_norm)variant, dtypes[d], &s);
            for (int i = 0; i < call.in_count; i++)
                call.in[i] =
                    optest_transpose(optest_random(dtypes[d], 4, (int64_t[]){2, 3, 4, 20}, 30 + (uint32_t)i), 1, 2);
            tn_grads *grads = optest_grads(&call, 20);
            grads->out[0] = optest_transpose(optest_random(dtypes[d], 4, (int64_t[]){2, 3, 4, 20}, 40), 1, 2);
            optest_backward(&call);
            check_call(&call);
            optest_backward_in_place(&call);
        }
}
END_TEST

/* Nothing wanted, nothing upstream. */
START_TEST(absent_tensors)
{
    const shape s = {5, 33, 1e-6};
    tn_call call = make_call(TN_OP_ADD_RMS_NORM, TN_NORM_W, TN_BF16, &s);
    tn_grads *grads = optest_grads(&call, 20);
    optest_backward(&call);
    tn_tensor all = optest_from(TN_BF16, &grads->in[0]);
    /* h + r alone: its gradient passes. */
    grads->out[1].data = NULL;
    optest_backward(&call);
    optest_close(&grads->in[0], &grads->out[0], 0.0, 0.0, "only the sum");
    optest_expect_zero(grads->param[TN_ROLE_WEIGHT].tensors);
    /* The norm alone. */
    grads->out[1] = optest_random(TN_BF16, 2, (int64_t[]){5, 33}, 21);
    tn_tensor sum = grads->out[0];
    grads->out[0].data = NULL;
    optest_backward(&call);
    for (int64_t i = 0; i < tn_tensor_count(&all); i++) {
        float both = (float)(optest_at(&grads->in[0], i) + optest_at(&sum, i));
        uint16_t bits;
        convert_from_f32(&both, TN_BF16, &bits, 1);
        convert_to_f32(&bits, TN_BF16, &both, 1);
        ck_assert_double_eq(optest_at(&all, i), (double)both);
    }
    /* What is not wanted is not written, and the rest does not change. */
    tn_tensor dr = optest_from(TN_BF16, &grads->in[1]);
    grads->in[0].data = NULL;
    grads->param[TN_ROLE_WEIGHT].count = 0;
    optest_backward(&call);
    optest_close(&grads->in[1], &dr, 0.0, 0.0, "only dr");
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of norms", 120);
    tcase_add_loop_test(tc, norms, 0, (int)(sizeof shapes / sizeof *shapes));
    suite_add(tc, strided_and_in_place, absent_tensors);
    return suite_run();
}
