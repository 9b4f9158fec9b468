/* SELECTIVE_SCAN against a loop over tokens in double. */
#include "check_kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char kernel[] = "cpu_selective_scan";

enum { X, STATE, B, C, DT, INDEX };

typedef struct shape {
    int64_t rows, tokens, groups, heads, n, p;
    bool padding, in_place, limits;
    int64_t gap; /* elements between heads, and between rows of a state, that belong to nobody     */
    double more; /* added to dt: how fast it forgets                                               */
} shape;

static double at(const tn_tensor *t, int64_t i, int64_t j, int64_t k, int64_t l)
{
    int64_t index[] = {i, j, k, l}, offset = 0;
    for (int32_t d = 0; d < t->ndim; d++)
        offset += index[d] * t->stride[d];
    return element_get(t, offset);
}

static double param(const check_case *c, tn_role role, int64_t head)
{
    return element_get(c->site.param[role].tensors, head);
}

static void expect(double *want, double *bound, int64_t to, double value, double error, tn_dtype dtype)
{
    want[to] = value;
    bound[to] = error + unit_roundoff(dtype) * fabs(value) + smallest(dtype);
}

/* The step of a token: what rounding makes of it is the same in f32 and in double but at the edge, which no drawn
 * number lies at (fill_dt). */
static double step_of(const check_case *c, int64_t row, int64_t token, int64_t head)
{
    tn_dtype dtype = c->call.in[X].dtype;
    double raw = round_to(dtype, at(&c->call.in[DT], row, token, head, 0) + param(c, TN_ROLE_BIAS, head));
    double s = round_to(dtype, raw > 30 ? raw : log1p(exp(raw)));
    if (c->site.features & TN_HAS_STEP_LIMITS)
        s = fmin(fmax(s, c->site.num[TN_NUM_LEAST]), c->site.num[TN_NUM_LIMIT]);
    return s;
}

/* With size the same recurrence of absolute values: what an element of the state is made of, so many units of which it
 * is off. Each token adds the roundings of its own, and of its exponential, whose argument is off by a unit. */
static void expect_head(check_case *c, int64_t row, int64_t head)
{
    const tn_tensor *in = c->call.in;
    int64_t tokens = in[X].shape[1], heads = in[X].shape[2], n = in[B].shape[3], p = in[X].shape[3];
    int64_t group = head / (heads / in[B].shape[2]);
    double rate = -exp(param(c, TN_ROLE_DECAY, head)), skip = param(c, TN_ROLE_WEIGHT, head);
    double *m = case_alloc(c, (size_t)(n * p) * sizeof *m), *error = case_alloc(c, (size_t)(n * p) * sizeof *error);
    const double unit = 0x1p-24;
    for (int64_t i = 0; i < n * p; i++)
        m[i] = at(&in[STATE], row, head, i / p, i % p);
    for (int64_t token = 0; token < tokens; token++) {
        bool real = at(&in[INDEX], row, token, 0, 0) >= 0;
        double s = real ? step_of(c, row, token, head) : 0, keep = exp(rate * s);
        for (int64_t j = 0; j < p; j++) {
            double x = at(&in[X], row, token, head, j), y = skip * x, off = 2 * unit * fabs(y);
            for (int64_t i = 0; real && i < n; i++) {
                double *e = &m[i * p + j], *o = &error[i * p + j], b = at(&in[B], row, token, group, i),
                       add = b * s * x;
                double read = at(&in[C], row, token, group, i);
                *o = keep * (*o + fabs(*e) * unit * (8 + 4 * fabs(rate * s))) + 8 * unit * fabs(add);
                *e = keep * *e + add;
                *o += unit * fabs(*e);
                y += read * *e;
                off += fabs(read) * (*o + (double)(n + 2) * unit * fabs(*e));
            }
            int64_t to = ((row * tokens + token) * heads + head) * p + j;
            expect(c->want[0], c->bound[0], to, real ? y : 0, real ? off : 0, c->call.out[0].dtype);
        }
    }
    for (int64_t i = 0; i < n * p; i++)
        expect(c->want[1], c->bound[1], (row * heads + head) * n * p + i, m[i], error[i], TN_F32);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* Numbers whose step does not lie where rounding turns: one step of f32 is one of the narrow type there. */
static void fill_dt(check_case *c, double more, random_state *r)
{
    tn_tensor *dt = &c->call.in[DT];
    int64_t rows = dt->shape[0], tokens = dt->shape[1], heads = dt->shape[2];
    for (int64_t i = 0; i < rows * tokens * heads; i++) {
        int64_t to = i / heads / tokens * dt->stride[0] + i / heads % tokens * dt->stride[1] + i % heads;
        double s, raw;
        do {
            element_set(dt, to, random_normal(r) + more);
            raw = round_to(dt->dtype, element_get(dt, to) + param(c, TN_ROLE_BIAS, i % heads));
            s = log1p(exp(raw));
        } while (dt->dtype != TN_F32 &&
                 round_to(dt->dtype, s * (1 - 0x1p-20)) != round_to(dt->dtype, s * (1 + 0x1p-20)));
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

static void add_out(check_case *c, tn_dtype dtype, int in)
{
    const tn_tensor *like = &c->call.in[in];
    case_out(c, dtype, 4, like->shape, like->stride);
}

/* wide: with y in f32. */
static check_case open_case(tn_dtype dtype, const shape *s, bool wide)
{
    static const tn_role roles[] = {TN_ROLE_DECAY, TN_ROLE_BIAS, TN_ROLE_WEIGHT};
    check_case c;
    const int64_t x[] = {s->rows, s->tokens, s->heads, s->p}, b[] = {s->rows, s->tokens, s->groups, s->n};
    const int64_t state[] = {s->rows, s->heads, s->n, s->p},
                  apart[] = {s->tokens * (s->heads + s->gap), s->heads + s->gap, 1};
    case_init(&c, kernel, TN_OP_SELECTIVE_SCAN, dtype);
    c.site.dim[TN_DIM_HEAD] = s->n;
    c.site.dim[TN_DIM_HEAD_V] = s->p;
    c.site.dim[TN_DIM_Q_HEADS] = s->groups;
    c.site.dim[TN_DIM_KV_HEADS] = s->heads;
    c.site.features = (s->limits ? TN_HAS_STEP_LIMITS : 0) | (wide ? TN_HAS_F32_RESULT : 0);
    c.site.num[TN_NUM_LEAST] = s->limits ? 0.5 : 0;
    c.site.num[TN_NUM_LIMIT] = s->limits ? 1 : 0;
    c.max_tokens = s->rows * s->tokens > 0 ? s->rows * s->tokens : 1;
    for (int i = 0; i < 3; i++)
        case_param(&c, roles[i], 1, i == (s->gap ? 0 : 1) ? TN_F32 : dtype, 1, &s->heads);
    add_in(&c, dtype, x, s->gap);
    add_in(&c, TN_F32, state, s->gap);
    add_in(&c, dtype, b, s->gap);
    add_in(&c, dtype, b, 2 * s->gap);
    case_in(&c, dtype, 3, x, apart);
    case_in(&c, TN_I32, 2, x, NULL);
    add_out(&c, wide ? TN_F32 : dtype, X);
    add_out(&c, TN_F32, STATE);
    for (int i = 0; i < 2; i++)
        c.alias[i] = s->in_place && c.call.out[i].dtype == c.call.in[i].dtype ? i : -1;
    snprintf(c.what, sizeof c.what, "%lldx%lld tokens, %lld groups, %lld heads of %lld, %lld%s%s%s%s, gap %lld, dt %+g",
             (long long)s->rows, (long long)s->tokens, (long long)s->groups, (long long)s->heads, (long long)s->n,
             (long long)s->p, s->padding ? ", padding" : "", s->in_place ? ", in place" : "",
             s->limits ? ", limits" : "", wide ? ", y f32" : "", (long long)s->gap, s->more);
    return c;
}

static void fill_case(check_case *c, const shape *s)
{
    static const tn_role roles[] = {TN_ROLE_DECAY, TN_ROLE_BIAS, TN_ROLE_WEIGHT};
    random_state r = {(uint64_t)(s->tokens * 131 + s->n * 7 + s->p * 3 + s->heads)};
    for (int i = X; i < DT; i++)
        fill_normal(&c->call.in[i], &r, 0, 1);
    for (int i = 0; i < 3; i++)
        fill_normal((tn_tensor *)(uintptr_t)c->site.param[roles[i]].tensors, &r, 0, 1);
    fill_dt(c, s->more, &r);
    for (int64_t i = 0; i < s->rows * s->tokens; i++) {
        int64_t row = i / s->tokens, t = i % s->tokens;
        element_set(&c->call.in[INDEX], i, s->padding && (row == 2 || t < 3 * row || t % 11 == 7) ? -1 : (double)t);
    }
}

/* Around one token, a piece and several; sizes around vectors and tiles; a row of padding alone; steps that forget
 * nearly nothing, and nearly everything. */
static const shape shapes[] = {
    /* rows, tokens, groups, heads, n, p, padding, in place, limits, gap, more */
    {1, 0, 1, 2, 16, 16, false, false, false, 0, 0},    {1, 1, 1, 1, 16, 16, false, true, false, 0, 0},
    {1, 1, 2, 4, 128, 64, false, true, false, 0, 0},    {2, 1, 2, 4, 40, 72, false, false, true, 3, 0},
    {3, 5, 2, 4, 19, 33, true, false, false, 1, 0},     {1, 8, 1, 3, 7, 8, false, true, false, 0, -2},
    {3, 9, 2, 2, 24, 40, true, true, true, 2, 0},       {1, 63, 1, 2, 16, 15, false, false, false, 0, -4},
    {1, 64, 2, 4, 64, 64, false, true, false, 0, 3},    {2, 65, 1, 3, 33, 17, true, false, false, 5, 0},
    {1, 130, 1, 1, 128, 64, false, false, true, 0, -4}, {1, 200, 1, 2, 20, 100, true, true, false, 1, -5},
    {1, 70, 3, 3, 12, 12, false, true, false, 0, 60},
};

static void check_shape(check_state *s, tn_dtype dtype, const shape *of, bool wide)
{
    if (check_pass_over(s))
        return;
    check_case c = open_case(dtype, of, wide);
    fill_case(&c, of);
    for (int out = 0; out < 2; out++)
        case_want(&c, out);
    for (int64_t j = 0; j < of->rows * of->heads; j++)
        expect_head(&c, j / of->heads, j % of->heads);
    check_run(s, &c);
}

static void check(check_state *s)
{
    for (int d = 0; d < CHECK_DTYPES; d++) {
        group_begin(s, "selective_scan %s %s", tn_dtype_name(check_dtypes[d]), s->tier->name);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int wide = 0; wide <= (check_dtypes[d] != TN_F32); wide++)
                check_shape(s, check_dtypes[d], &shapes[i], wide);
        group_end(s);
    }
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* The heads of Mamba-Codestral-7B. A token reads and writes the states. */
static void bench(check_state *s)
{
    static const int64_t tokens[] = {1, 16, 128, 512};
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (int t = 0; t < 4; t++) {
            const shape real = {1, tokens[t], 8, 128, 128, 64, false, true, false, 0, -3};
            double states = 4.0 * 128 * 128 * 64, size = (double)tn_dtype_size(check_dtypes[d]);
            double rows = size * (double)tokens[t] * 128, flops = 5.0 * 128 * 128 * 64 * (double)tokens[t];
            const bench_work forward = {states + rows * (64 + 2 * 8), states + rows * 64, flops}, none = {0, 0, 0};
            if (!bench_wanted(s, check_dtypes[d], flops, "selective_scan Codestral x%lld", (long long)tokens[t]))
                continue;
            check_case c = open_case(check_dtypes[d], &real, false);
            fill_case(&c, &real);
            c.alias[0] = -1; /* what is made of itself fades away */
            bench_run(s, &c, forward, none);
        }
}

const check_test check_selective_scan = {
    .name = "selective_scan", .tiers = TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_NEON, .check = check, .bench = bench};
