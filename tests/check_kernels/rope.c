/* ROPE. The roundings are all defined (products in f32, then in the tables' type, sums in f32, then in the tensors'),
 * so every result must be equal to the reference: no distance is allowed. */
#include "check_kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char kernel[] = "npu_fused_rope";

typedef struct shape {
    int64_t rows, tokens, q_heads, k_heads, head, rotary;
    int64_t table_rows; /* 1 or rows                                                            */
    bool head_major;    /* q and k lie as [B, heads, T, D]                                      */
    bool in_place, specials;
    int64_t gap;          /* elements between heads that belong to nobody                        */
    bool f32_table, wild; /* wild: angles that are no rotation                              */
    bool tiny;            /* numbers below the normal ones                                  */
} shape;

static const char *style_name(int32_t style)
{
    static const char *const names[] = {"?",       "half",          "half narrow", "interleaved",
                                        "complex", "deinterleaved", "half_f32"};
    return names[style];
}

/* Whose contract says so. */
static bool f32_tables(tn_rope style)
{
    return style == TN_ROPE_COMPLEX || style == TN_ROPE_HALF_F32;
}

static int64_t table_width(tn_rope style, int64_t rotary)
{
    return style == TN_ROPE_HALF_NARROW ? rotary / 2 : rotary;
}

static void make_site(check_case *c, tn_rope style, const shape *s)
{
    c->site.path = "modeling_check.apply_rotary_pos_emb";
    c->site.class_name = "function";
    c->site.meaning[TN_AXIS_ROPE] = style;
    c->site.meaning[TN_AXIS_WEIGHT] = 0;
    c->site.dim[TN_DIM_HEAD] = s->head;
    c->site.dim[TN_DIM_ROTARY] = s->rotary;
    c->site.dim[TN_DIM_Q_HEADS] = s->q_heads;
    c->site.dim[TN_DIM_KV_HEADS] = s->k_heads;
    c->site.features = s->rotary < s->head ? TN_HAS_PARTIAL : 0;
    c->max_tokens = s->tokens > 0 ? s->rows * s->tokens : 1;
    c->tiers_equal = true;
}

/* Where pair i < rotary / 2 lies in the input, or in the output. */
static void pair_of(tn_rope style, bool output, int64_t rotary, int64_t i, int64_t *first, int64_t *second)
{
    bool halves = style == TN_ROPE_HALF || style == TN_ROPE_HALF_NARROW || style == TN_ROPE_HALF_F32;
    bool pairs = !halves && !(output && style == TN_ROPE_DEINTERLEAVED);
    *first = pairs ? 2 * i : i;
    *second = pairs ? 2 * i + 1 : i + rotary / 2;
}

/* a b + c d in f32, the products in the tables' type. Double holds the product of two numbers exactly, and is wide
 * enough for the rounding of a rounded sum to be that of the sum. */
static double two_products(tn_dtype table, double a, double b, double c, double d)
{
    double first = round_to(table, round_to(TN_F32, a * b)), second = round_to(table, round_to(TN_F32, c * d));
    return round_to(TN_F32, first + second);
}

/* One head: y = first c1 - second s1, second c2 + first s2; or the gradient of first and second for one of y. */
static void reference_head(const check_case *c, bool backward, const double *x, const double *cos_t,
                           const double *sin_t, double *y)
{
    tn_rope style = (tn_rope)c->site.meaning[TN_AXIS_ROPE];
    tn_dtype dtype = c->call.in[0].dtype, table = c->call.in[2].dtype;
    int64_t head = c->site.dim[TN_DIM_HEAD], rotary = c->site.dim[TN_DIM_ROTARY], half = rotary / 2;
    for (int64_t i = rotary; i < head; i++)
        y[i] = x[i];
    for (int64_t i = 0; i < half; i++) {
        bool wide = style == TN_ROPE_HALF || style == TN_ROPE_HALF_F32;
        int64_t from[2], to[2], other = wide ? i + half : i;
        pair_of(style, backward, rotary, i, &from[0], &from[1]);
        pair_of(style, !backward, rotary, i, &to[0], &to[1]);
        double a = x[from[0]], b = x[from[1]];
        double first = two_products(table, a, cos_t[i], b, backward ? sin_t[other] : -sin_t[i]);
        double second = two_products(table, b, cos_t[other], a, backward ? -sin_t[i] : sin_t[other]);
        y[to[0]] = round_to(dtype, first);
        y[to[1]] = round_to(dtype, second);
    }
}

/* Results for q (0) or k (1) in the order of elements; x: what is rotated, zeros when NULL. */
static void reference_tensor(check_case *c, int32_t which, bool backward, const double *x, double *y)
{
    const tn_tensor *t = &c->call.in[which], *cos_in = &c->call.in[2];
    double *cos_t = case_values(c, cos_in), *sin_t = case_values(c, &c->call.in[3]);
    int64_t heads = t->shape[2], width = t->shape[3];
    for (int64_t h = 0; x && h < t->shape[0] * t->shape[1] * heads; h++) {
        int64_t token = h / heads % t->shape[1], b = h / heads / t->shape[1];
        int64_t row = (cos_in->shape[0] == 1 ? 0 : b) * t->shape[1] + token;
        reference_head(c, backward, x + h * width, cos_t + row * cos_in->shape[2], sin_t + row * cos_in->shape[2],
                       y + h * width);
    }
}

/* without: 0, or which part is missing: the gradient of q's result (1), the wish for k's gradient (2). */
static void expect_results(check_case *c, const shape *s, int without)
{
    random_state r = {(uint64_t)(s->head + s->tokens)};
    case_grads(c, &r);
    c->grads.in[2].data = c->grads.in[3].data = NULL; /* tables have no gradient */
    if (without == 1)
        c->grads.out[0].data = NULL;
    for (int32_t i = 0; i < 2; i++) {
        tn_tensor *up = &c->grads.out[i];
        if (s->tiny)
            fill_normal(up, &r, 0, 40 * smallest(up->dtype));
        if (s->specials)
            fill_specials(up, &r, c->call.in[i].shape[2]);
        case_want(c, i);
        case_want_in(c, i);
        reference_tensor(c, i, false, case_values(c, &c->call.in[i]), c->want[i]);
        reference_tensor(c, i, true, up->data ? case_values(c, up) : NULL, c->want_in[i]);
    }
    if (without == 2)
        c->grads.in[1].data = NULL;
}

static void strides_of(const shape *s, int64_t heads, int64_t *stride)
{
    int64_t head = s->head + s->gap;
    stride[0] = s->tokens * heads * head;
    stride[1] = s->head_major ? head : heads * head;
    stride[2] = s->head_major ? s->tokens * head : head;
    stride[3] = 1;
}

static void describe(check_case *c, const shape *s)
{
    snprintf(c->what, sizeof c->what,
             "%lldx%lld tokens, heads %lld + %lld, %lld of %lld, tables %lld%s%s%s%s%s, gap %lld", (long long)s->rows,
             (long long)s->tokens, (long long)s->q_heads, (long long)s->k_heads, (long long)s->rotary,
             (long long)s->head, (long long)s->table_rows, s->f32_table ? " f32" : "",
             s->wild   ? " wild"
             : s->tiny ? ", tiny"
                       : "",
             s->head_major ? ", head-major" : "", s->in_place ? ", in place" : "", s->specials ? ", specials" : "",
             (long long)s->gap);
}

/* Turns, by an angle for each pair, that shrink a little as attention factors do; or any numbers: no equal halves, no
 * sums of squares of one. */
static void fill_tables(check_case *c, const shape *s, tn_rope style, random_state *r)
{
    tn_tensor *cos_in = &c->call.in[2], *sin_in = &c->call.in[3];
    int64_t width = cos_in->shape[2], period = style == TN_ROPE_HALF_NARROW ? width : width / 2;
    if (s->wild)
        for (int32_t i = 2; i < 4; i++)
            fill_normal(&c->call.in[i], r, 0, 1);
    for (int64_t i = 0, n = s->wild ? 0 : tn_tensor_count(cos_in); i < n; i++) {
        double angle = 6.2831853 * random_uniform(r);
        if (i % width < period) {
            element_set(cos_in, i, 0.9 * cos(angle));
            element_set(sin_in, i, 0.9 * sin(angle));
        } else {
            element_set(cos_in, i, element_get(cos_in, i - period));
            element_set(sin_in, i, element_get(sin_in, i - period));
        }
    }
    if (s->specials) {
        fill_specials(cos_in, r, 3);
        fill_specials(sin_in, r, 3);
    }
}

static check_case rope_case(tn_rope style, tn_dtype dtype, const shape *s)
{
    check_case c;
    random_state r = {(uint64_t)(s->head * 31 + s->tokens * 7 + s->rotary)};
    tn_dtype table = s->f32_table || f32_tables(style) ? TN_F32 : dtype;
    int64_t table_shape[] = {s->table_rows, s->tokens, table_width(style, s->rotary)};
    case_init(&c, kernel, TN_OP_ROPE, dtype);
    make_site(&c, style, s);
    for (int o = 0; o < 2; o++) {
        int64_t heads = o ? s->k_heads : s->q_heads, stride[4];
        const int64_t dims[] = {s->rows, s->tokens, heads, s->head};
        strides_of(s, heads, stride);
        tn_tensor *x = case_in(&c, dtype, 4, dims, stride);
        fill_normal(x, &r, 0, s->tiny ? 40 * smallest(dtype) : 1);
        if (s->specials)
            fill_specials(x, &r, heads);
        case_out(&c, dtype, 4, dims, stride);
        c.alias[o] = c.grad_alias[o] = s->in_place ? o : -1;
    }
    case_in(&c, table, 3, table_shape, NULL);
    case_in(&c, table, 3, table_shape, NULL);
    fill_tables(&c, s, style, &r);
    describe(&c, s);
    return c;
}

static const shape shapes[] = {
    /* rows, tokens, heads, head, rotary, table rows, head-major, in place, specials, gap, f32 tables, wild, tiny */
    {1, 0, 2, 1, 16, 16, 1, false, false, false, 0, false, false, false},
    {1, 1, 1, 1, 2, 2, 1, false, false, false, 0, false, false, false},
    {1, 1, 3, 1, 6, 4, 1, false, true, false, 0, false, true, false},
    {2, 3, 2, 1, 14, 14, 2, false, false, false, 3, false, false, false},
    {2, 3, 2, 2, 16, 16, 1, true, true, false, 0, false, true, false},
    {1, 2, 4, 2, 18, 18, 1, true, false, false, 1, false, false, false},
    {1, 2, 4, 1, 30, 30, 1, false, true, false, 0, false, false, false},
    {2, 2, 3, 1, 32, 32, 2, false, false, false, 0, true, true, false},
    {1, 3, 3, 1, 34, 34, 1, false, true, false, 0, false, true, false},
    {1, 3, 3, 1, 66, 62, 1, true, true, false, 5, false, false, false},
    {2, 5, 4, 2, 64, 64, 2, true, false, true, 0, false, false, false},
    {2, 5, 4, 2, 96, 64, 1, false, true, true, 0, false, true, false},
    {1, 4, 2, 1, 80, 22, 1, false, false, true, 2, true, false, false},
    {1, 1, 16, 8, 128, 128, 1, false, true, false, 0, false, false, false},
    {3, 40, 4, 2, 128, 128, 3, true, false, false, 0, false, true, false},
    {2, 70, 4, 1, 128, 64, 1, false, true, false, 8, false, false, false},
    {1, 1, 2, 1, 1024, 1024, 1, false, true, false, 0, false, false, false},
    {1, 2, 2, 1, 640, 602, 1, true, false, true, 1, false, true, false},
    {1, 3, 3, 1, 128, 128, 1, false, false, false, 0, false, false, true},
    {1, 3, 2, 1, 40, 34, 1, false, true, false, 0, false, false, true},
};

static void check_group(check_state *s, tn_rope style, tn_dtype dtype)
{
    group_begin(s, "rope %s %s %s", style_name(style), tn_dtype_name(dtype), s->tier->name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (check_pass_over(s))
            continue;
        check_case c = rope_case(style, dtype, &shapes[i]);
        expect_results(&c, &shapes[i], 0);
        check_run(s, &c);
    }
    for (int without = 1; without < 3; without++) {
        const shape p = {2, 3, 3, 2, 40, 36, 1, false, false, false, 1, false, false, false};
        check_case c = rope_case(style, dtype, &p);
        expect_results(&c, &p, without);
        check_run(s, &c);
    }
    group_end(s);
}

static check_case plain_case(int32_t style, tn_dtype dtype)
{
    const shape plain = {1, 1, 2, 1, 16, 16, 1, false, false, false, 0, false, false, false};
    return rope_case((tn_rope)style, dtype, &plain);
}

static const check_decline declines[] = {
    {TN_ROPE_HALF, TN_F32, {{DIM_IS, TN_DIM_ROTARY, 32}}, "rotary: 32 of a head of 16, which must be an even number"},
    {TN_ROPE_HALF, TN_F32, {{DIM_IS, TN_DIM_ROTARY, 15}}, "rotary: 15 of a head of 16, which must be an even number"},
    {TN_ROPE_HALF,
     TN_F32,
     {{DIM_IS, TN_DIM_HEAD, 15}, {DIM_IS, TN_DIM_ROTARY, 0}},
     "rotary: 15 of a head of 15, which must be an even number"},
    {TN_ROPE_HALF_NARROW, TN_BF16, {{DIM_IS, TN_DIM_HEAD, 0}, {DIM_IS, TN_DIM_ROTARY, 0}}, "head: is 0"},
    {TN_ROPE_HALF, TN_F32, {{MEANING_IS, TN_AXIS_DTYPE, TN_F64}}, "dtype"},
    {TN_ROPE_DEINTERLEAVED, TN_F32, {{DIM_IS, TN_DIM_HEAD, 2048}}, "head: site has 2048, kernel takes up to 1024"},
};

static void check(check_state *s)
{
    for (int style = TN_ROPE_HALF; style <= TN_ROPE_HALF_F32; style++)
        for (int d = 0; d < CHECK_DTYPES; d++)
            check_group(s, (tn_rope)style, check_dtypes[d]);
    group_begin(s, "rope declines %s", s->tier->name);
    check_declines(s, declines, sizeof declines / sizeof *declines, plain_case);
    group_end(s);
}

/* A quarter turn: a call repeated in place then neither grows its numbers nor lets them fade away. */
static void turn_quarter(check_case *c)
{
    for (int i = 2; i < 4; i++)
        for (int64_t j = 0, n = tn_tensor_count(&c->call.in[i]); j < n; j++)
            element_set(&c->call.in[i], j, i == 3);
}

static void bench_shape(check_state *s, const bench_model *m, tn_rope style, tn_dtype dtype, int64_t tokens,
                        bool in_place)
{
    const shape p = {1,     tokens,   m->q_heads, m->kv_heads, m->head, m->head, 1,
                     false, in_place, false,      0,           false,   false,   false};
    if (!bench_wanted(s, dtype, 0, "rope %s %s x%lld%s", style_name(style), m->name, (long long)tokens,
                      in_place ? " in place" : ""))
        return;
    double size = (double)tn_dtype_size(dtype), tables = 2 * (double)(tokens * table_width(style, m->head)) * size;
    double bytes = (double)((m->q_heads + m->kv_heads) * m->head * tokens) * size;
    const bench_work work = {bytes + tables, bytes, 0}; /* the same backward: it needs tables and gradients only */
    check_case c = rope_case(style, dtype, &p);
    random_state r = {1};
    turn_quarter(&c);
    case_grads(&c, &r);
    c.grads.in[2].data = c.grads.in[3].data = NULL; /* tables have no gradient */
    for (int32_t i = 0; in_place && i < 2; i++)
        c.grad_alias[i] = i;
    bench_run(s, &c, work, work);
}

/* The style of Qwen3 for its models; the others for the first. */
static void bench(check_state *s)
{
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (int m = 0; m < BENCH_MODELS; m++)
            for (int t = 0; t < BENCH_TOKENS; t++)
                for (int in_place = 0; in_place < 2; in_place++)
                    bench_shape(s, &bench_models[m], TN_ROPE_HALF, check_dtypes[d], bench_tokens[t], in_place);
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (int style = TN_ROPE_HALF_NARROW; style <= TN_ROPE_HALF_F32; style++)
            bench_shape(s, &bench_models[0], (tn_rope)style, check_dtypes[d], 512, false);
}

/* mrope: which of the three tables every frequency comes from; the halves repeat. */
static void merge_tables(tn_tensor *to, const tn_tensor *from, const tn_tensor *section, bool interleaved)
{
    int64_t half = to->shape[2] / 2, rows = to->shape[0] * to->shape[1];
    int64_t m[3];
    for (int i = 0; i < 3; i++)
        m[i] = (int64_t)element_get(section, i);
    for (int64_t i = 0; i < half; i++) {
        int64_t axis = i < m[0] ? 0 : i < m[0] + m[1] ? 1 : 2;
        if (interleaved)
            axis = i % 3 == 1 && i < 3 * m[1] ? 1 : i % 3 == 2 && i < 3 * m[2] ? 2 : 0;
        for (int64_t row = 0; row < rows; row++) {
            double v = element_get(from, (axis * rows + row) * 2 * half + i);
            element_set(to, row * 2 * half + i, v);
            element_set(to, row * 2 * half + half + i, v);
        }
    }
}

static void golden_tables(check_case *c, const tn_safetensors *file, int64_t n, tn_dtype dtype)
{
    static const char *const names[] = {"cos", "sin"};
    for (int i = 0; i < 2; i++) {
        tn_tensor table, section;
        golden_get(file, n, names[i], &table);
        bool merged = golden_get(file, n, "mrope_section", &section);
        tn_tensor *to = case_in(c, dtype, 3, table.shape + (merged ? 1 : 0), NULL);
        if (merged)
            merge_tables(to, &table, &section, golden_number(file, n, "mrope_interleaved", 0) != 0);
        else
            golden_copy(to, &table);
    }
}

/* The files are head-major, [B, heads, T, D]; the contract's tensors are [B, T, heads, D]. */
static tn_tensor token_major(tn_tensor x)
{
    tn_tensor t = x;
    for (int i = 0; i < 2; i++) {
        t.shape[1 + i] = x.shape[2 - i];
        t.stride[1 + i] = x.stride[2 - i];
    }
    return t;
}

static void golden_gradients(check_case *c, const tn_safetensors *file, int64_t n)
{
    static const char *const up[] = {"grad_out_q", "grad_out_k"}, *const down[] = {"grad_q", "grad_k"};
    random_state r = {0};
    tn_tensor g, dx;
    for (int32_t i = 0; i < 2; i++) {
        if (!golden_get(file, n, up[i], &g) || !golden_get(file, n, down[i], &dx))
            return;
        if (i == 0) {
            case_grads(c, &r);
            c->grads.in[2].data = c->grads.in[3].data = NULL;
        }
        g = token_major(g);
        dx = token_major(dx);
        golden_upstream(c, i, &g);
        golden_grad_in(c, i, &dx);
    }
}

static bool golden(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype)
{
    static const struct {
        const char *op;
        tn_rope style;
    } ops[] = {{"rope", TN_ROPE_HALF},
               {"rope_partial", TN_ROPE_HALF},
               {"mrope", TN_ROPE_HALF},
               {"rope_interleaved", TN_ROPE_INTERLEAVED},
               {"rope_complex", TN_ROPE_COMPLEX},
               {"rope_deinterleaved", TN_ROPE_DEINTERLEAVED}};
    static const char *const names[] = {"out_q", "out_k"}, *const inputs[] = {"q", "k"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        tn_tensor x, cos_in, sin_in;
        if (strcmp(op, ops[i].op) || !golden_get(file, n, "cos", &cos_in) || !golden_get(file, n, "sin", &sin_in))
            continue;
        check_case c;
        shape p = {.rotary = cos_in.shape[cos_in.ndim - 1]};
        case_init(&c, kernel, TN_OP_ROPE, dtype);
        for (int o = 0; o < 2 && golden_get(file, n, inputs[o], &x); o++) {
            x = token_major(x);
            p.head = x.shape[3];
            *(o ? &p.k_heads : &p.q_heads) = x.shape[2];
            p.rows = x.shape[0];
            p.tokens = x.shape[1];
            golden_copy(case_in(&c, dtype, 4, x.shape, x.stride), &x);
            case_out(&c, dtype, 4, x.shape, x.stride);
        }
        make_site(&c, ops[i].style, &p);
        golden_tables(&c, file, n, f32_tables(ops[i].style) ? TN_F32 : dtype);
        golden_gradients(&c, file, n);
        golden_run(s, &c, file, n, names);
        return true;
    }
    return false;
}

const check_test check_rope = {
    .name = "rope", .tiers = CHECK_VECTORS, .check = check, .bench = bench, .golden = golden};
