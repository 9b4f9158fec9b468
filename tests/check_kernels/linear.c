/* LINEAR: products with one matrix. */
#include "products.h"

#include <math.h>
#include <stdio.h>

static const char kernel[] = "cpu_linear";

typedef struct shape {
    int64_t tokens, in, out, gap; /* gap: elements between rows of x that belong to nobody         */
    bool bias;
} shape;

/* Without contents. */
static check_case open_case(tn_dtype dtype, const shape *s)
{
    check_case c;
    int64_t x[] = {s->tokens, s->in}, y[] = {s->tokens, s->out};
    int64_t x_stride[] = {s->in + s->gap, 1}, y_stride[] = {s->out + (s->gap ? s->gap + 2 : 0), 1};
    case_init(&c, kernel, TN_OP_LINEAR, dtype);
    c.site.dim[TN_DIM_HIDDEN] = s->in;
    c.site.dim[TN_DIM_OUT] = s->out;
    c.site.features = s->bias ? TN_HAS_BIAS : 0;
    case_in(&c, dtype, 2, x, s->gap ? x_stride : NULL);
    case_out(&c, dtype, 2, y, s->gap ? y_stride : NULL);
    case_param(&c, TN_ROLE_WEIGHT, 1, dtype, 2, (int64_t[]){s->out, s->in});
    if (s->bias)
        case_param(&c, TN_ROLE_BIAS, 1, dtype, 1, &s->out);
    snprintf(c.what, sizeof c.what, "tokens %lld, %lld -> %lld, gap %lld%s", (long long)s->tokens, (long long)s->in,
             (long long)s->out, (long long)s->gap, s->bias ? ", bias" : "");
    return c;
}

static tn_tensor *role(check_case *c, tn_role which)
{
    return (tn_tensor *)c->site.param[which].tensors;
}

static void fill(check_case *c, const shape *s)
{
    random_state r = {(uint64_t)(s->tokens * 131 + s->in * 7 + s->out)};
    fill_normal(&c->call.in[0], &r, 0, 1);
    fill_normal(role(c, TN_ROLE_WEIGHT), &r, 0, 1 / sqrt((double)s->in));
    if (s->bias)
        fill_normal(role(c, TN_ROLE_BIAS), &r, 0, 0.5);
}

static void want_forward(check_case *c, tn_dtype dtype, const shape *s)
{
    const double *x = case_values(c, &c->call.in[0]), *w = case_values(c, role(c, TN_ROLE_WEIGHT));
    const double *bias = s->bias ? case_values(c, role(c, TN_ROLE_BIAS)) : NULL;
    estimate *row = case_alloc(c, (size_t)(s->in + 1) * sizeof *row);
    case_want(c, 0);
    for (int64_t t = 0; t < s->tokens; t++) {
        for (int64_t i = 0; i < s->in; i++)
            row[i] = estimate_exact(x[t * s->in + i]);
        for (int64_t o = 0; o < s->out; o++) {
            estimate y = estimate_dot(dtype, row, w + o * s->in, 1, s->in, bias ? bias[o] : 0);
            c->want[0][t * s->out + o] = y.value;
            c->bound[0][t * s->out + o] = y.error;
        }
    }
}

/* dx = g w, dw = g^T x, db = the sum of g. */
static void want_gradients(check_case *c, tn_dtype dtype, const shape *s)
{
    const double *x = case_values(c, &c->call.in[0]), *w = case_values(c, role(c, TN_ROLE_WEIGHT));
    const double *g = case_values(c, &c->grads.out[0]), one = 1;
    estimate *row = case_alloc(c, (size_t)(s->out + s->tokens + 1) * sizeof *row);
    case_want_in(c, 0);
    case_want_param(c, TN_ROLE_WEIGHT);
    if (s->bias)
        case_want_param(c, TN_ROLE_BIAS);
    for (int64_t t = 0; t < s->tokens; t++) {
        for (int64_t o = 0; o < s->out; o++)
            row[o] = estimate_exact(g[t * s->out + o]);
        for (int64_t i = 0; i < s->in; i++)
            estimate_store(estimate_dot(dtype, row, w + i, s->in, s->out, 0), c->want_in[0], c->bound_in[0],
                           t * s->in + i);
    }
    for (int64_t o = 0; o < s->out; o++) {
        for (int64_t t = 0; t < s->tokens; t++)
            row[t] = estimate_exact(g[t * s->out + o]);
        for (int64_t i = 0; i < s->in; i++)
            estimate_store(estimate_dot(dtype, row, x + i, s->in, s->tokens, 0), c->want_param[TN_ROLE_WEIGHT],
                           c->bound_param[TN_ROLE_WEIGHT], o * s->in + i);
        if (s->bias)
            estimate_store(estimate_dot(dtype, row, &one, 0, s->tokens, 0), c->want_param[TN_ROLE_BIAS],
                           c->bound_param[TN_ROLE_BIAS], o);
    }
}

/* Around every boundary of the kernels: tokens by dots and by tiles, one block and several; outputs that fill no tile,
 * one and no whole number of them, quarters of a thread's share; pairs, vectors and stretches along k; rows a whole
 * page apart; work for one thread and for several. */
static const shape shapes[] = {
    {0, 16, 16, 0, false},    {1, 1, 4, 0, false},     {1, 7, 4, 0, true},       {1, 300, 4, 0, false},
    {1, 129, 400, 0, true},   {1, 64, 1000, 0, false}, {1, 2100, 33, 0, true},   {2, 31, 17, 1, true},
    {2, 256, 200, 0, false},  {3, 33, 15, 0, false},   {3, 1030, 70, 3, true},   {4, 90, 92, 1, false},
    {5, 40, 56, 0, true},     {5, 500, 130, 0, false}, {7, 7, 5, 3, false},      {8, 65, 20, 0, false},
    {8, 2053, 49, 0, true},   {9, 16, 47, 2, true},    {9, 130, 300, 0, false},  {12, 1, 33, 0, true},
    {15, 24, 33, 0, false},   {16, 48, 32, 0, false},  {16, 333, 161, 1, true},  {17, 1, 4, 1, false},
    {17, 96, 97, 0, true},    {24, 18, 9, 0, false},   {25, 8, 4, 0, false},     {31, 19, 6, 5, false},
    {32, 32, 64, 0, true},    {33, 40, 21, 0, false},  {33, 129, 250, 1, true},  {40, 520, 40, 0, false},
    {41, 12, 20, 0, false},   {48, 1100, 17, 0, true}, {64, 1024, 65, 0, false}, {70, 2048, 35, 0, true},
    {100, 17, 130, 0, false}, {257, 9, 12, 0, true},   {257, 140, 90, 2, true},  {300, 34, 7, 3, false},
    {530, 33, 40, 0, true},   {600, 5, 4, 0, false},
};

/* Several stretches of k, and more rows than wait between them at once; copied rows. */
static const shape long_shapes[] = {{520, 800, 200, 0, true}, {300, 1600, 450, 1, false}};

static void check_shape(check_state *s, tn_dtype dtype, const shape *one)
{
    if (check_pass_over(s))
        return;
    check_case c = open_case(dtype, one);
    random_state r = {(uint64_t)(one->tokens + one->out)};
    fill(&c, one);
    case_grads(&c, &r);
    want_forward(&c, dtype, one);
    want_gradients(&c, dtype, one);
    check_run(s, &c);
}

static void check_shapes(check_state *s, tn_dtype dtype)
{
    group_begin(s, "linear %s %s", tn_dtype_name(dtype), s->tier->name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(s, dtype, &shapes[i]);
    if (s->tier->flags & (TN_CPU_AVX512 | TN_CPU_NEON)) /* plain C takes a while */
        check_shape(s, dtype, &long_shapes[dtype == TN_BF16]);
    group_end(s);
}

/* NaN and infinity go where they go in eager, as does 0 times infinity; a NaN in one token or in one row of weights
 * stays there. */
static void check_specials(check_state *s, tn_dtype dtype)
{
    group_begin(s, "linear specials %s %s", tn_dtype_name(dtype), s->tier->name);
    for (int64_t tokens = 1; tokens <= 36; tokens += 7) {
        const shape one = {tokens, 67, 83, 0, tokens % 2 == 0};
        check_case c = open_case(dtype, &one);
        fill(&c, &one);
        tn_tensor *x = &c.call.in[0], *w = role(&c, TN_ROLE_WEIGHT);
        element_set(w, 5 * one.in + 66, NAN);
        element_set(w, 20 * one.in + 3, INFINITY);
        element_set(x, 3, 0);
        if (tokens > 3) {
            element_set(x, one.in + 1, NAN);
            element_set(x, 2 * one.in + 5, INFINITY);
            element_set(x, 4 * one.in - 1, -INFINITY);
        }
        check_run(s, &c);
    }
    group_end(s);
}

static check_case plain_case(int32_t variant, tn_dtype dtype)
{
    const shape plain = {2, 24, 18, 0, true};
    (void)variant;
    return open_case(dtype, &plain);
}

static const check_decline declines[] = {
    {0, TN_BF16, {{DTYPE_IS, TN_ROLE_WEIGHT, TN_F32}}, "weight: is f32"},
    {0, TN_F32, {{DIM_IS, TN_DIM_OUT, 17}}, "weight: is f32 [18,24]; LINEAR takes f32 [17,24]"},
    {0, TN_F16, {{STRIDE_IS, TN_ROLE_WEIGHT, 2}}, "dense in its last dimension"},
    {0, TN_F32, {{ROWS_ARE, TN_ROLE_BIAS, 17}}, "bias: is f32 [17]"},
    {0, TN_F32, {{COUNT_IS, TN_ROLE_BIAS, 0}}, "bias"},
};

static void check_declined_sites(check_state *s)
{
    group_begin(s, "linear declines %s", s->tier->name);
    check_declines(s, declines, sizeof declines / sizeof *declines, plain_case);
    for (int64_t out = 1; out < 4; out++) { /* rows that may have no large element to measure errors by */
        const shape narrow = {5, 40, out, 0, false};
        check_case c = open_case(TN_F32, &narrow);
        fill(&c, &narrow);
        check_declined(s, &c, "out");
    }
    group_end(s);
}

static void check(check_state *s)
{
    for (int d = 0; d < CHECK_DTYPES; d++) {
        check_shapes(s, check_dtypes[d]);
        check_specials(s, check_dtypes[d]);
    }
    check_declined_sites(s);
}

static void bench_shape(check_state *s, const char *what, tn_dtype dtype, const shape *real)
{
    double size = (double)tn_dtype_size(dtype), tokens = (double)real->tokens;
    double weights = (double)real->in * (double)real->out;
    const bench_work forward = {(weights + tokens * (double)real->in) * size, tokens * (double)real->out * size,
                                2 * weights * tokens};
    if (!bench_wanted(s, dtype, forward.flops, "linear %s %lld->%lld x%lld", what, (long long)real->in,
                      (long long)real->out, (long long)real->tokens))
        return;
    check_case c = open_case(dtype, real);
    fill(&c, real);
    const bench_work backward = {(weights + tokens * (double)(real->in + real->out)) * size,
                                 (weights + tokens * (double)real->in) * size, 4 * weights * tokens};
    bench_run(s, &c, forward, backward);
}

/* The projections of attention, the rows of the vocabulary, and a layer of a small model. */
static void bench(check_state *s)
{
    static const int64_t tokens[] = {1, 2, 4, 8, 16, 32, 128, 512};
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            for (int m = 0; m < 2; m++) {
                const bench_model *b = &bench_models[m];
                int64_t q = b->q_heads * b->head, kv = b->kv_heads * b->head, n = tokens[t];
                bench_shape(s, "q", check_dtypes[d], &(shape){n, b->hidden, q, 0, false});
                bench_shape(s, "k", check_dtypes[d], &(shape){n, b->hidden, kv, 0, false});
                bench_shape(s, "o", check_dtypes[d], &(shape){n, q, b->hidden, 0, false});
                bench_shape(s, "head", check_dtypes[d], &(shape){n, b->hidden, 151936, 0, false});
            }
            bench_shape(s, "small", check_dtypes[d], &(shape){tokens[t], 64, 192, 0, false});
        }
}

const check_test check_linear = {.name = "linear", .tiers = CHECK_PRODUCTS, .check = check, .bench = bench};
