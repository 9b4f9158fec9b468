/* RMS_NORM whose gate comes first or last in f32, of whole rows and by groups: results and gradients against double. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
static const tn_norm variants[] = {TN_NORM_GATED_W, TN_NORM_W_GATED_F32};

typedef struct shape {
    int64_t rows, width, groups;
    double eps;
} shape;

static const shape shapes[] = {{0, 6, 2, 1e-6},   {1, 1, 1, 1e-5},  {3, 12, 3, 1e-6},  {5, 33, 1, 1e-5},
                               {2, 64, 64, 1e-2}, {2, 96, 2, 1e-6}, {2, 1200, 2, 1e-6}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static double silu(double z)
{
    return z / (1 + exp(-z));
}

static tn_call make_call(tn_norm variant, tn_dtype dtype, const shape *s)
{
    tn_call call = optest_call(TN_OP_RMS_NORM, dtype, 2, 1);
    tn_site *site = optest_site_of(&call);
    int64_t dims[2] = {s->rows, s->width};
    tn_tensor w = optest_random(dtype, 1, &s->width, 4);
    site->meaning[TN_AXIS_NORM] = (int32_t)variant;
    site->num[TN_NUM_EPS] = s->eps;
    site->features = s->groups > 1 ? TN_HAS_GROUPS : 0;
    site->dim[TN_DIM_GROUPS] = s->groups;
    optest_param(site, TN_ROLE_WEIGHT, &w, 1);
    for (int i = 0; i < 2; i++)
        call.in[i] = optest_random(dtype, 2, dims, 5 + (uint32_t)i);
    call.out[0] = optest_zeros(dtype, 2, dims);
    return call;
}

/* 1 / root mean square of element at's group, and that element before it is normalised. */
static double root(const tn_call *c, int64_t at, double *own)
{
    const tn_site *site = c->site;
    int64_t width = c->in[0].shape[1], span = site->features & TN_HAS_GROUPS ? width / site->dim[TN_DIM_GROUPS] : width;
    double sum = 0;
    for (int64_t i = at / span * span; i < (at / span + 1) * span; i++) {
        double x = optest_at(&c->in[0], i);
        x *= site->meaning[TN_AXIS_NORM] == TN_NORM_GATED_W ? silu(optest_at(&c->in[1], i)) : 1;
        *own = i == at ? x : *own;
        sum += x * x;
    }
    return 1 / sqrt(sum / (double)span + (double)(float)site->num[TN_NUM_EPS]);
}

static double result(const tn_call *c, int64_t at)
{
    double x = 0, r = root(c, at, &x), w = optest_at(c->site->param[TN_ROLE_WEIGHT].tensors, at % c->in[0].shape[1]);
    return x * r * w * (c->site->meaning[TN_AXIS_NORM] == TN_NORM_GATED_W ? 1 : silu(optest_at(&c->in[1], at)));
}

/* A root, an exponential, a quotient and four products in f32, and one rounding. */
START_TEST(results)
{
    for (int v = 0; v < 2; v++)
        for (int d = 0; d < 3; d++) {
            tn_call call = make_call(variants[v], dtypes[d], &shapes[_i]);
            optest_threads(&call);
            for (int64_t i = 0; i < tn_tensor_count(&call.out[0]); i++) {
                double want = result(&call, i), got = optest_at(&call.out[0], i);
                double bound =
                    fabs(want) * (optest_epsilon(dtypes[d]) + 24 * 0x1p-24) + (dtypes[d] == TN_F16 ? 0x1p-24 : 1e-12);
                ck_assert_msg(fabs(got - want) <= bound, "norm %d, %s, element %lld: %.9g, expected %.9g", v,
                              tn_dtype_name(dtypes[d]), (long long)i, got, want);
            }
        }
}
END_TEST

typedef struct moving {
    const tn_call *call;
    tn_tensor *what;
    int64_t at, first, count;
} moving;

static double loss(void *ctx, double value)
{
    moving *m = ctx;
    double kept = optest_at(m->what, m->at), sum = 0;
    optest_set(m->what, m->at, value);
    for (int64_t i = m->first; i < m->first + m->count; i++)
        sum += result(m->call, i) * optest_at(&m->call->grads->out[0], i);
    optest_set(m->what, m->at, kept);
    return sum;
}

static void expect_gradient(const tn_call *c, tn_tensor *what, const tn_tensor *got, const char *name)
{
    int64_t count = tn_tensor_count(what), width = c->in[0].shape[1];
    for (int64_t i = 0; i < count; i += 1 + count / 12) {
        bool one_row = what->ndim == 2;
        moving m = {c, what, i, one_row ? i / width * width : 0, one_row ? width : tn_tensor_count(&c->in[0])};
        double want = optest_derivative(loss, &m, optest_at(what, i), 0x1p-8);
        ck_assert_msg(fabs(optest_at(got, i) - want) <= 2e-5 * (1 + fabs(want)),
                      "%s, element %lld: %.9g, expected %.9g", name, (long long)i, optest_at(got, i), want);
    }
}

START_TEST(gradients)
{
    for (int v = 0; v < 2; v++) {
        tn_call call = make_call(variants[v], TN_F32, &shapes[_i]);
        tn_grads *grads = optest_grads(&call, 9);
        optest_backward_threads(&call);
        expect_gradient(&call, &call.in[0], &grads->in[0], "dx");
        expect_gradient(&call, &call.in[1], &grads->in[1], "dgate");
        expect_gradient(&call, (tn_tensor *)(uintptr_t)call.site->param[TN_ROLE_WEIGHT].tensors,
                        grads->param[TN_ROLE_WEIGHT].tensors, "dweight");
    }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("gated norms", 120);
    tcase_add_loop_test(tc, results, 0, SHAPES);
    tcase_add_loop_test(tc, gradients, 0, SHAPES);
    return suite_run();
}
