/* GATED_DELTA_RULE against a loop over tokens in double. */
#include "check_kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char kernel[] = "cpu_delta_rule";

enum { V, STATE, Q, K, A, B, INDEX };

typedef struct shape {
    int64_t rows, tokens, k_heads, v_heads, dk, dv;
    bool padding, in_place;
    int64_t gap; /* elements between heads, and between rows of a state, that belong to nobody     */
    double more; /* added to a: how fast it forgets                                                */
} shape;

/* ---- the truth: one value head of one row ------------------------------------------------------------------------ */

typedef struct truth {
    const check_case *c;
    int64_t row, head, tokens, dk, dv;
    double *m;   /* [dk,dv]: the state                                                   */
    double *o;   /* [tokens,dv]                                                          */
    double peak; /* the largest element of any state or value                            */
} truth;

static double at(const tn_tensor *t, int64_t i, int64_t j, int64_t k, int64_t l)
{
    int64_t index[] = {i, j, k, l}, offset = 0;
    for (int32_t d = 0; d < t->ndim; d++)
        offset += index[d] * t->stride[d];
    return element_get(t, offset);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void load_unit(const tn_tensor *t, int64_t row, int64_t token, int64_t head, double factor, double *to)
{
    double sum = 1e-6;
    for (int64_t i = 0; i < t->shape[3]; i++) {
        to[i] = at(t, row, token, head, i);
        sum += to[i] * to[i];
    }
    for (int64_t i = 0; i < t->shape[3]; i++)
        to[i] *= factor / sqrt(sum);
}

static void meet(truth *t, double x)
{
    t->peak = fmax(t->peak, fabs(x));
}

static void take_token(truth *t, int64_t token, double *q, double *k)
{
    const tn_tensor *in = t->c->call.in;
    const tn_param *param = t->c->site.param;
    int64_t k_head = t->head / (in[V].shape[2] / in[K].shape[2]);
    load_unit(&in[Q], t->row, token, k_head, 1 / sqrt((double)t->dk), q);
    load_unit(&in[K], t->row, token, k_head, 1, k);
    double x = at(&in[A], t->row, token, t->head, 0) + element_get(param[TN_ROLE_BIAS].tensors, t->head);
    double rate = exp(element_get(param[TN_ROLE_DECAY].tensors, t->head));
    double decay = exp(-rate * (x > 30 ? x : log1p(exp(x))));
    double beta = round_to(in[V].dtype, sigmoid(at(&in[B], t->row, token, t->head, 0)));
    for (int64_t j = 0; j < t->dv; j++) {
        double seen = 0, v = at(&in[V], t->row, token, t->head, j), *o = &t->o[token * t->dv + j];
        for (int64_t i = 0; i < t->dk; i++)
            seen += (t->m[i * t->dv + j] *= decay) * k[i];
        for (int64_t i = 0; i < t->dk; i++) {
            t->m[i * t->dv + j] += k[i] * beta * (v - seen);
            *o += t->m[i * t->dv + j] * q[i];
            meet(t, t->m[i * t->dv + j]);
        }
        meet(t, v);
    }
}

static truth truth_of(check_case *c, int64_t row, int64_t head)
{
    const tn_tensor *in = c->call.in;
    truth t = {.c = c, .row = row, .head = head, .tokens = in[V].shape[1], .dk = in[K].shape[3], .dv = in[V].shape[3]};
    double *q = case_alloc(c, (size_t)(2 * t.dk) * sizeof *q);
    t.m = case_alloc(c, (size_t)(t.dk * t.dv) * sizeof *t.m);
    t.o = case_alloc(c, (size_t)(t.tokens * t.dv) * sizeof *t.o);
    for (int64_t i = 0; i < t.dk * t.dv; i++)
        meet(&t, t.m[i] = at(&in[STATE], row, head, i / t.dv, i % t.dv));
    for (int64_t token = 0; token < t.tokens; token++)
        if (at(&in[INDEX], row, token, 0, 0) >= 0)
            take_token(&t, token, q, q + t.dk);
    return t;
}

/* Every number is a sum of dk products with elements of a state, or of as many as a chunk has tokens with what these
 * wrote, each off by a few units of the largest element; what is kept of an earlier error shrinks, as keys are no
 * longer than 1. */
static double distance(const truth *t)
{
    return 0x1p-24 * 4 * (double)(t->dk + 64) * t->peak;
}

static void expect_results(check_case *c)
{
    const tn_tensor *o = &c->call.out[0];
    int64_t heads = o->shape[2], dv = o->shape[3], state = c->call.out[1].shape[2] * dv;
    case_want(c, 0);
    case_want(c, 1);
    for (int64_t i = 0; i < o->shape[0] * heads; i++) {
        truth t = truth_of(c, i / heads, i % heads);
        for (int64_t j = 0; j < t.tokens * dv; j++) {
            int64_t to = ((t.row * t.tokens + j / dv) * heads + t.head) * dv + j % dv;
            c->want[0][to] = t.o[j];
            c->bound[0][to] = distance(&t) + unit_roundoff(o->dtype) * fabs(t.o[j]) + smallest(o->dtype);
        }
        for (int64_t j = 0; j < state; j++) {
            c->want[1][i * state + j] = t.m[j];
            c->bound[1][i * state + j] = distance(&t);
        }
    }
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* Numbers whose sigmoid does not lie where rounding turns: one step of f32 is one of the narrow type there. */
static void fill_b(tn_tensor *b, random_state *r)
{
    for (int64_t i = 0, n = tn_tensor_count(b); i < n; i++) {
        double s;
        do {
            element_set(b, i, random_normal(r));
            s = sigmoid(element_get(b, i));
        } while (round_to(b->dtype, s * (1 - 0x1p-20)) != round_to(b->dtype, s * (1 + 0x1p-20)) && b->dtype != TN_F32);
    }
}

static void strides_of(const tn_tensor *t, int64_t gap, int64_t *stride)
{
    stride[3] = 1;
    stride[2] = t->shape[3] + gap;
    stride[1] = t->shape[2] * stride[2] + 3 * gap;
    stride[0] = t->shape[1] * stride[1] + gap;
}

static tn_tensor *add_in(check_case *c, tn_dtype dtype, const int64_t *dims, int64_t gap)
{
    tn_tensor like = tn_tensor_dense(NULL, dtype, 4, dims);
    int64_t stride[4];
    strides_of(&like, gap, stride);
    return case_in(c, dtype, 4, dims, gap ? stride : NULL);
}

static void add_out(check_case *c, int in)
{
    const tn_tensor *like = &c->call.in[in];
    case_out(c, like->dtype, 4, like->shape, like->stride);
}

static check_case open_case(tn_dtype dtype, const shape *s)
{
    check_case c;
    const int64_t v[] = {s->rows, s->tokens, s->v_heads, s->dv}, q[] = {s->rows, s->tokens, s->k_heads, s->dk};
    const int64_t state[] = {s->rows, s->v_heads, s->dk, s->dv},
                  wide[] = {s->tokens * (s->v_heads + s->gap), s->v_heads + s->gap, 1};
    case_init(&c, kernel, TN_OP_GATED_DELTA_RULE, dtype);
    c.site.dim[TN_DIM_HEAD] = s->dk;
    c.site.dim[TN_DIM_HEAD_V] = s->dv;
    c.site.dim[TN_DIM_Q_HEADS] = s->k_heads;
    c.site.dim[TN_DIM_KV_HEADS] = s->v_heads;
    c.max_tokens = s->rows * s->tokens > 0 ? s->rows * s->tokens : 1;
    case_param(&c, TN_ROLE_DECAY, 1, s->gap ? dtype : TN_F32, 1, &s->v_heads);
    case_param(&c, TN_ROLE_BIAS, 1, s->gap ? TN_F32 : dtype, 1, &s->v_heads);
    add_in(&c, dtype, v, s->gap);
    add_in(&c, TN_F32, state, s->gap);
    add_in(&c, dtype, q, s->gap);
    add_in(&c, dtype, q, 2 * s->gap);
    case_in(&c, dtype, 3, v, wide);
    case_in(&c, dtype, 3, v, NULL);
    case_in(&c, TN_I32, 2, v, NULL);
    add_out(&c, V);
    add_out(&c, STATE);
    for (int i = 0; i < 2; i++)
        c.alias[i] = c.grad_alias[i] = s->in_place ? i : -1;
    snprintf(c.what, sizeof c.what, "%lldx%lld tokens, %lld + %lld heads of %lld, %lld%s%s, gap %lld, gates %+g",
             (long long)s->rows, (long long)s->tokens, (long long)s->k_heads, (long long)s->v_heads, (long long)s->dk,
             (long long)s->dv, s->padding ? ", padding" : "", s->in_place ? ", in place" : "", (long long)s->gap,
             s->more);
    return c;
}

static void fill_case(check_case *c, const shape *s)
{
    random_state r = {(uint64_t)(s->tokens * 131 + s->dk * 7 + s->dv * 3 + s->v_heads)};
    for (int i = V; i < B; i++)
        fill_normal(&c->call.in[i], &r, i == A ? s->more : 0, 1);
    fill_b(&c->call.in[B], &r);
    fill_normal((tn_tensor *)(uintptr_t)c->site.param[TN_ROLE_DECAY].tensors, &r, 0, 1);
    fill_normal((tn_tensor *)(uintptr_t)c->site.param[TN_ROLE_BIAS].tensors, &r, 0, 1);
    for (int64_t i = 0; i < s->rows * s->tokens; i++) {
        int64_t row = i / s->tokens, t = i % s->tokens;
        element_set(&c->call.in[INDEX], i, s->padding && (row == 2 || t < 3 * row || t % 11 == 7) ? -1 : (double)t);
    }
}

/* Around one token, the few that go one by one, a chunk and several; sizes around vectors, tiles and panels; fewer
 * heads than threads; a row of padding alone; gates that forget nearly nothing, and nearly everything. */
static const shape shapes[] = {
    /* rows, tokens, key heads, value heads, dk, dv, padding, in place, gap, gates */
    {1, 0, 1, 2, 16, 16, false, false, 0, 0},      {1, 1, 1, 1, 16, 16, false, true, 0, 0},
    {1, 1, 2, 4, 128, 128, false, true, 0, 0},     {2, 1, 2, 4, 40, 72, false, false, 3, 0},
    {3, 5, 2, 4, 19, 33, true, false, 1, 0},       {1, 8, 1, 3, 8, 7, false, true, 0, -2},
    {3, 9, 2, 2, 24, 40, true, true, 2, 0},        {1, 63, 1, 2, 16, 15, false, false, 0, -4},
    {1, 64, 2, 4, 64, 64, false, true, 0, -3},     {2, 65, 1, 3, 33, 17, true, false, 5, 0},
    {1, 130, 1, 1, 128, 128, false, false, 0, -4}, {1, 200, 1, 2, 20, 100, true, true, 1, 3},
    {1, 70, 1, 1, 136, 24, false, false, 0, -8},   {1, 130, 3, 3, 12, 12, false, true, 0, 60},
};

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static void check(check_state *s)
{
    for (int d = 0; d < 3; d++) {
        group_begin(s, "delta_rule %s %s", tn_dtype_name(dtypes[d]), s->tier->name);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            check_case c = open_case(dtypes[d], &shapes[i]);
            fill_case(&c, &shapes[i]);
            expect_results(&c);
            check_run(s, &c);
        }
        group_end(s);
    }
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Qwen3-Next's heads. A token reads and writes the states; in a prompt every token has three products with a state:
 * what its key and its query see, and what it writes. */
static void bench(check_state *s)
{
    static const int64_t tokens[] = {1, 16, 128, 512};
    for (int d = 0; d < 3; d++)
        for (int t = 0; t < 4; t++) {
            const shape real = {1, tokens[t], 16, 32, 128, 128, false, true, 0, -3};
            double states = 4.0 * 32 * 128 * 128, size = (double)tn_dtype_size(dtypes[d]);
            double rows = size * (double)tokens[t] * 128, flops = 6.0 * 32 * 128 * 128 * (double)tokens[t];
            const bench_work forward = {states + rows * (32 + 2 * 16), states + rows * 32, flops};
            if (!bench_wanted(s, dtypes[d], flops, "delta_rule Qwen3-Next x%lld", (long long)tokens[t]))
                continue;
            check_case c = open_case(dtypes[d], &real);
            fill_case(&c, &real);
            c.alias[0] = -1; /* values that are results again and again fade away                       */
            bench_run(s, &c, forward, (bench_work){0});
        }
}

const check_test check_delta_rule = {
    .name = "delta_rule", .tiers = TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_NEON, .check = check, .bench = bench};
