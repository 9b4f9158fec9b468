/* Gradients of ATTENTION against differences of a forward in double precision, element by element, in all types. */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { BATCH = 2, HEADS_MAX = 4, KEYS_MAX = 300, D = 6, DV = 5 };

typedef struct attention_case {
    int64_t tokens, keys, heads, kv_heads, window;
    double softcap;
    bool sinks, holes; /* holes: slots that are not used, and a query before all keys                  */
    bool both_sides;
    bool slopes; /* ALiBi                                                                    */
    bool chosen; /* some keys are kept from some queries, the last query has none                 */
} attention_case;

static const attention_case cases[] = {
    {3, 5, 2, 2, 0, 0.0, false, false, false, false, false},  {4, 7, 4, 2, 0, 0.0, false, true, false, false, false},
    {5, 6, 4, 1, 3, 0.0, false, false, false, false, false},  {4, 6, 2, 1, 0, 2.0, false, true, false, false, false},
    {3, 5, 4, 2, 2, 0.0, true, true, false, false, false},    {4, 5, 4, 4, 0, 1.5, true, false, false, false, false},
    {1, 1, 1, 1, 0, 0.0, false, false, false, false, false},  {0, 4, 2, 1, 0, 0.0, true, false, false, false, false},
    {3, 0, 2, 1, 0, 0.0, true, false, false, false, false},   {140, 140, 1, 1, 0, 0.0, true, true, false, false, false},
    {2, 300, 1, 1, 0, 3.0, false, true, false, false, false}, {4, 7, 4, 2, 0, 0.0, false, true, false, true, false},
    {5, 6, 4, 1, 3, 1.5, true, false, false, true, false},    {5, 5, 2, 1, 0, 0.0, false, true, true, false, false},
    {6, 6, 4, 2, 3, 0.0, true, false, true, false, false},    {5, 9, 4, 2, 0, 0.0, true, true, false, false, true},
    {3, 280, 2, 1, 0, 0.0, false, false, false, false, true},
};

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static tn_call make_call(const attention_case *c, tn_dtype dtype)
{
    tn_call call = optest_call(TN_OP_ATTENTION, dtype, c->chosen ? 6 : 5, 1);
    tn_site *site = optest_site_of(&call);
    site->num[TN_NUM_SCALE] = 0.375; /* a number of every type                                       */
    site->dim[TN_DIM_WINDOW] = c->window;
    site->num[TN_NUM_SOFTCAP] = c->softcap;
    site->features = (c->window ? TN_HAS_WINDOW : 0) | (c->softcap != 0.0 ? TN_HAS_SOFTCAP : 0) |
                     (c->sinks ? TN_HAS_SINKS : 0) | (c->both_sides ? TN_HAS_BOTH_SIDES : 0) |
                     (c->slopes ? TN_HAS_ALIBI : 0) | (c->chosen ? TN_HAS_CHOSEN_KEYS : 0);
    site->num[TN_NUM_ALPHA] = 0.5;
    tn_tensor slopes = optest_zeros(TN_F32, 1, &c->heads);
    for (int64_t h = 0; h < c->heads; h++)
        optest_set(&slopes, h, 1.0 / (double)(1 << h));
    optest_param(site, TN_ROLE_DECAY, &slopes, c->slopes ? 1 : 0);
    tn_tensor sinks = optest_random(dtype, 1, &c->heads, 5);
    optest_param(site, TN_ROLE_SINKS, &sinks, c->sinks ? 1 : 0);
    call.in[0] = optest_transpose(optest_random(dtype, 4, (int64_t[]){BATCH, c->heads, c->tokens, D}, 1), 1, 2);
    call.in[1] = optest_random(dtype, 4, (int64_t[]){BATCH, c->keys, c->kv_heads, D}, 2);
    call.in[2] = optest_transpose(optest_random(dtype, 4, (int64_t[]){BATCH, c->kv_heads, c->keys, DV}, 3), 1, 2);
    call.out[0] = optest_zeros(dtype, 4, (int64_t[]){BATCH, c->tokens, c->heads, DV});
    call.in[3] = optest_zeros(TN_I32, 2, (int64_t[]){BATCH, c->tokens});
    call.in[4] = optest_zeros(TN_I32, 2, (int64_t[]){BATCH, c->keys});
    for (int64_t i = 0; i < BATCH * c->tokens; i++)
        optest_set(&call.in[3], i, (double)(c->keys - c->tokens + i % c->tokens));
    for (int64_t i = 0; i < BATCH * c->keys; i++)
        optest_set(&call.in[4], i, (double)(i % c->keys));
    if (c->chosen)
        call.in[5] = optest_zeros(TN_I32, 3, (int64_t[]){BATCH, c->tokens, c->keys});
    for (int64_t i = 0; c->chosen && i < BATCH * c->tokens * c->keys; i++)
        optest_set(&call.in[5], i, i / c->keys % c->tokens != c->tokens - 1 && i % 3 != 1);
    if (c->holes) {
        optest_set(&call.in[3], 0, -1.0);
        for (int64_t b = 0; b < BATCH; b++) {
            optest_set(&call.in[4], b * c->keys + 1, -1.0);
            for (int64_t i = 0; i < c->kv_heads * D; i++) /* whatever lies there                      */
                optest_set(&call.in[1], (b * c->keys + 1) * c->kv_heads * D + i, (double)NAN);
        }
    }
    optest_grads(&call, 6);
    ((tn_grads *)(uintptr_t)call.grads)->param[TN_ROLE_DECAY].count = 0; /* slopes are constants     */
    return call;
}

/* ---- forward in double -------------------------------------------------------------------------- */

/* One query head. */
typedef struct truth {
    const attention_case *c;
    int64_t position, index[KEYS_MAX];
    double q[D], k[KEYS_MAX][D], v[KEYS_MAX][DV], g[DV], sink, slope;
    double p[KEYS_MAX], dropped, largest; /* out: probabilities, the sink's, the largest |score|       */
    double *moving;
} truth;

static bool sees(const truth *t, int64_t s)
{
    int64_t kv = t->index[s];
    int64_t apart = t->c->both_sides && kv > t->position ? kv - t->position : t->position - kv;
    return kv >= 0 && t->position >= 0 && apart >= 0 && (!t->c->window || apart < t->c->window);
}

static void probabilities(truth *t)
{
    double sum = 0.0;
    t->largest = t->c->sinks ? fabs(t->sink) : 0.0;
    for (int64_t s = 0; s < t->c->keys; s++) {
        double score = 0.0;
        t->p[s] = 0.0;
        if (!sees(t, s))
            continue;
        for (int i = 0; i < D; i++)
            score += t->q[i] * t->k[s][i] * 0.375;
        if (t->c->softcap != 0.0)
            score = t->c->softcap * tanh(score / t->c->softcap);
        score += t->slope * (double)t->index[s];
        t->largest = fmax(t->largest, fabs(score));
        sum += t->p[s] = exp(score);
    }
    t->dropped = t->c->sinks && sum > 0.0 ? exp(t->sink) : 0.0;
    sum += t->dropped;
    for (int64_t s = 0; s < t->c->keys && sum > 0.0; s++)
        t->p[s] /= sum;
    t->dropped = sum > 0.0 ? t->dropped / sum : 0.0;
}

/* sum g o, with *moving = value. */
static double loss(void *ctx, double value)
{
    truth *t = ctx;
    double kept = *t->moving, sum = 0.0;
    *t->moving = value;
    probabilities(t);
    for (int64_t s = 0; s < t->c->keys; s++)
        for (int i = 0; t->p[s] > 0.0 && i < DV; i++)
            sum += t->g[i] * t->p[s] * t->v[s][i];
    *t->moving = kept;
    return sum;
}

static double derivative(truth *t, double *by)
{
    t->moving = by;
    return optest_derivative(loss, t, *by, 1e-3);
}

static int64_t at4(const tn_tensor *t, int64_t b, int64_t i, int64_t head)
{
    return ((b * t->shape[1] + i) * t->shape[2] + head) * t->shape[3];
}

static void load(const tn_call *call, const attention_case *c, int64_t b, int64_t token, int64_t head, truth *t)
{
    int64_t kv_head = head / (c->heads / c->kv_heads);
    t->c = c;
    t->position = (int64_t)optest_at(&call->in[3], b * c->tokens + token);
    t->sink = c->sinks ? optest_at(call->site->param[TN_ROLE_SINKS].tensors, head) : 0.0;
    t->slope = c->slopes ? 0.5 * optest_at(call->site->param[TN_ROLE_DECAY].tensors, head) : 0.0;
    for (int64_t i = 0; i < D; i++)
        t->q[i] = optest_at(&call->in[0], at4(&call->in[0], b, token, head) + i);
    for (int64_t i = 0; i < DV; i++)
        t->g[i] = optest_at(&call->grads->out[0], at4(&call->grads->out[0], b, token, head) + i);
    for (int64_t s = 0; s < c->keys; s++) {
        bool kept = !c->chosen || optest_at(&call->in[5], (b * c->tokens + token) * c->keys + s) != 0.0;
        t->index[s] = kept ? (int64_t)optest_at(&call->in[4], b * c->keys + s) : -1;
        for (int64_t i = 0; i < D; i++)
            t->k[s][i] = optest_at(&call->in[1], at4(&call->in[1], b, s, kv_head) + i);
        for (int64_t i = 0; i < DV; i++)
            t->v[s][i] = optest_at(&call->in[2], at4(&call->in[2], b, s, kv_head) + i);
    }
}

/* ---- comparing ------------------------------------------------------------------------------------- */

/* Expected gradients and how far from them eager's may be. */
typedef struct expected {
    double dk[HEADS_MAX][KEYS_MAX][D], dv[HEADS_MAX][KEYS_MAX][DV], dsink[HEADS_MAX];
    double dk_bound[HEADS_MAX][KEYS_MAX][D], dv_bound[HEADS_MAX][KEYS_MAX][DV], dsink_bound[HEADS_MAX];
} expected;

static void close_to(const tn_tensor *t, int64_t at, double want, double bound, const char *what)
{
    bound += 1e-9 + (t->dtype == TN_F16 ? 0x1p-22 : 0.0) + fabs(want) * optest_epsilon(t->dtype);
    if (!(fabs(optest_at(t, at) - want) <= bound))
        ck_abort_msg("%s of %s, element %d: %.9g, expected %.9g within %.3g", what, tn_dtype_name(t->dtype), (int)at,
                     optest_at(t, at), want, bound);
}

/* Roundings of a score's gradient: product, scale, softcap's three (all of which an exponential turns from parts of the
 * score into parts of the probability), the probability, dP, dz, three of softcap again, scale; in f32 also sums of as
 * many terms as there are keys. */
static double score_error(const truth *t, tn_dtype dtype)
{
    double sums = (2.0 * (double)t->c->keys + 16.0) * 0x1p-24;
    return optest_epsilon(dtype) * (t->c->softcap != 0.0 ? 7.0 + 5.0 * t->largest : 4.0 + 2.0 * t->largest) + sums;
}

/* One query: its dq is compared; what it adds to the others is added to e. */
static void check_query(const tn_call *call, truth *t, int64_t b, int64_t token, int64_t head, expected *e)
{
    int64_t kv_head = head / (t->c->heads / t->c->kv_heads);
    static double dz[KEYS_MAX], p[KEYS_MAX];
    double inner = 0.0, dropped, size = score_error(t, call->in[0].dtype);
    t->moving = &t->sink;
    loss(t, t->sink);
    dropped = t->dropped;
    size = score_error(t, call->in[0].dtype);
    memcpy(p, t->p, sizeof p);
    for (int64_t s = 0; s < t->c->keys; s++) {
        dz[s] = 0.0;
        for (int i = 0; i < DV; i++)
            dz[s] += p[s] > 0.0 ? fabs(t->g[i] * t->v[s][i]) : 0.0;
        inner += p[s] * dz[s];
    }
    for (int64_t s = 0; s < t->c->keys; s++)
        dz[s] = size * p[s] * (dz[s] + inner) * 0.375;
    for (int i = 0; i < D; i++) {
        double bound = 0.0, dq = derivative(t, &t->q[i]);
        for (int64_t s = 0; s < t->c->keys; s++)
            bound += p[s] > 0.0 ? dz[s] * fabs(t->k[s][i]) : 0.0;
        close_to(&call->grads->in[0], at4(&call->grads->in[0], b, token, head) + i, dq, bound, "dq");
    }
    for (int64_t s = 0; s < t->c->keys; s++) {
        for (int i = 0; p[s] > 0.0 && i < D; i++) {
            e->dk[kv_head][s][i] += derivative(t, &t->k[s][i]);
            e->dk_bound[kv_head][s][i] += dz[s] * fabs(t->q[i]);
        }
        for (int i = 0; i < DV; i++) {
            e->dv[kv_head][s][i] += p[s] * t->g[i];
            e->dv_bound[kv_head][s][i] += size * p[s] * fabs(t->g[i]);
        }
    }
    e->dsink[head] += t->c->sinks ? derivative(t, &t->sink) : 0.0;
    e->dsink_bound[head] += size * dropped * inner;
}

static void check_call(const tn_call *call, const attention_case *c)
{
    static truth t;
    static expected e;
    memset(&e, 0, sizeof e);
    for (int64_t b = 0; b < BATCH; b++) {
        memset(e.dk, 0, sizeof e.dk);
        memset(e.dv, 0, sizeof e.dv);
        memset(e.dk_bound, 0, sizeof e.dk_bound);
        memset(e.dv_bound, 0, sizeof e.dv_bound);
        for (int64_t token = 0; token < c->tokens; token++)
            for (int64_t head = 0; head < c->heads; head++) {
                load(call, c, b, token, head, &t);
                check_query(call, &t, b, token, head, &e);
            }
        for (int64_t h = 0; h < c->kv_heads; h++)
            for (int64_t s = 0; s < c->keys; s++) {
                const tn_tensor *dk = &call->grads->in[1], *dv = &call->grads->in[2];
                for (int i = 0; i < D; i++)
                    close_to(dk, at4(dk, b, s, h) + i, e.dk[h][s][i], e.dk_bound[h][s][i], "dk");
                for (int i = 0; i < DV; i++)
                    close_to(dv, at4(dv, b, s, h) + i, e.dv[h][s][i], e.dv_bound[h][s][i], "dv");
            }
    }
    for (int64_t head = 0; c->sinks && head < c->heads; head++)
        close_to(call->grads->param[TN_ROLE_SINKS].tensors, head, e.dsink[head], e.dsink_bound[head], "dsink");
}

START_TEST(differences)
{
    const attention_case *c = &cases[_i];
    for (int d = 0; d < 3; d++) {
        tn_call call = make_call(c, dtypes[d]);
        optest_backward_threads(&call);
        check_call(&call, c);
    }
}
END_TEST

START_TEST(absent_tensors)
{
    tn_call call = make_call(&cases[4], TN_BF16);
    tn_grads *grads = NULL;
    const tn_grads *all = call.grads;
    optest_backward(&call);
    for (int left_out = 0; left_out < 4; left_out++) {
        grads = optest_grads(&call, 6);
        if (left_out < 3)
            grads->in[left_out].data = NULL;
        else
            grads->param[TN_ROLE_SINKS].count = 0;
        optest_backward(&call);
        for (int i = 0; i < 3; i++)
            if (grads->in[i].data)
                optest_close(&grads->in[i], &all->in[i], 0.0, 0.0, "left out");
    }
    grads->out[0].data = NULL;
    optest_backward(&call);
    for (int i = 0; i < 3; i++)
        optest_expect_zero(&grads->in[i]);
    call.in[1].dtype = TN_F32;
    ck_assert_int_eq(optest_try_backward(&call, NULL), TN_E_INTERNAL);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of attention", 240);
    tcase_add_loop_test(tc, differences, 0, (int)(sizeof cases / sizeof *cases));
    suite_add(tc, absent_tensors);
    return suite_run();
}
