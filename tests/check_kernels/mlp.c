/* MLP: gated MLPs. */
#include "mlp.h"
#include "products.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char kernel[] = "npu_fused_swiglu";

typedef struct shape {
    int64_t tokens, hidden, inter, gap; /* gap: elements between rows of x that belong to nobody   */
    bool bias;
    double scale; /* of x                                                                          */
} shape;

/* What a case is about, besides its shape. */
typedef struct variant {
    tn_layout layout;
    tn_act act;
    tn_dtype dtype;
    bool sparse, grads;
    double quantile; /* of a sparse one                                                            */
} variant;

static const char *layout_name(int32_t layout)
{
    return layout == TN_LAYOUT_SPLIT ? "split" : layout == TN_LAYOUT_GATE_UP ? "gate_up" : "up_gate";
}

static tn_tensor *matrix(check_case *c, tn_role role, int64_t rows, int64_t columns, random_state *r)
{
    int64_t dims[] = {rows, columns};
    tn_tensor *t = case_param(c, role, 1, (tn_dtype)c->site.meaning[TN_AXIS_DTYPE], 2, dims);
    fill_normal(t, r, 0, 1 / sqrt((double)columns));
    return t;
}

static tn_tensor *vector(check_case *c, tn_role role, int64_t n, random_state *r)
{
    tn_tensor *t = case_param(c, role, 1, (tn_dtype)c->site.meaning[TN_AXIS_DTYPE], 1, &n);
    fill_normal(t, r, 0, 0.5);
    return t;
}

/* The weights of a layout, and where gate and up are in double. */
static void make_weights(check_case *c, const shape *s, random_state *r, reference_mlp *m, bool values)
{
    int32_t layout = c->site.meaning[TN_AXIS_LAYOUT];
    const tn_tensor *down = matrix(c, TN_ROLE_DOWN, s->hidden, s->inter, r), *gate, *up = NULL;
    const tn_tensor *gate_bias = NULL, *up_bias = NULL, *down_bias = NULL;
    bool split = layout == TN_LAYOUT_SPLIT;
    gate = matrix(c, split ? TN_ROLE_GATE : TN_ROLE_GATE_UP, split ? s->inter : 2 * s->inter, s->hidden, r);
    if (split)
        up = matrix(c, TN_ROLE_UP, s->inter, s->hidden, r);
    if (s->bias) {
        c->site.features |= TN_HAS_BIAS;
        down_bias = vector(c, TN_ROLE_DOWN_BIAS, s->hidden, r);
        gate_bias = vector(c, split ? TN_ROLE_GATE_BIAS : TN_ROLE_GATE_UP_BIAS, split ? s->inter : 2 * s->inter, r);
        if (split)
            up_bias = vector(c, TN_ROLE_UP_BIAS, s->inter, r);
    }
    *m = (reference_mlp){.dtype = down->dtype, .hidden = s->hidden, .inter = s->inter};
    if (!values)
        return;
    int64_t second = split ? 0 : s->inter;
    m->down = case_values(c, down);
    m->gate = case_values(c, gate);
    m->up = split ? case_values(c, up) : m->gate + second * s->hidden;
    if (s->bias) {
        m->down_bias = case_values(c, down_bias);
        m->gate_bias = case_values(c, gate_bias);
        m->up_bias = split ? case_values(c, up_bias) : m->gate_bias + second;
    }
    if (layout == TN_LAYOUT_UP_GATE) {
        const double *first = m->gate, *first_bias = m->gate_bias;
        m->gate = m->up;
        m->up = first;
        m->gate_bias = m->up_bias;
        m->up_bias = first_bias;
    }
}

static const char *act_name(tn_act act)
{
    return act == TN_ACT_SILU ? "silu" : act == TN_ACT_GELU ? "gelu" : "gelu_tanh";
}

static void want_forward(check_case *c, const reference_mlp *m)
{
    case_want(c, 0);
    const double *x = case_values(c, &c->call.in[0]);
    estimate *h = case_alloc(c, (size_t)m->inter * sizeof *h), *y = case_alloc(c, (size_t)m->hidden * sizeof *y);
    for (int64_t t = 0; t < c->call.in[0].shape[0]; t++) {
        reference_mlp_token(m, x + t * m->hidden, h, y);
        for (int64_t i = 0; i < m->hidden; i++) {
            c->want[0][t * m->hidden + i] = y[i].value;
            c->bound[0][t * m->hidden + i] = y[i].error;
        }
    }
}

/* Estimates become what is wanted of a role, from element `first` on. Roles that the layout has not are left out. */
static void want_role(check_case *c, tn_role role, int64_t first, const estimate *e, int64_t n)
{
    if (!c->site.param[role].count)
        return;
    if (!c->want_param[role])
        case_want_param(c, role);
    for (int64_t i = 0; i < n; i++) {
        c->want_param[role][first + i] = e[i].value;
        c->bound_param[role][first + i] = e[i].error;
    }
}

static estimate *estimates(check_case *c, int64_t n)
{
    return case_alloc(c, (size_t)n * sizeof(estimate));
}

static void want_gradients(check_case *c, const reference_mlp *m)
{
    int64_t tokens = c->call.in[0].shape[0], hidden = m->hidden, inter = m->inter, n = hidden * inter;
    reference_gradients g = {.x = estimates(c, tokens * hidden),
                             .gate = estimates(c, n),
                             .up = estimates(c, n),
                             .down = estimates(c, n),
                             .gate_bias = estimates(c, inter),
                             .up_bias = estimates(c, inter),
                             .down_bias = estimates(c, hidden)};
    reference_mlp_gradients(m, case_values(c, &c->call.in[0]), case_values(c, &c->grads.out[0]), tokens, &g);
    bool up_first = c->site.meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_GATE;
    case_want_in(c, 0);
    for (int64_t i = 0; i < tokens * hidden; i++) {
        c->want_in[0][i] = g.x[i].value;
        c->bound_in[0][i] = g.x[i].error;
    }
    want_role(c, TN_ROLE_GATE, 0, g.gate, n);
    want_role(c, TN_ROLE_UP, 0, g.up, n);
    want_role(c, TN_ROLE_GATE_UP, up_first ? n : 0, g.gate, n);
    want_role(c, TN_ROLE_GATE_UP, up_first ? 0 : n, g.up, n);
    want_role(c, TN_ROLE_DOWN, 0, g.down, n);
    want_role(c, TN_ROLE_GATE_BIAS, 0, g.gate_bias, inter);
    want_role(c, TN_ROLE_UP_BIAS, 0, g.up_bias, inter);
    want_role(c, TN_ROLE_GATE_UP_BIAS, up_first ? inter : 0, g.gate_bias, inter);
    want_role(c, TN_ROLE_GATE_UP_BIAS, up_first ? 0 : inter, g.up_bias, inter);
    want_role(c, TN_ROLE_DOWN_BIAS, 0, g.down_bias, hidden);
}

static check_case mlp_case(const variant *v, const shape *s, bool want)
{
    check_case c;
    random_state r = {(uint64_t)(s->tokens * 131 + s->hidden * 7 + s->inter + v->layout)};
    int64_t dims[] = {s->tokens, s->hidden}, stride[] = {s->hidden + s->gap, 1};
    reference_mlp m;
    case_init(&c, kernel, TN_OP_MLP, v->dtype);
    c.site.meaning[TN_AXIS_LAYOUT] = (int32_t)v->layout;
    c.site.meaning[TN_AXIS_ACT] = (int32_t)v->act;
    c.site.features = v->sparse ? TN_HAS_SPARSITY : 0;
    c.site.num[TN_NUM_SPARSITY] = v->quantile;
    c.site.dim[TN_DIM_HIDDEN] = s->hidden;
    c.site.dim[TN_DIM_INTER] = s->inter;
    make_weights(&c, s, &r, &m, want);
    m.act = v->act;
    m.sparse = v->sparse;
    m.quantile = v->quantile;
    tn_tensor *x = case_in(&c, v->dtype, 2, dims, s->gap ? stride : NULL);
    fill_normal(x, &r, 0, s->scale);
    stride[0] = s->hidden + (s->gap ? s->gap + 2 : 0);
    case_out(&c, v->dtype, 2, dims, s->gap ? stride : NULL);
    snprintf(c.what, sizeof c.what, "%s, tokens %lld, %lld -> %lld, gap %lld%s", act_name(v->act), (long long)s->tokens,
             (long long)s->hidden, (long long)s->inter, (long long)s->gap, s->bias ? ", bias" : "");
    if (v->grads)
        case_grads(&c, &r);
    if (want)
        want_forward(&c, &m);
    if (want && v->grads)
        want_gradients(&c, &m);
    return c;
}

/* Around every boundary of the kernels: 8, 16 and 32 tokens, 4 and 16 features, 8 and 16 outputs, pairs and whole
 * vectors along k; blocks of 256 tokens; one and several threads. Layers above 8192 elements take tiles. With one
 * feature x is small: what is left of a gate far below zero, or of a sum with a bias that cancels it, is no measure for
 * the distance from eager. */
static const shape shapes[] = {
    {0, 16, 16, 0, false, 1},    {1, 1, 1, 0, false, 1},     {1, 2, 3, 0, true, 1},       {1, 64, 64, 0, false, 1},
    {2, 31, 17, 1, true, 1},     {3, 33, 15, 0, false, 3},   {5, 40, 56, 0, true, 1},     {7, 7, 5, 3, false, 1},
    {17, 4, 1, 1, true, 0.3},    {8, 65, 20, 0, false, 1},   {9, 16, 47, 2, true, 1},     {15, 24, 33, 0, false, 1},
    {16, 48, 32, 0, false, 1},   {17, 1, 1, 1, false, 0.3},  {17, 33, 31, 0, true, 1},    {24, 18, 9, 0, false, 10},
    {25, 8, 4, 0, false, 1},     {31, 19, 6, 5, false, 1},   {32, 32, 64, 0, true, 1},    {33, 40, 21, 0, false, 1},
    {48, 21, 40, 0, false, 1},   {64, 96, 34, 1, false, 1},  {100, 17, 130, 0, false, 1}, {257, 9, 12, 0, true, 1},
    {41, 12, 20, 0, false, 1},   {300, 34, 7, 3, false, 1},  {1, 300, 400, 0, false, 1},  {40, 130, 300, 0, false, 1},
    {18, 2100, 3, 0, false, 1},  {9, 97, 87, 2, true, 1},    {17, 96, 97, 0, false, 1},   {24, 130, 64, 0, false, 3},
    {33, 129, 65, 1, true, 1},   {41, 33, 250, 0, false, 1}, {64, 128, 80, 0, false, 1},  {257, 100, 90, 0, true, 1},
    {12, 40, 1000, 0, false, 1}, {2, 100, 82, 0, true, 1},   {4, 90, 92, 1, false, 1},    {5, 92, 90, 0, true, 1},
    {8, 83, 100, 0, false, 1}};

static void check_group(check_state *s, tn_layout layout, tn_dtype dtype)
{
    group_begin(s, "mlp %s %s %s", layout_name(layout), tn_dtype_name(dtype), s->tier->name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (check_pass_over(s))
            continue;
        /* Over the three layouts, every shape meets every activation. */
        const variant v = {.layout = layout, .act = (tn_act)(TN_ACT_SILU + (i + (size_t)layout) % 3), .dtype = dtype};
        check_case c = mlp_case(&v, &shapes[i], true);
        check_run(s, &c);
    }
    group_end(s);
}

/* The same boundaries for the products of backward, where features and outputs are summed over and tokens are too; two
 * blocks of tokens, the second of few; few tokens for several threads. */
static const shape grad_shapes[] = {{0, 8, 6, 0, true, 1},     {1, 1, 1, 0, false, 1},    {1, 16, 24, 0, true, 1},
                                    {2, 31, 17, 1, true, 1},   {3, 5, 40, 0, false, 1},   {8, 33, 32, 0, true, 1},
                                    {16, 16, 16, 2, false, 1}, {17, 1, 5, 0, true, 1},    {19, 40, 9, 0, false, 2},
                                    {33, 30, 47, 3, true, 1},  {40, 64, 21, 0, false, 1}, {41, 18, 70, 0, true, 1},
                                    {258, 12, 19, 1, true, 1}, {24, 97, 87, 0, true, 1},  {300, 7, 33, 0, false, 1},
                                    {4, 97, 130, 0, true, 1},  {514, 9, 33, 0, true, 1}};

/* Eager is no measure where one token or one output makes a row: the slope of an activation passes through zero, and a
 * bias may cancel a sum; what is left there has few right places. */
static void check_gradients(check_state *s, tn_layout layout, tn_dtype dtype)
{
    group_begin(s, "mlp gradients %s %s %s", layout_name(layout), tn_dtype_name(dtype), s->tier->name);
    for (size_t i = 0; i < sizeof grad_shapes / sizeof *grad_shapes; i++) {
        if (check_pass_over(s))
            continue;
        const variant v = {
            .layout = layout, .act = (tn_act)(TN_ACT_SILU + (i + (size_t)layout) % 3), .dtype = dtype, .grads = true};
        check_case c = mlp_case(&v, &grad_shapes[i], true);
        c.skip_eager = grad_shapes[i].tokens < 16 || grad_shapes[i].hidden == 1;
        check_run(s, &c);
    }
    group_end(s);
}

/* In bf16 and f16 eager rounds mean, deviation, quantile and cut, which moves all that is left of a row in one
 * direction: a row of few features may keep next to nothing else. */
static void check_sparse(check_state *s, tn_layout layout, tn_dtype dtype)
{
    static const double quantiles[] = {1.6448536269514722, 0.8416212335729143, 0, -1.5};
    static const shape sparse_shapes[] = {
        {0, 8, 6, 0, false, 1},     {1, 1, 1, 0, false, 1},    {1, 100, 90, 0, true, 1},
        {3, 24, 32, 1, false, 1},   {8, 40, 104, 0, false, 1}, {9, 16, 56, 0, true, 1},
        {36, 20, 171, 3, false, 1}, {41, 64, 33, 0, true, 1},  {257, 6, 50, 0, false, 1}};
    group_begin(s, "mlp sparse %s %s %s", layout_name(layout), tn_dtype_name(dtype), s->tier->name);
    for (size_t i = 0; i < sizeof sparse_shapes / sizeof *sparse_shapes; i++) {
        if (check_pass_over(s))
            continue;
        const variant v = {.layout = layout,
                           .act = i % 4 == 3 ? TN_ACT_SILU : TN_ACT_GELU_TANH,
                           .dtype = dtype,
                           .sparse = true,
                           .grads = true,
                           .quantile = quantiles[(i + (size_t)layout) % 4]};
        check_case c = mlp_case(&v, &sparse_shapes[i], true);
        c.skip_eager = dtype != TN_F32 || sparse_shapes[i].tokens < 16;
        check_run(s, &c);
    }
    group_end(s);
}

/* NaN and infinity go where they go in eager; a NaN in one token stays in that token. */
static void check_specials(check_state *s, tn_act act, bool sparse, tn_dtype dtype)
{
    group_begin(s, "mlp specials %s%s %s %s", sparse ? "sparse " : "", act_name(act), tn_dtype_name(dtype),
                s->tier->name);
    for (int64_t tokens = 4; tokens <= 36; tokens += 32) {
        const shape one = {tokens, 33, tokens > 8 ? 257 : 18, 0, false, 1}; /* the second is no small layer */
        const variant v = {.layout = TN_LAYOUT_SPLIT, .act = act, .dtype = dtype, .sparse = sparse, .quantile = 0.5};
        check_case c = mlp_case(&v, &one, false);
        tn_tensor *x = &c.call.in[0];
        element_set(x, element_offset(x, 3), NAN);
        element_set(x, element_offset(x, 2 * one.hidden + 5), INFINITY);
        element_set(x, element_offset(x, 4 * one.hidden - 1), -INFINITY);
        check_run(s, &c);
    }
    group_end(s);
}

static check_case plain_case(int32_t layout, tn_dtype dtype)
{
    const shape plain = {1, 16, 8, 0, true, 1};
    const variant v = {.layout = (tn_layout)layout, .act = TN_ACT_SILU, .dtype = dtype};
    return mlp_case(&v, &plain, false);
}

static const check_decline declines[] = {
    {TN_LAYOUT_SPLIT, TN_F32, {{MEANING_IS, TN_AXIS_ACT, TN_ACT_RELU}}, "relu"},
    {TN_LAYOUT_SPLIT, TN_BF16, {{DTYPE_IS, TN_ROLE_UP, TN_F32}}, "up: is f32"},
    {TN_LAYOUT_GATE_UP, TN_BF16, {{DIM_IS, TN_DIM_INTER, 9}}, "gate_up: is bf16 [16,16]"},
    {TN_LAYOUT_SPLIT, TN_F32, {{COUNT_IS, TN_ROLE_GATE, 0}}, "gate"},
    {TN_LAYOUT_UP_GATE, TN_F16, {{COUNT_IS, TN_ROLE_DOWN, 0}}, "down"},
    {TN_LAYOUT_SPLIT, TN_F32, {{ROWS_ARE, TN_ROLE_GATE, 7}}, "gate: is f32 [7,16]; MLP takes f32 [8,16]"},
    {TN_LAYOUT_SPLIT,
     TN_F32,
     {{ROWS_ARE, TN_ROLE_DOWN, 8}, {COLUMNS_ARE, TN_ROLE_DOWN, 16}},
     "down: is f32 [8,16]; MLP takes f32 [16,8]"},
    {TN_LAYOUT_GATE_UP, TN_F32, {{ROWS_ARE, TN_ROLE_GATE_UP, 15}}, "gate_up: is f32 [15,16]; MLP takes f32 [16,16]"},
    {TN_LAYOUT_SPLIT, TN_F16, {{STRIDE_IS, TN_ROLE_UP, 2}}, "dense in its last dimension"},
    {TN_LAYOUT_SPLIT, TN_F32, {{ROWS_ARE, TN_ROLE_GATE_BIAS, 9}}, "gate_bias: is f32 [9]"},
    {TN_LAYOUT_SPLIT, TN_F32, {{DIM_IS, TN_DIM_HIDDEN, 0}}, "hidden: is 0"},
    {TN_LAYOUT_SPLIT, TN_F32, {{HAS_ALSO, 0, TN_HAS_SPARSITY}, {NUM_IS, TN_NUM_SPARSITY, NAN}}, "sparsity"},
};

static void check(check_state *s)
{
    for (int d = 0; d < CHECK_DTYPES; d++) {
        for (int layout = TN_LAYOUT_SPLIT; layout <= TN_LAYOUT_UP_GATE; layout++)
            check_group(s, (tn_layout)layout, check_dtypes[d]);
        for (int layout = TN_LAYOUT_SPLIT; layout <= TN_LAYOUT_UP_GATE; layout++)
            check_gradients(s, (tn_layout)layout, check_dtypes[d]);
        for (int layout = TN_LAYOUT_SPLIT; layout <= TN_LAYOUT_UP_GATE; layout++)
            check_sparse(s, (tn_layout)layout, check_dtypes[d]);
        for (int act = TN_ACT_SILU; act <= TN_ACT_GELU; act++)
            check_specials(s, (tn_act)act, false, check_dtypes[d]);
        check_specials(s, TN_ACT_GELU_TANH, true, check_dtypes[d]);
    }
    group_begin(s, "mlp declines %s", s->tier->name);
    check_declines(s, declines, sizeof declines / sizeof *declines, plain_case);
    group_end(s);
}

/* Backward computes gate and up again (2 of 3 products), and for each product the gradients of its input and of its
 * weight: 8 of the products of forward in place of 3. */
static void bench_shape(check_state *s, const bench_model *m, tn_dtype dtype, int64_t rows)
{
    const shape real = {rows, m->hidden, m->inter, 0, false, 1};
    double size = (double)tn_dtype_size(dtype), tokens = (double)rows, io = tokens * (double)m->hidden * size;
    double weights = 3.0 * (double)m->hidden * (double)m->inter;
    const bench_work forward = {weights * size + io, io, 2 * weights * tokens};
    const bench_work backward = {weights * size + 2 * io, weights * size + io, 16.0 / 3 * weights * tokens};
    if (!bench_wanted(s, dtype, forward.flops, "mlp %s %lld->%lld x%lld", m->name, (long long)m->hidden,
                      (long long)m->inter, (long long)rows))
        return;
    const variant v = {.layout = TN_LAYOUT_SPLIT, .act = TN_ACT_SILU, .dtype = dtype, .grads = true};
    check_case c = mlp_case(&v, &real, false);
    bench_run(s, &c, forward, backward);
}

static void bench(check_state *s)
{
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (int m = 0; m < 2; m++)
            for (int t = 0; t < BENCH_TOKENS; t++)
                bench_shape(s, &bench_models[m], check_dtypes[d], bench_tokens[t]);
}

const check_test check_mlp = {
    .name = "mlp", .tiers = CHECK_PRODUCTS, .check = check, .bench = bench, .golden = mlp_golden};
