/* MLP: gated MLPs. */
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
        c->site.features = TN_HAS_BIAS;
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

static check_case mlp_case(tn_layout layout, tn_act act, tn_dtype dtype, const shape *s, bool want)
{
    check_case c;
    random_state r = {(uint64_t)(s->tokens * 131 + s->hidden * 7 + s->inter + layout)};
    int64_t dims[] = {s->tokens, s->hidden}, stride[] = {s->hidden + s->gap, 1};
    reference_mlp m;
    case_init(&c, kernel, TN_OP_MLP, dtype);
    c.site.meaning[TN_AXIS_LAYOUT] = layout;
    c.site.meaning[TN_AXIS_ACT] = (int32_t)act;
    c.site.dim[TN_DIM_HIDDEN] = s->hidden;
    c.site.dim[TN_DIM_INTER] = s->inter;
    make_weights(&c, s, &r, &m, want);
    m.act = act;
    tn_tensor *x = case_in(&c, dtype, 2, dims, s->gap ? stride : NULL);
    fill_normal(x, &r, 0, s->scale);
    stride[0] = s->hidden + (s->gap ? s->gap + 2 : 0);
    case_out(&c, dtype, 2, dims, s->gap ? stride : NULL);
    snprintf(c.what, sizeof c.what, "%s, tokens %lld, %lld -> %lld, gap %lld%s", act_name(act), (long long)s->tokens,
             (long long)s->hidden, (long long)s->inter, (long long)s->gap, s->bias ? ", bias" : "");
    if (!want)
        return c;
    case_want(&c, 0);
    double *values = case_values(&c, x);
    estimate *h = case_alloc(&c, (size_t)s->inter * sizeof *h), *y = case_alloc(&c, (size_t)s->hidden * sizeof *y);
    for (int64_t t = 0; t < s->tokens; t++) {
        reference_mlp_token(&m, values + t * s->hidden, h, y);
        for (int64_t i = 0; i < s->hidden; i++) {
            c.want[0][t * s->hidden + i] = y[i].value;
            c.bound[0][t * s->hidden + i] = y[i].error;
        }
    }
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
        /* Over the three layouts, every shape meets every activation. */
        tn_act act = (tn_act)(TN_ACT_SILU + (i + (size_t)layout) % 3);
        check_case c = mlp_case(layout, act, dtype, &shapes[i], true);
        check_run(s, &c);
    }
    group_end(s);
}

/* NaN and infinity go where they go in eager; a NaN in one token stays in that token. */
static void check_specials(check_state *s, tn_act act, tn_dtype dtype)
{
    group_begin(s, "mlp specials %s %s %s", act_name(act), tn_dtype_name(dtype), s->tier->name);
    for (int64_t tokens = 4; tokens <= 36; tokens += 32) {
        const shape one = {tokens, 33, tokens > 8 ? 257 : 18, 0, false, 1}; /* the second is no small layer */
        check_case c = mlp_case(TN_LAYOUT_SPLIT, act, dtype, &one, false);
        tn_tensor *x = &c.call.in[0];
        element_set(x, element_offset(x, 3), NAN);
        element_set(x, element_offset(x, 2 * one.hidden + 5), INFINITY);
        element_set(x, element_offset(x, 4 * one.hidden - 1), -INFINITY);
        check_run(s, &c);
    }
    group_end(s);
}

static void check_declines(check_state *s)
{
    const shape plain = {1, 16, 8, 0, false, 1};
    group_begin(s, "mlp declines %s", s->tier->name);
    check_case c = mlp_case(TN_LAYOUT_SPLIT, TN_ACT_RELU, TN_F32, &plain, false);
    check_declined(s, &c, "relu");
    c = mlp_case(TN_LAYOUT_SPLIT, TN_ACT_SILU, TN_BF16, &plain, false);
    ((tn_tensor *)c.site.param[TN_ROLE_UP].tensors)->dtype = TN_F32;
    check_declined(s, &c, "up is f32");
    c = mlp_case(TN_LAYOUT_GATE_UP, TN_ACT_SILU, TN_BF16, &plain, false);
    c.site.dim[TN_DIM_INTER] = 9;
    check_declined(s, &c, "down");
    c = mlp_case(TN_LAYOUT_SPLIT, TN_ACT_SILU, TN_F32, &plain, false);
    c.site.param[TN_ROLE_GATE].count = 0;
    check_declined(s, &c, "gate");
    c = mlp_case(TN_LAYOUT_SPLIT, TN_ACT_SILU, TN_F32, &plain, false);
    c.site.features = TN_HAS_SPARSITY;
    check_declined(s, &c, "sparsity");
    group_end(s);
}

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static void check(check_state *s)
{
    for (int d = 0; d < 3; d++) {
        for (int layout = TN_LAYOUT_SPLIT; layout <= TN_LAYOUT_UP_GATE; layout++)
            check_group(s, (tn_layout)layout, dtypes[d]);
        for (int act = TN_ACT_SILU; act <= TN_ACT_GELU; act++)
            check_specials(s, (tn_act)act, dtypes[d]);
    }
    check_declines(s);
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
    check_case c = mlp_case(TN_LAYOUT_SPLIT, TN_ACT_SILU, dtype, &real, false);
    bench_run(s, &c, forward, backward);
}

/* The last is what a mixture of 64 experts with 8 for each of 4096 tokens would be if it were dense (moe.c). */
static void bench(check_state *s)
{
    static const bench_model dense = {"dense", 1024, 384, 0, 0, 0, 0, 0};
    for (int d = 0; d < 3; d++) {
        for (int m = 0; m < 2; m++)
            for (int t = 0; t < BENCH_TOKENS; t++)
                bench_shape(s, &bench_models[m], dtypes[d], bench_tokens[t]);
        bench_shape(s, &dense, dtypes[d], 8 * 4096);
    }
}

static bool golden(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype)
{
    static const char *const names[] = {"out"};
    bool fused = !strcmp(op, "swiglu_fused"), gelu = !strcmp(op, "geglu");
    tn_tensor x, gate, up, down;
    if (!fused && !gelu && strcmp(op, "swiglu"))
        return false;
    if (!golden_get(file, n, "x", &x) || !golden_get(file, n, fused ? "w_gate_up" : "w_gate", &gate) ||
        !golden_get(file, n, "w_down", &down) || (!fused && !golden_get(file, n, "w_up", &up)))
        return false;
    check_case c;
    case_init(&c, kernel, TN_OP_MLP, dtype);
    c.site.meaning[TN_AXIS_ACT] = gelu ? TN_ACT_GELU_TANH : TN_ACT_SILU;
    c.site.meaning[TN_AXIS_LAYOUT] = fused ? TN_LAYOUT_GATE_UP : TN_LAYOUT_SPLIT;
    c.site.dim[TN_DIM_HIDDEN] = down.shape[0];
    c.site.dim[TN_DIM_INTER] = down.shape[1];
    golden_copy(case_param(&c, fused ? TN_ROLE_GATE_UP : TN_ROLE_GATE, 1, dtype, 2, gate.shape), &gate);
    if (!fused)
        golden_copy(case_param(&c, TN_ROLE_UP, 1, dtype, 2, up.shape), &up);
    golden_copy(case_param(&c, TN_ROLE_DOWN, 1, dtype, 2, down.shape), &down);
    int64_t folded[] = {tn_tensor_count(&x) / down.shape[0], down.shape[0]};
    golden_copy(case_in(&c, dtype, 2, folded, NULL), &x);
    case_out(&c, dtype, 2, folded, NULL);
    golden_run(s, &c, file, n, names);
    return true;
}

const check_test check_mlp = {.name = "mlp",
                              .tiers = TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_AVX512_BF16 | TN_CPU_AMX_BF16 | TN_CPU_NEON,
                              .check = check,
                              .bench = bench,
                              .golden = golden};
