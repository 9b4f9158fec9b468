/* SELECTIVE_SCAN and its gradients against a plain loop in double precision: with padding, split into several calls,
 * with and without limits of the steps. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/half.h>

enum { MOST_TOKENS = 80, MOST_DIM = 32 };

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

typedef struct shape {
    int64_t rows, tokens, groups, heads, n, p;
    bool padding, limits;
    double more; /* added to dt                                                                     */
} shape;

static const shape shapes[] = {{1, 1, 1, 1, 4, 3, false, false, 0},   {2, 5, 2, 4, 8, 6, true, false, 0},
                               {1, 70, 2, 4, 16, 24, false, true, 0}, {2, 33, 1, 3, 8, 5, true, true, 0},
                               {1, 40, 1, 1, 32, 8, true, false, -6}, {1, 20, 1, 2, 8, 8, false, false, 40},
                               {1, 0, 1, 1, 4, 4, false, false, 0},   {3, 16, 3, 3, 4, 4, true, false, -3}};

enum { TYPES = 3, SHAPES = sizeof shapes / sizeof *shapes };

enum { X, STATE, B, C, DT, INDEX, INPUTS };

static const tn_role roles[] = {TN_ROLE_DECAY, TN_ROLE_BIAS, TN_ROLE_WEIGHT};

/* wide: y is f32. */
static tn_call make_call(tn_dtype dtype, const shape *s, bool wide)
{
    int64_t x[4] = {s->rows, s->tokens, s->heads, s->p}, b[4] = {s->rows, s->tokens, s->groups, s->n};
    int64_t state[4] = {s->rows, s->heads, s->n, s->p};
    tn_call call = optest_call(TN_OP_SELECTIVE_SCAN, dtype, INPUTS, 2);
    tn_site *site = optest_site_of(&call);
    site->dim[TN_DIM_HEAD] = s->n;
    site->dim[TN_DIM_HEAD_V] = s->p;
    site->dim[TN_DIM_Q_HEADS] = s->groups;
    site->dim[TN_DIM_KV_HEADS] = s->heads;
    site->features = (s->limits ? TN_HAS_STEP_LIMITS : 0) | (wide ? TN_HAS_F32_RESULT : 0);
    site->num[TN_NUM_LEAST] = 0.5;
    site->num[TN_NUM_LIMIT] = 1;
    for (int i = 0; i < 3; i++) {
        tn_tensor t = optest_random(i == 1 ? TN_F32 : dtype, 1, &s->heads, 20 + (uint64_t)i);
        optest_param(site, roles[i], &t, 1);
    }
    call.in[X] = optest_random(dtype, 4, x, 3);
    call.in[STATE] = optest_random(TN_F32, 4, state, 4);
    call.in[B] = optest_random(dtype, 4, b, 5);
    call.in[C] = optest_random(dtype, 4, b, 6);
    call.in[DT] = optest_random(dtype, 3, x, 7);
    call.in[INDEX] = optest_zeros(TN_I32, 2, x);
    for (int64_t i = 0; i < tn_tensor_count(&call.in[DT]); i++)
        optest_set(&call.in[DT], i, optest_at(&call.in[DT], i) + s->more);
    for (int64_t i = 0; i < s->rows * s->tokens; i++) {
        int64_t row = i / s->tokens, t = i % s->tokens;
        optest_set(&call.in[INDEX], i, s->padding && (t < 3 * row || t % 11 == 7) ? -1 : (double)t);
    }
    call.out[0] = optest_zeros(wide ? TN_F32 : dtype, 4, x);
    call.out[1] = optest_zeros(TN_F32, 4, state);
    return call;
}

/* ---- the truth: one head of one row -------------------------------------------------------------------------- */

typedef struct truth {
    double m[MOST_DIM][MOST_DIM];          /* state                                                  */
    double y[MOST_TOKENS][MOST_DIM], peak; /* peak: the largest element of any state or x            */
} truth;

static double rounded(double x, tn_dtype dtype)
{
    return dtype == TN_BF16  ? (double)tn_bf16_to_f32(tn_f32_to_bf16((float)x))
           : dtype == TN_F16 ? (double)tn_f16_to_f32(tn_f32_to_f16((float)x))
                             : x;
}

static double param(const tn_call *c, int which, int64_t head)
{
    return optest_at(c->site->param[roles[which]].tensors, head);
}

static void compute(const tn_call *c, tn_dtype dtype, int64_t row, int64_t head, truth *t)
{
    int64_t tokens = c->in[X].shape[1], heads = c->in[X].shape[2], p = c->in[X].shape[3];
    int64_t groups = c->in[B].shape[2], n = c->in[B].shape[3];
    bool limits = c->site->features & TN_HAS_STEP_LIMITS;
    t->peak = 0;
    for (int64_t i = 0; i < n * p; i++) {
        double m = t->m[i / p][i % p] = optest_at(&c->in[STATE], (row * heads + head) * n * p + i);
        t->peak = fmax(t->peak, fabs(m));
    }
    for (int64_t token = 0; token < tokens; token++) {
        int64_t at = row * tokens + token, group = (at * groups + head / (heads / groups)) * n;
        memset(t->y[token], 0, sizeof t->y[token]);
        if (optest_at(&c->in[INDEX], at) < 0)
            continue;
        double raw = rounded(optest_at(&c->in[DT], at * heads + head) + param(c, 1, head), dtype);
        double s = rounded(log1p(exp(raw)), dtype), keep;
        s = limits ? fmin(fmax(s, c->site->num[TN_NUM_LEAST]), c->site->num[TN_NUM_LIMIT]) : s;
        keep = exp(-exp(param(c, 0, head)) * s);
        for (int64_t j = 0; j < p; j++) {
            double x = optest_at(&c->in[X], (at * heads + head) * p + j), y = param(c, 2, head) * x;
            for (int64_t i = 0; i < n; i++) {
                t->m[i][j] = keep * t->m[i][j] + optest_at(&c->in[B], group + i) * s * x;
                y += optest_at(&c->in[C], group + i) * t->m[i][j];
                t->peak = fmax(t->peak, fabs(t->m[i][j]));
            }
            t->y[token][j] = y;
            t->peak = fmax(t->peak, fabs(x));
        }
    }
}

/* y sums n products of c, which is not above 1, with a state; a state is off by some units for each token that it still
 * remembers, of which there are no more than tokens. */
static double bound(const tn_call *c, const truth *t)
{
    return 0x1p-24 * 4 * (double)(c->in[B].shape[3] + c->in[X].shape[1] + 4) * t->peak;
}

static void expect_right(const tn_call *c)
{
    static truth t;
    int64_t tokens = c->in[X].shape[1], heads = c->in[X].shape[2], p = c->in[X].shape[3];
    int64_t state = c->in[STATE].shape[2] * p;
    tn_dtype dtype = c->out[0].dtype;
    for (int64_t i = 0; i < c->in[X].shape[0] * heads; i++) {
        int64_t row = i / heads, head = i % heads;
        compute(c, c->in[X].dtype, row, head, &t);
        double off = bound(c, &t) * (double)(c->in[B].shape[3]);
        for (int64_t j = 0; j < tokens * p; j++) {
            int64_t token = j / p;
            double want = t.y[token][j % p];
            double got = optest_at(&c->out[0], ((row * tokens + token) * heads + head) * p + j % p);
            ck_assert_msg(fabs(got - want) <= off + optest_epsilon(dtype) * fabs(want) + 0x1p-25,
                          "row %lld, token %lld, head %lld, element %lld is %.9g, expected %.9g", (long long)row,
                          (long long)token, (long long)head, (long long)(j % p), got, want);
        }
        for (int64_t j = 0; j < state; j++)
            ck_assert_double_le(fabs(optest_at(&c->out[1], i * state + j) - t.m[j / p][j % p]), bound(c, &t));
    }
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

START_TEST(every_element)
{
    int variant = _i / SHAPES; /* of f32, bf16, f16, and the narrow ones with y in f32                */
    tn_call call = make_call(dtypes[variant < TYPES ? variant : variant - 2], &shapes[_i % SHAPES], variant >= TYPES);
    optest_threads(&call);
    expect_right(&call);
}
END_TEST

/* Tokens first .. of all tensors that have them. */
static tn_call part_of(const tn_call *call, int64_t first, int64_t count)
{
    static const int with_tokens[] = {X, B, C, DT, INDEX};
    tn_call part = *call;
    for (size_t i = 0; i <= sizeof with_tokens / sizeof *with_tokens; i++) {
        tn_tensor *t = i ? &part.in[with_tokens[i - 1]] : &part.out[0];
        t->shape[1] = count;
        t->data = (char *)t->data + first * t->stride[1] * (int64_t)tn_dtype_size(t->dtype);
    }
    return part;
}

/* One call, calls of some tokens and calls of one, y in the place of x and the state in its own: the same bits. */
START_TEST(split_and_in_place)
{
    static const int64_t steps[] = {1, 7, 20, 1000};
    const shape *s = &shapes[3];
    tn_dtype dtype = dtypes[_i % 3];
    tn_call call = make_call(dtype, s, false), in_place = call;
    optest_run(&call);
    in_place.in[X] = in_place.out[0] = optest_from(dtype, &call.in[X]);
    in_place.in[STATE] = in_place.out[1] = optest_from(TN_F32, &call.in[STATE]);
    for (int64_t first = 0, step = steps[_i / 3]; first < s->tokens; first += step) {
        tn_call part = part_of(&in_place, first, s->tokens - first < step ? s->tokens - first : step);
        optest_run(&part);
    }
    optest_close(&in_place.out[0], &call.out[0], 0, 0, "y");
    optest_close(&in_place.out[1], &call.out[1], 0, 0, "state");
}
END_TEST

/* A step that overflows forgets everything, and one of nothing writes nothing. */
START_TEST(far_steps)
{
    tn_call call = make_call(TN_F32, &shapes[1], false);
    for (int64_t i = 0; i < tn_tensor_count(&call.in[DT]); i++)
        optest_set(&call.in[DT], i, i % 2 ? -1e38 : 1e30);
    tn_call empty = call; /* ... which has nothing to forget                                          */
    empty.in[STATE] = optest_zeros(TN_F32, 4, call.in[STATE].shape);
    for (int i = 0; i < 2; i++)
        empty.out[i] = optest_zeros(TN_F32, 4, call.out[i].shape);
    optest_run(&call);
    optest_run(&empty);
    int64_t heads = call.out[1].shape[1], each = call.out[1].shape[2] * call.out[1].shape[3];
    for (int64_t i = 0; i < tn_tensor_count(&call.out[0]); i++)
        ck_assert(isfinite(optest_at(&call.out[0], i)));
    for (int64_t i = 0; i < tn_tensor_count(&call.out[1]); i++)
        ck_assert_double_eq(optest_at(&call.out[1], i),
                            optest_at(i / each % heads % 2 ? &call.in[STATE] : &empty.out[1], i));
    const shape one = {1, 1, 1, 1, 4, 4, false, false, -1e30};
    call = make_call(TN_F32, &one, false);
    optest_run(&call);
    optest_close(&call.out[1], &call.in[STATE], 0, 0, "state");
}
END_TEST

typedef struct moving {
    const tn_call *call;
    const tn_tensor *what;
    int64_t at;
} moving;

static double loss(void *ctx, double value)
{
    static truth t;
    moving *m = ctx;
    const tn_call *c = m->call;
    int64_t tokens = c->in[X].shape[1], heads = c->in[X].shape[2], p = c->in[X].shape[3];
    int64_t state = c->in[STATE].shape[2] * p;
    double kept = optest_at(m->what, m->at), sum = 0;
    optest_set((tn_tensor *)(uintptr_t)m->what, m->at, value);
    for (int64_t i = 0; i < c->in[X].shape[0] * heads; i++) {
        int64_t row = i / heads, head = i % heads;
        compute(c, TN_F32, row, head, &t);
        for (int64_t j = 0; j < tokens * p; j++)
            sum +=
                t.y[j / p][j % p] * optest_at(&c->grads->out[0], ((row * tokens + j / p) * heads + head) * p + j % p);
        for (int64_t j = 0; j < state; j++)
            sum += t.m[j / p][j % p] * optest_at(&c->grads->out[1], i * state + j);
    }
    optest_set((tn_tensor *)(uintptr_t)m->what, m->at, kept);
    return sum;
}

static void expect_gradient(const tn_call *call, const tn_tensor *what, const tn_tensor *got, const char *name)
{
    int64_t count = tn_tensor_count(what);
    for (int64_t i = 0; i < count; i += 1 + count / 40) {
        moving m = {call, what, i};
        double want = optest_derivative(loss, &m, optest_at(what, i), 0x1p-7);
        ck_assert_msg(fabs(optest_at(got, i) - want) <= 1e-4 * (1 + fabs(want)), "%s %lld is %.9g, expected %.9g", name,
                      (long long)i, optest_at(got, i), want);
    }
}

/* Steps at a limit have no derivative: those that come near one are moved away. */
static void avoid_limits(tn_call *call)
{
    tn_tensor *dt = &call->in[DT];
    int64_t heads = dt->shape[2];
    for (int64_t i = 0; i < tn_tensor_count(dt); i++) {
        double s = log1p(exp(optest_at(dt, i) + param(call, 1, i % heads)));
        if (fabs(s - 0.5) < 0.05 || fabs(s - 1) < 0.05)
            optest_set(dt, i, optest_at(dt, i) + 0.3);
    }
}

START_TEST(gradients)
{
    static const char *const names[] = {"dx", "dstate", "db", "dc", "ddt"};
    tn_call call = make_call(TN_F32, &shapes[_i], false);
    if (shapes[_i].limits) {
        avoid_limits(&call);
        for (int64_t h = 0; h < shapes[_i].heads; h++) /* the bias moves all steps: it is left alone */
            optest_set((tn_tensor *)(uintptr_t)call.site->param[TN_ROLE_BIAS].tensors, h, 0);
        avoid_limits(&call);
    }
    tn_grads *grads = optest_grads(&call, 9);
    optest_backward_threads(&call);
    for (int i = 0; i < INDEX; i++)
        expect_gradient(&call, &call.in[i], &grads->in[i], names[i]);
    expect_gradient(&call, call.site->param[TN_ROLE_DECAY].tensors, grads->param[TN_ROLE_DECAY].tensors, "ddecay");
    expect_gradient(&call, call.site->param[TN_ROLE_BIAS].tensors, grads->param[TN_ROLE_BIAS].tensors, "dbias");
    expect_gradient(&call, call.site->param[TN_ROLE_WEIGHT].tensors, grads->param[TN_ROLE_WEIGHT].tensors, "dskip");
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("selective scan", 120);
    tcase_add_loop_test(tc, every_element, 0, SHAPES * (2 * TYPES - 1));
    tcase_add_loop_test(tc, split_and_in_place, 0, 12);
    suite_add(tc, far_steps);
    tcase_add_loop_test(tc, gradients, 0, SHAPES);
    return suite_run();
}
