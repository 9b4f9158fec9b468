/* GATED_DELTA_RULE and its gradients against a plain loop in double precision: token by token and in chunks, with
 * padding, and split into several calls. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/half.h>

enum { MOST_TOKENS = 160, MOST_DIM = 32 };

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

typedef struct shape {
    int64_t rows, tokens, qk_heads, v_heads, dk, dv;
    bool padding;
    double more; /* added to a: how fast it forgets                                                */
    bool channels;
} shape;

static const shape shapes[] = {{1, 1, 1, 1, 4, 3, false, 0, false},    {2, 5, 2, 4, 8, 6, true, 0, false},
                               {1, 70, 2, 4, 16, 24, false, 0, false}, {2, 66, 1, 3, 8, 5, true, 0, false},
                               {1, 130, 1, 1, 32, 8, true, -3, false}, {1, 64, 1, 2, 8, 8, false, 60, false},
                               {1, 0, 1, 1, 4, 4, false, 0, false},    {3, 16, 1, 1, 4, 4, true, -8, false},
                               {2, 5, 2, 4, 8, 6, true, 0, true},      {1, 70, 1, 2, 16, 8, false, -2, true}};

enum { SHAPES = sizeof shapes / sizeof *shapes };

enum { V, STATE, Q, K, A, B, INDEX, INPUTS };

static tn_call make_call(tn_dtype dtype, const shape *s)
{
    int64_t v[4] = {s->rows, s->tokens, s->v_heads, s->dv}, q[4] = {s->rows, s->tokens, s->qk_heads, s->dk};
    int64_t state[4] = {s->rows, s->v_heads, s->dk, s->dv};
    tn_call call = optest_call(TN_OP_GATED_DELTA_RULE, dtype, INPUTS, 2);
    tn_site *site = optest_site_of(&call);
    site->dim[TN_DIM_HEAD] = s->dk;
    site->dim[TN_DIM_HEAD_V] = s->dv;
    site->dim[TN_DIM_Q_HEADS] = s->qk_heads;
    site->dim[TN_DIM_KV_HEADS] = s->v_heads;
    int64_t gate[4] = {s->rows, s->tokens, s->v_heads, s->dk};
    site->features = s->channels ? TN_HAS_CHANNEL_DECAY : 0;
    tn_tensor rate = optest_random(dtype, 1, &s->v_heads, 1);
    tn_tensor bias = optest_random(TN_F32, s->channels ? 2 : 1, gate + 2, 2);
    optest_param(site, TN_ROLE_DECAY, &rate, 1);
    optest_param(site, TN_ROLE_BIAS, &bias, 1);
    call.in[V] = optest_random(dtype, 4, v, 3);
    call.in[STATE] = optest_random(TN_F32, 4, state, 4);
    call.in[Q] = optest_random(dtype, 4, q, 5);
    call.in[K] = optest_random(dtype, 4, q, 6);
    call.in[A] = optest_random(dtype, s->channels ? 4 : 3, gate, 7);
    call.in[B] = optest_random(dtype, 3, v, 8);
    call.in[INDEX] = optest_zeros(TN_I32, 2, v);
    for (int64_t i = 0; i < tn_tensor_count(&call.in[A]); i++)
        optest_set(&call.in[A], i, optest_at(&call.in[A], i) + s->more);
    for (int64_t i = 0; i < s->rows * s->tokens; i++) {
        int64_t row = i / s->tokens, t = i % s->tokens;
        optest_set(&call.in[INDEX], i, s->padding && (t < 3 * row || t % 11 == 7) ? -1 : (double)t);
    }
    call.out[0] = optest_zeros(dtype, 4, v);
    call.out[1] = optest_zeros(TN_F32, 4, state);
    return call;
}

/* ---- the truth: one value head of one row ------------------------------------------------------------------ */

typedef struct truth {
    const tn_call *call;
    tn_dtype rounds;                       /* what beta is rounded to                                */
    double m[MOST_DIM][MOST_DIM];          /* state                                                  */
    double o[MOST_TOKENS][MOST_DIM], peak; /* largest element of any state                          */
} truth;

static double rounded(double x, tn_dtype dtype)
{
    return dtype == TN_BF16  ? (double)tn_bf16_to_f32(tn_f32_to_bf16((float)x))
           : dtype == TN_F16 ? (double)tn_f16_to_f32(tn_f32_to_f16((float)x))
                             : x;
}

static void load(const tn_tensor *t, int64_t from, int64_t n, bool norm, double *to)
{
    double sum = 1e-6;
    for (int64_t i = 0; i < n; i++) {
        to[i] = optest_at(t, from + i);
        sum += to[i] * to[i];
    }
    for (int64_t i = 0; norm && i < n; i++)
        to[i] /= sqrt(sum);
}

static void step(truth *t, const double *q, const double *k, const double *v, const double *g, double beta, double *o)
{
    int64_t dk = t->call->in[K].shape[3], dv = t->call->in[V].shape[3];
    for (int64_t j = 0; j < dv; j++) {
        double held = 0;
        for (int64_t i = 0; i < dk; i++)
            held += (t->m[i][j] *= exp(g[i])) * k[i];
        o[j] = 0;
        for (int64_t i = 0; i < dk; i++) {
            t->m[i][j] += k[i] * beta * (v[j] - held);
            o[j] += t->m[i][j] * q[i] / sqrt((double)dk);
            t->peak = fabs(t->m[i][j]) > t->peak ? fabs(t->m[i][j]) : t->peak;
        }
        t->peak = fabs(v[j]) > t->peak ? fabs(v[j]) : t->peak;
    }
}

static void compute(truth *t, int64_t row, int64_t head)
{
    const tn_call *c = t->call;
    int64_t tokens = c->in[V].shape[1], heads = c->in[V].shape[2], dv = c->in[V].shape[3];
    int64_t qk_heads = c->in[K].shape[2], dk = c->in[K].shape[3];
    double rate = exp(optest_at(c->site->param[TN_ROLE_DECAY].tensors, head));
    bool channels = c->site->features & TN_HAS_CHANNEL_DECAY;
    t->peak = 0;
    for (int64_t i = 0; i < dk * dv; i++) {
        double m = t->m[i / dv][i % dv] = optest_at(&c->in[STATE], (row * heads + head) * dk * dv + i);
        t->peak = fabs(m) > t->peak ? fabs(m) : t->peak;
    }
    for (int64_t token = 0; token < tokens; token++) {
        double q[MOST_DIM], k[MOST_DIM], v[MOST_DIM];
        int64_t at = row * tokens + token, qk = (at * qk_heads + head / (heads / qk_heads)) * dk;
        memset(t->o[token], 0, sizeof t->o[token]);
        if (optest_at(&c->in[INDEX], at) < 0)
            continue;
        load(&c->in[Q], qk, dk, true, q);
        load(&c->in[K], qk, dk, true, k);
        load(&c->in[V], (at * heads + head) * dv, dv, false, v);
        double g[MOST_DIM];
        for (int64_t i = 0; i < dk; i++) {
            int64_t in_a = channels ? (at * heads + head) * dk + i : at * heads + head;
            double bias = optest_at(c->site->param[TN_ROLE_BIAS].tensors, channels ? head * dk + i : head);
            g[i] = -rate * log1p(exp(optest_at(&c->in[A], in_a) + bias));
        }
        double beta = rounded(1 / (1 + exp(-optest_at(&c->in[B], at * heads + head))), t->rounds);
        step(t, q, k, v, g, beta, t->o[token]);
    }
}

/* Everything is a sum of dk products with elements of a state, or of up to 64 that were written in the chunk, each off
 * by a few units of the largest element; what is kept of an earlier error shrinks. */
static double bound(const truth *t)
{
    return 0x1p-24 * 4 * (double)(t->call->in[K].shape[3] + 64) * t->peak;
}

static void expect_right(const tn_call *call)
{
    static truth t;
    int64_t tokens = call->in[V].shape[1], heads = call->in[V].shape[2], dv = call->in[V].shape[3];
    int64_t state = call->in[STATE].shape[2] * dv;
    tn_dtype dtype = call->out[0].dtype;
    double unit = optest_epsilon(dtype);
    t.call = call;
    t.rounds = dtype;
    for (int64_t i = 0; i < call->in[V].shape[0] * heads; i++) {
        int64_t row = i / heads, head = i % heads;
        compute(&t, row, head);
        for (int64_t j = 0; j < tokens * dv; j++) {
            int64_t token = j / dv;
            double want = t.o[token][j % dv];
            double got = optest_at(&call->out[0], ((row * tokens + token) * heads + head) * dv + j % dv);
            ck_assert_msg(fabs(got - want) <= bound(&t) + unit * fabs(want) + 0x1p-25,
                          "row %lld, token %lld, head %lld, element %lld is %.9g, expected %.9g", (long long)row,
                          (long long)token, (long long)head, (long long)(j % dv), got, want);
        }
        for (int64_t j = 0; j < state; j++)
            ck_assert_double_le(fabs(optest_at(&call->out[1], i * state + j) - t.m[j / dv][j % dv]), bound(&t));
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

/* Tokens first .. of all tensors that have them. */
static tn_call part_of(const tn_call *call, int64_t first, int64_t count)
{
    tn_call part = *call;
    static const int with_tokens[] = {V, Q, K, A, B, INDEX};
    for (size_t i = 0; i < sizeof with_tokens / sizeof *with_tokens; i++) {
        tn_tensor *t = &part.in[with_tokens[i]];
        t->shape[1] = count;
        t->data = (char *)t->data + first * t->stride[1] * (int64_t)tn_dtype_size(t->dtype);
    }
    part.out[0].shape[1] = count;
    part.out[0].data =
        (char *)part.out[0].data + first * part.out[0].stride[1] * (int64_t)tn_dtype_size(part.out[0].dtype);
    return part;
}

/* One call, calls of some tokens and calls of one, o in the place of v and the state in its own. */
START_TEST(split_and_in_place)
{
    static const int64_t steps[] = {1, 7, 20, 65, 1000};
    const shape *s = &shapes[_i < 5 ? 3 : SHAPES - 1];
    tn_call call = make_call(TN_F32, s);
    tn_call in_place = call;
    in_place.in[V] = in_place.out[0] = optest_from(TN_F32, &call.in[V]);
    in_place.in[STATE] = in_place.out[1] = optest_from(TN_F32, &call.in[STATE]);
    for (int64_t first = 0; first < s->tokens; first += steps[_i % 5]) {
        tn_call part = part_of(&in_place, first, s->tokens - first < steps[_i % 5] ? s->tokens - first : steps[_i % 5]);
        optest_run(&part);
    }
    in_place.in[V] = call.in[V];
    in_place.in[STATE] = call.in[STATE];
    expect_right(&in_place);
}
END_TEST

/* What overflows in f32 is forgotten. */
START_TEST(far_gates_forget_everything)
{
    tn_call call = make_call(TN_F32, &shapes[5]);
    for (int64_t i = 0; i < tn_tensor_count(&call.in[A]); i++)
        optest_set(&call.in[A], i, 1e38);
    optest_set((tn_tensor *)(uintptr_t)call.site->param[TN_ROLE_DECAY].tensors, 0, 50);
    optest_run(&call);
    for (int64_t i = 0; i < tn_tensor_count(&call.out[0]); i++)
        ck_assert(isfinite(optest_at(&call.out[0], i)));
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
    int64_t tokens = c->in[V].shape[1], heads = c->in[V].shape[2], dv = c->in[V].shape[3];
    int64_t state = c->in[STATE].shape[2] * dv;
    double kept = optest_at(m->what, m->at), sum = 0;
    optest_set((tn_tensor *)(uintptr_t)m->what, m->at, value);
    t.call = c;
    t.rounds = TN_F32;
    for (int64_t i = 0; i < c->in[V].shape[0] * heads; i++) {
        int64_t row = i / heads, head = i % heads;
        compute(&t, row, head);
        for (int64_t j = 0; j < tokens * dv; j++)
            sum += t.o[j / dv][j % dv] *
                   optest_at(&c->grads->out[0], ((row * tokens + j / dv) * heads + head) * dv + j % dv);
        for (int64_t j = 0; j < state; j++)
            sum += t.m[j / dv][j % dv] * optest_at(&c->grads->out[1], i * state + j);
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

START_TEST(gradients)
{
    static const char *const names[] = {"dv", "dstate", "dq", "dk", "da", "db"};
    tn_call call = make_call(TN_F32, &shapes[_i]);
    tn_grads *grads = optest_grads(&call, 9);
    optest_backward_threads(&call);
    for (int i = 0; i < INDEX; i++)
        expect_gradient(&call, &call.in[i], &grads->in[i], names[i]);
    expect_gradient(&call, call.site->param[TN_ROLE_DECAY].tensors, grads->param[TN_ROLE_DECAY].tensors, "drate");
    expect_gradient(&call, call.site->param[TN_ROLE_BIAS].tensors, grads->param[TN_ROLE_BIAS].tensors, "dbias");
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("gated delta rule", 120);
    tcase_add_loop_test(tc, every_element, 0, SHAPES * 3);
    tcase_add_loop_test(tc, split_and_in_place, 0, 10);
    suite_add(tc, far_gates_forget_everything);
    tcase_add_loop_test(tc, gradients, 0, SHAPES);
    return suite_run();
}
