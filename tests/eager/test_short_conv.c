/* SHORT_CONV and its gradients against double precision, with padding and split into several calls. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { MOST = 4096 };

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

typedef struct shape {
    int64_t rows, tokens, width, taps;
    bool bias, padding;
    tn_act act;
} shape;

static const shape shapes[] = {{1, 1, 3, 4, false, false, TN_ACT_SILU},  {2, 9, 70, 4, false, true, TN_ACT_SILU},
                               {1, 2, 5, 6, true, false, TN_ACT_LINEAR}, {3, 17, 64, 3, true, true, TN_ACT_LINEAR},
                               {1, 0, 4, 3, false, false, TN_ACT_SILU},  {2, 6, 8, 1, true, true, TN_ACT_SILU},
                               {1, 3, 9, 20, true, true, TN_ACT_SILU}};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static tn_call make_call(tn_dtype dtype, const shape *s)
{
    int64_t x[3] = {s->rows, s->tokens, s->width}, state[3] = {s->rows, s->width, s->taps - 1};
    tn_call call = optest_call(TN_OP_SHORT_CONV, dtype, 3, 2);
    tn_site *site = optest_site_of(&call);
    site->dim[TN_DIM_WIDTH] = s->width;
    site->dim[TN_DIM_TAPS] = s->taps;
    site->meaning[TN_AXIS_ACT] = s->act;
    tn_tensor w = optest_random(dtype, 2, (int64_t[]){s->width, s->taps}, 1);
    tn_tensor b = optest_random(dtype, 1, &s->width, 2);
    optest_param(site, TN_ROLE_WEIGHT, &w, 1);
    if (s->bias)
        optest_param(site, TN_ROLE_BIAS, &b, 1);
    call.in[0] = optest_random(dtype, 3, x, 3);
    call.in[1] = optest_random(dtype, 3, state, 4);
    call.in[2] = optest_zeros(TN_I32, 2, x);
    for (int64_t b_row = 0; b_row < s->rows; b_row++)
        for (int64_t t = 0; t < s->tokens; t++)
            optest_set(&call.in[2], b_row * s->tokens + t, s->padding && (t < b_row || t % 5 == 2) ? -1 : (double)t);
    call.out[0] = optest_zeros(dtype, 3, x);
    call.out[1] = optest_zeros(dtype, 3, state);
    return call;
}

/* ---- the truth: one channel of one row ------------------------------------------------------------------ */

typedef struct truth {
    const tn_call *call;
    double e[MOST], y[MOST], size[MOST]; /* y and size by token                                    */
    int64_t count;                       /* of e without the state                                 */
} truth;

static double act(const tn_call *call, double s)
{
    return call->site->meaning[TN_AXIS_ACT] == TN_ACT_SILU ? s / (1 + exp(-s)) : s;
}

static void compute(truth *t, int64_t row, int64_t channel)
{
    const tn_call *c = t->call;
    int64_t tokens = c->in[0].shape[1], width = c->in[0].shape[2], past = c->in[1].shape[2];
    const tn_param *bias = &c->site->param[TN_ROLE_BIAS];
    t->count = 0;
    for (int64_t i = 0; i < past; i++)
        t->e[i] = optest_at(&c->in[1], (row * width + channel) * past + i);
    for (int64_t token = 0; token < tokens; token++) {
        t->y[token] = t->size[token] = 0;
        if (optest_at(&c->in[2], row * tokens + token) < 0)
            continue;
        t->e[past + t->count] = optest_at(&c->in[0], (row * tokens + token) * width + channel);
        double s = bias->count ? optest_at(bias->tensors, channel) : 0;
        t->size[token] = fabs(s);
        for (int64_t m = 0; m <= past; m++) {
            double term =
                optest_at(c->site->param[TN_ROLE_WEIGHT].tensors, channel * (past + 1) + m) * t->e[t->count + m];
            s += term;
            t->size[token] += fabs(term);
        }
        t->y[token] = act(c, s);
        t->count++;
    }
}

/* The sum is off by a unit of f32 for each of its terms and rounded to the type; the activation, whose slope is below
 * 1.1, adds its own few units and one rounding. */
static double bound(const truth *t, int64_t token, tn_dtype dtype)
{
    double unit = optest_epsilon(dtype);
    double taps = (double)t->call->in[1].shape[2] + 2;
    return 1.1 * t->size[token] * (taps * 0x1p-24 + unit) + fabs(t->y[token]) * (unit + 4 * 0x1p-24) + 0x1p-25;
}

static void expect_right(const tn_call *call)
{
    static truth t;
    int64_t tokens = call->in[0].shape[1], width = call->in[0].shape[2], past = call->in[1].shape[2];
    t.call = call;
    for (int64_t i = 0; i < call->in[0].shape[0] * width; i++) {
        int64_t row = i / width, channel = i % width;
        compute(&t, row, channel);
        for (int64_t token = 0; token < tokens; token++) {
            double got = optest_at(&call->out[0], (row * tokens + token) * width + channel);
            ck_assert_msg(fabs(got - t.y[token]) <= bound(&t, token, call->in[0].dtype),
                          "row %lld, token %lld, channel %lld is %.9g, expected %.9g", (long long)row, (long long)token,
                          (long long)channel, got, t.y[token]);
        }
        for (int64_t j = 0; j < past; j++)
            ck_assert_double_eq(optest_at(&call->out[1], i * past + j), t.e[t.count + j]);
    }
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

START_TEST(every_element)
{
    tn_call call = make_call(dtypes[_i / SHAPES], &shapes[_i % SHAPES]);
    optest_threads(&call);
    expect_right(&call);
}
END_TEST

/* Over x and the state; and token by token, the state going on. */
START_TEST(in_place_and_split)
{
    tn_call call, other;
    call = make_call(TN_BF16, &shapes[3]);
    optest_run(&call);
    other = call;
    other.in[0] = optest_from(TN_BF16, &call.in[0]);
    other.in[1] = optest_from(TN_BF16, &call.in[1]);
    tn_tensor x = other.in[0], index = call.in[2];
    for (int64_t t = 0; t < shapes[3].tokens; t++) {
        other.in[0].shape[1] = other.in[2].shape[1] = 1;
        other.in[0].data = (char *)x.data + t * x.stride[1] * 2;
        other.in[2].data = (char *)index.data + t * 4;
        other.out[0] = other.in[0];
        other.out[1] = other.in[1];
        optest_run(&other);
    }
    optest_close(&x, &call.out[0], 0, 0, "y in steps");
    optest_close(&other.in[1], &call.out[1], 0, 0, "state in steps");
    other.in[0] = other.out[0] = optest_from(TN_BF16, &call.in[0]);
    other.in[1] = other.out[1] = optest_from(TN_BF16, &call.in[1]);
    other.in[2] = index;
    optest_run(&other);
    optest_close(&other.out[0], &call.out[0], 0, 0, "y in place");
    optest_close(&other.out[1], &call.out[1], 0, 0, "state in place");
}
END_TEST

typedef struct moving {
    const tn_call *call;
    const tn_tensor *what;
    int64_t at;
} moving;

/* sum dy y + sum dstate' state', with one element of what changed. */
static double loss(void *ctx, double value)
{
    static truth t;
    moving *m = ctx;
    const tn_call *c = m->call;
    int64_t tokens = c->in[0].shape[1], width = c->in[0].shape[2], past = c->in[1].shape[2];
    double kept = optest_at(m->what, m->at), sum = 0;
    optest_set((tn_tensor *)(uintptr_t)m->what, m->at, value);
    t.call = c;
    for (int64_t i = 0; i < c->in[0].shape[0] * width; i++) {
        int64_t row = i / width, channel = i % width;
        compute(&t, row, channel);
        for (int64_t token = 0; token < tokens; token++)
            sum += t.y[token] * optest_at(&c->grads->out[0], (row * tokens + token) * width + channel);
        for (int64_t j = 0; j < past; j++)
            sum += t.e[t.count + j] * optest_at(&c->grads->out[1], i * past + j);
    }
    optest_set((tn_tensor *)(uintptr_t)m->what, m->at, kept);
    return sum;
}

static void expect_gradient(const tn_call *call, const tn_tensor *what, const tn_tensor *got, const char *name)
{
    for (int64_t i = 0; i < tn_tensor_count(what); i += 1 + i / 7) {
        moving m = {call, what, i};
        /* Steps that f32 holds; h^4 of the fifth derivative, and differences of numbers that are sums of f32's. */
        double want = optest_derivative(loss, &m, optest_at(what, i), 0x1p-6);
        ck_assert_msg(fabs(optest_at(got, i) - want) <= 2e-5 * (1 + fabs(want)), "%s %lld is %.9g, expected %.9g", name,
                      (long long)i, optest_at(got, i), want);
    }
}

START_TEST(gradients)
{
    tn_call call = make_call(TN_F32, &shapes[_i]);
    tn_grads *grads = optest_grads(&call, 9);
    optest_backward_threads(&call);
    expect_gradient(&call, &call.in[0], &grads->in[0], "dx");
    expect_gradient(&call, &call.in[1], &grads->in[1], "dstate");
    expect_gradient(&call, call.site->param[TN_ROLE_WEIGHT].tensors, grads->param[TN_ROLE_WEIGHT].tensors, "dweight");
    if (shapes[_i].bias)
        expect_gradient(&call, call.site->param[TN_ROLE_BIAS].tensors, grads->param[TN_ROLE_BIAS].tensors, "dbias");
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("short convolutions", 120);
    tcase_add_loop_test(tc, every_element, 0, SHAPES * 3);
    suite_add(tc, in_place_and_split);
    tcase_add_loop_test(tc, gradients, 0, SHAPES);
    return suite_run();
}
