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

/* What a token does. */
typedef struct step {
    bool real;
    double *q, *k, *found, *r; /* [dk], [dk], [dk,dv]: the state before it wrote, [dv]: v less what that held */
    double q_norm, k_norm;     /* what q and k were multiplied by                                      */
    double g, slope, beta;     /* slope: dg/da                                                         */
} step;

/* Largest lengths: of rows of states and values, of their gradients, of what is written and of its gradient, of
 * upstream gradients; of whole states and their gradients. */
typedef struct lengths {
    double m, g, d, e, up, state, gradient;
} lengths;

typedef struct truth {
    check_case *c;
    int64_t row, head, k_head, tokens, dk, dv;
    step *steps;
    double *m;          /* [dk,dv]: the state, then its gradient                                      */
    double *o;          /* [tokens,dv]                                                                */
    double *dq, *dkeys; /* [tokens,dk]: of what is normalised                                        */
    double peak;        /* the largest element of any state or value                                  */
    lengths most;
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

static void longest(double *most, const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    *most = fmax(*most, sqrt(sum));
}

static double load_unit(truth *t, const tn_tensor *from, int64_t token, double factor, double **to)
{
    double sum = 1e-6;
    *to = case_alloc(t->c, (size_t)t->dk * sizeof **to);
    for (int64_t i = 0; i < t->dk; i++) {
        (*to)[i] = at(from, t->row, token, t->k_head, i);
        sum += (*to)[i] * (*to)[i];
    }
    factor /= sqrt(sum);
    for (int64_t i = 0; i < t->dk; i++)
        (*to)[i] *= factor;
    return factor;
}

static void load_step(truth *t, int64_t token, step *s)
{
    const tn_tensor *in = t->c->call.in;
    const tn_param *param = t->c->site.param;
    s->real = at(&in[INDEX], t->row, token, 0, 0) >= 0;
    if (!s->real)
        return;
    s->q_norm = load_unit(t, &in[Q], token, 1 / sqrt((double)t->dk), &s->q);
    s->k_norm = load_unit(t, &in[K], token, 1, &s->k);
    s->found = case_alloc(t->c, (size_t)(t->dk * t->dv) * sizeof(double));
    s->r = case_alloc(t->c, (size_t)t->dv * sizeof(double));
    double x = at(&in[A], t->row, token, t->head, 0) + element_get(param[TN_ROLE_BIAS].tensors, t->head);
    double rate = exp(element_get(param[TN_ROLE_DECAY].tensors, t->head));
    s->g = -rate * (x > 30 ? x : log1p(exp(x)));
    s->slope = -rate * sigmoid(x);
    s->beta = round_to(in[V].dtype, sigmoid(at(&in[B], t->row, token, t->head, 0)));
}

static void take_token(truth *t, int64_t token)
{
    step *s = &t->steps[token];
    load_step(t, token, s);
    if (!s->real)
        return;
    for (int64_t i = 0; i < t->dk * t->dv; i++)
        s->found[i] = t->m[i] *= exp(s->g);
    for (int64_t j = 0; j < t->dv; j++) {
        double v = at(&t->c->call.in[V], t->row, token, t->head, j), *o = &t->o[token * t->dv + j];
        s->r[j] = v;
        for (int64_t i = 0; i < t->dk; i++)
            s->r[j] -= s->found[i * t->dv + j] * s->k[i];
        for (int64_t i = 0; i < t->dk; i++) {
            double *m = &t->m[i * t->dv + j];
            *m += s->k[i] * s->beta * s->r[j];
            *o += *m * s->q[i];
            t->peak = fmax(t->peak, fabs(*m));
        }
        t->peak = fmax(t->peak, fabs(v));
    }
    longest(&t->most.d, s->r, t->dv);
    longest(&t->most.state, s->found, t->dk * t->dv);
    for (int64_t i = 0; i < t->dk; i++)
        longest(&t->most.m, t->m + i * t->dv, t->dv);
}

static truth truth_of(check_case *c, int64_t row, int64_t head)
{
    const tn_tensor *in = c->call.in;
    truth t = {.c = c, .row = row, .head = head, .tokens = in[V].shape[1], .dk = in[K].shape[3], .dv = in[V].shape[3]};
    t.k_head = head / (in[V].shape[2] / in[K].shape[2]);
    t.steps = case_alloc(c, (size_t)t.tokens * sizeof *t.steps);
    t.m = case_alloc(c, (size_t)(t.dk * t.dv) * sizeof *t.m);
    t.o = case_alloc(c, (size_t)(t.tokens * t.dv) * sizeof *t.o);
    for (int64_t i = 0; i < t.dk * t.dv; i++) {
        t.m[i] = at(&in[STATE], row, head, i / t.dv, i % t.dv);
        t.peak = fmax(t.peak, fabs(t.m[i]));
    }
    for (int64_t token = 0; token < t.tokens; token++)
        take_token(&t, token);
    return t;
}

/* Every number is a sum of dk products with elements of a state, or of as many as a chunk has tokens with what these
 * wrote, each off by a few units of the largest element; what is kept of an earlier error shrinks, as keys are no
 * longer than 1. */
static double distance(const truth *t)
{
    return 0x1p-24 * 4 * (double)(t->dk + 64) * t->peak;
}

static void expect(double *want, double *bound, int64_t to, double value, double error, tn_dtype dtype)
{
    want[to] = value;
    bound[to] = error + unit_roundoff(dtype) * fabs(value) + smallest(dtype);
}

static void expect_results(check_case *c, const truth *t)
{
    const tn_tensor *o = &c->call.out[0];
    int64_t heads = o->shape[2], state = t->dk * t->dv;
    for (int64_t j = 0; j < t->tokens * t->dv; j++) {
        int64_t to = ((t->row * t->tokens + j / t->dv) * heads + t->head) * t->dv + j % t->dv;
        expect(c->want[0], c->bound[0], to, t->o[j], distance(t), o->dtype);
    }
    for (int64_t j = 0; j < state; j++)
        expect(c->want[1], c->bound[1], (t->row * heads + t->head) * state + j, t->m[j], distance(t), TN_F32);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Sums as those of forward, of dv elements as well; as many units of their longest operands. */
static double relative(const truth *t)
{
    return 0x1p-24 * 4 * (double)(t->dk + t->dv + 64);
}

/* Results of a token, before their bounds are known. */
typedef struct gradients {
    double *dv, *da, *db;
    double drate, dbias;
} gradients;

/* With D what the token found, r = v - D^T k, d = beta r and G the gradient of the state behind it:
 *     G += q up^T, dq = (D + k d^T) up, e = G^T k, dbeta = e r, dv = beta e, dk = G d - D dv, G -= k dv^T,
 *     dg = sum G D, G = e^g G. */
static void back_token(truth *t, int64_t token, double *up, gradients *to)
{
    const step *s = &t->steps[token];
    double *dq = t->dq + token * t->dk, *dkey = t->dkeys + token * t->dk, *dv = to->dv + token * t->dv, *g = t->m;
    double dg = 0, dbeta = 0, d_up = 0;
    for (int64_t j = 0; j < t->dv; j++) {
        d_up += s->beta * s->r[j] * up[j];
        for (int64_t i = 0; i < t->dk; i++) {
            g[i * t->dv + j] += s->q[i] * up[j];
            dv[j] += g[i * t->dv + j] * s->k[i];
            dq[i] += s->found[i * t->dv + j] * up[j];
        }
        dbeta += dv[j] * s->r[j];
    }
    longest(&t->most.e, dv, t->dv);
    longest(&t->most.up, up, t->dv);
    for (int64_t i = 0; i < t->dk; i++) {
        longest(&t->most.g, g + i * t->dv, t->dv);
        dq[i] += s->k[i] * d_up;
        for (int64_t j = 0; j < t->dv; j++)
            dkey[i] += s->beta * (g[i * t->dv + j] * s->r[j] - s->found[i * t->dv + j] * dv[j]);
    }
    longest(&t->most.gradient, g, t->dk * t->dv);
    for (int64_t j = 0; j < t->dv; j++)
        dv[j] *= s->beta;
    for (int64_t i = 0; i < t->dk * t->dv; i++) {
        g[i] -= s->k[i / t->dv] * dv[i % t->dv];
        dg += g[i] * s->found[i];
        g[i] *= exp(s->g);
    }
    to->da[token] = dg * s->slope;
    to->db[token] = dbeta * s->beta * (1 - s->beta);
    to->drate += dg * s->g;
    to->dbias += dg * s->slope;
}

static void go_back(truth *t, gradients *to)
{
    const tn_tensor *dnext = &t->c->grads.out[1], *dout = &t->c->grads.out[0];
    double *up = case_alloc(t->c, (size_t)t->dv * sizeof *up);
    to->dv = case_alloc(t->c, (size_t)(t->tokens * t->dv) * sizeof(double));
    to->da = case_alloc(t->c, (size_t)t->tokens * sizeof(double));
    to->db = case_alloc(t->c, (size_t)t->tokens * sizeof(double));
    for (int64_t i = 0; i < t->dk * t->dv; i++)
        t->m[i] = dnext->data ? at(dnext, t->row, t->head, i / t->dv, i % t->dv) : 0;
    for (int64_t token = t->tokens - 1; token >= 0; token--) {
        for (int64_t j = 0; j < t->dv; j++)
            up[j] = dout->data ? at(dout, t->row, token, t->head, j) : 0;
        if (t->steps[token].real)
            back_token(t, token, up, to);
    }
}

/* dg: as its terms are, and as those of all pairs of a chunk, one on either side of the token, are. */
static double distance_dg(const truth *t)
{
    const lengths *l = &t->most;
    return relative(t) * (l->gradient * l->state + 64 * 64 / 4 * (l->e + l->up) * l->d);
}

static void expect_head(check_case *c, const truth *t, const gradients *g)
{
    const lengths *l = &t->most;
    tn_dtype dtype = c->call.in[V].dtype;
    int64_t heads = c->call.in[V].shape[2], state = t->dk * t->dv;
    double of_state = relative(t) * fmax(l->g, fmax(l->e, l->up)), rate = 0, bias = 0;
    for (int64_t token = 0; token < t->tokens; token++) {
        const step *s = &t->steps[token];
        int64_t to = (t->row * t->tokens + token) * heads + t->head;
        double some = s->real ? 1 : 0, of_dg = some * distance_dg(t);
        for (int64_t j = 0; j < t->dv; j++)
            expect(c->want_in[V], c->bound_in[V], to * t->dv + j, g->dv[token * t->dv + j], some * of_state, dtype);
        expect(c->want_in[A], c->bound_in[A], to, g->da[token], fabs(s->slope) * of_dg, dtype);
        expect(c->want_in[B], c->bound_in[B], to, g->db[token], some * relative(t) * l->e * l->d, dtype);
        rate += fabs(s->g) * of_dg;
        bias += fabs(s->slope) * of_dg;
    }
    for (int64_t j = 0; j < state; j++)
        expect(c->want_in[STATE], c->bound_in[STATE], (t->row * heads + t->head) * state + j, t->m[j], of_state,
               TN_F32);
    double *drate = &c->want_param[TN_ROLE_DECAY][t->head], *dbias = &c->want_param[TN_ROLE_BIAS][t->head];
    double *of_rate = &c->bound_param[TN_ROLE_DECAY][t->head], *of_bias = &c->bound_param[TN_ROLE_BIAS][t->head];
    *drate += g->drate;
    *dbias += g->dbias;
    *of_rate += rate;
    *of_bias += bias;
}

/* dx of x where y = s x / |x|; y is given, and x is y / factor. */
static void expect_row(check_case *c, int in, int64_t to, int64_t n, const double *y, double factor, double s,
                       const double *dy, double error)
{
    double along = 0;
    for (int64_t i = 0; i < n; i++)
        along += y[i] * dy[i] / (s * s);
    for (int64_t i = 0; i < n; i++)
        expect(c->want_in[in], c->bound_in[in], to + i, factor * (dy[i] - along * y[i]), 2 * factor * error,
               c->call.in[in].dtype);
}

/* Gradients of a query and of a key are sums over the value heads of a group. */
static void expect_key_head(check_case *c, int64_t row, const truth *heads, int64_t group)
{
    const truth *t = heads;
    double of_q = 0, of_k = 0;
    for (int64_t h = 0; h < group; h++) {
        const lengths *l = &heads[h].most;
        of_q += relative(t) * (l->m + l->d) * l->up;
        of_k += relative(t) * (l->g * l->d + (l->m + l->d) * (l->e + l->up));
    }
    for (int64_t token = 0; token < t->tokens; token++) {
        const step *s = &t->steps[token];
        int64_t to = ((row * t->tokens + token) * c->call.in[K].shape[2] + t->k_head) * t->dk;
        if (!s->real)
            continue;
        expect_row(c, Q, to, t->dk, s->q, s->q_norm, 1 / sqrt((double)t->dk), t->dq + token * t->dk, of_q);
        expect_row(c, K, to, t->dk, s->k, s->k_norm, 1, t->dkeys + token * t->dk, of_k);
    }
}

/* ---- what is expected of a case ---------------------------------------------------------------------------------- */

static void open_wants(check_case *c)
{
    for (int i = 0; i < 2; i++)
        case_want(c, i);
    for (int i = 0; i < INDEX; i++)
        case_want_in(c, i);
    case_want_param(c, TN_ROLE_DECAY);
    case_want_param(c, TN_ROLE_BIAS);
}

static void expect_all(check_case *c)
{
    int64_t rows = c->call.in[V].shape[0], heads = c->call.in[V].shape[2], k_heads = c->call.in[K].shape[2];
    int64_t group = heads / k_heads, tokens = c->call.in[V].shape[1], dk = c->call.in[K].shape[3];
    truth *t = case_alloc(c, (size_t)group * sizeof *t);
    open_wants(c);
    for (int64_t i = 0; i < rows * k_heads; i++) {
        double *dq = case_alloc(c, (size_t)(2 * tokens * dk) * sizeof *dq);
        for (int64_t h = 0; h < group; h++) {
            gradients g = {0};
            t[h] = truth_of(c, i / k_heads, i % k_heads * group + h);
            t[h].dq = dq;
            t[h].dkeys = dq + tokens * dk;
            expect_results(c, &t[h]);
            go_back(&t[h], &g);
            expect_head(c, &t[h], &g);
        }
        expect_key_head(c, i / k_heads, t, group);
    }
    static const tn_role roles[] = {TN_ROLE_DECAY, TN_ROLE_BIAS};
    for (int r = 0; r < 2; r++)
        for (int64_t head = 0; head < heads; head++) {
            double *want = c->want_param[roles[r]], *bound = c->bound_param[roles[r]];
            expect(want, bound, head, want[head], bound[head], c->site.param[roles[r]].tensors->dtype);
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

/* without: 0, or which upstream gradient is absent (1, 2), or that only those of keys and gates are wanted (3). */
static void check_shape(check_state *s, tn_dtype dtype, const shape *sh, int without)
{
    if (check_pass_over(s))
        return;
    check_case c = open_case(dtype, sh);
    random_state r = {(uint64_t)sh->dk};
    fill_case(&c, sh);
    case_grads(&c, &r);
    if (without == 1 || without == 2)
        c.grads.out[without - 1].data = NULL;
    expect_all(&c);
    for (int i = V; without == 3 && i < K; i++)
        c.grads.in[i].data = NULL;
    if (without == 3)
        c.grads.param[TN_ROLE_BIAS].count = 0;
    check_run(s, &c);
}

static void check(check_state *s)
{
    const shape plain = {2, 70, 2, 4, 16, 24, true, false, 1, -2};
    for (int d = 0; d < CHECK_DTYPES; d++) {
        group_begin(s, "delta_rule %s %s", tn_dtype_name(check_dtypes[d]), s->tier->name);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_shape(s, check_dtypes[d], &shapes[i], 0);
        for (int without = 1; without < 4; without++)
            check_shape(s, check_dtypes[d], &plain, without);
        group_end(s);
    }
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Qwen3-Next's heads. A token reads and writes the states; in a prompt every token has three products with a state:
 * what its key and its query see, and what it writes. */
static void bench(check_state *s)
{
    static const int64_t tokens[] = {1, 16, 128, 512};
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (int t = 0; t < 4; t++) {
            const shape real = {1, tokens[t], 16, 32, 128, 128, false, true, 0, -3};
            double states = 4.0 * 32 * 128 * 128, size = (double)tn_dtype_size(check_dtypes[d]);
            double rows = size * (double)tokens[t] * 128, flops = 6.0 * 32 * 128 * 128 * (double)tokens[t];
            const bench_work forward = {states + rows * (32 + 2 * 16), states + rows * 32, flops};
            if (!bench_wanted(s, check_dtypes[d], flops, "delta_rule Qwen3-Next x%lld", (long long)tokens[t]))
                continue;
            check_case c = open_case(check_dtypes[d], &real);
            fill_case(&c, &real);
            c.alias[0] = c.grad_alias[0] = c.grad_alias[1] = -1; /* what is made of itself fades away */
            random_state r = {1};
            case_grads(&c, &r);
            const bench_work backward = {2 * forward.read + rows * 32, forward.read, 3 * flops};
            bench_run(s, &c, forward, backward);
        }
}

const check_test check_delta_rule = {
    .name = "delta_rule", .tiers = TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_NEON, .check = check, .bench = bench};
