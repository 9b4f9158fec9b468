/* GROUPED_MATMUL. */
#include "host.h"
#include "products.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char kernel[] = "npu_fused_moe";

/* How the rows are spread over the groups. */
typedef enum pattern { EVEN, FIRST, LAST, ALTERNATE, GROWING } pattern;

typedef struct shape {
    int64_t rows, in, out, groups, gap;
    pattern counts;
} shape;

static const tn_layout layouts[] = {TN_LAYOUT_STACKED_OI, TN_LAYOUT_STACKED_IO, TN_LAYOUT_EXPERT_LIST,
                                    TN_LAYOUT_LIST_IO};
static const char *const layout_names[] = {"stacked oi", "stacked io", "list oi", "list io"};

static bool is_io(tn_layout layout)
{
    return layout == TN_LAYOUT_STACKED_IO || layout == TN_LAYOUT_LIST_IO;
}

static bool is_list(tn_layout layout)
{
    return layout == TN_LAYOUT_EXPERT_LIST || layout == TN_LAYOUT_LIST_IO;
}

static int64_t count_of(const shape *s, int64_t group)
{
    int64_t n = s->groups, last = n - 1;
    switch (s->counts) {
    case FIRST:
        return group == 0 ? s->rows : 0;
    case LAST:
        return group == last ? s->rows : 0;
    case ALTERNATE: { /* every second one has none */
        int64_t used = (n + 1) / 2;
        return group % 2 ? 0 : s->rows * (group / 2 + 1) / used - s->rows * (group / 2) / used;
    }
    case GROWING: { /* 0, step, 2 step, ... and the rest */
        int64_t step = s->rows / (n * n);
        return group < last ? step * group : s->rows - step * last * (last - 1) / 2;
    }
    default:
        return s->rows * (group + 1) / n - s->rows * group / n;
    }
}

/* Without contents. */
static check_case open_case(tn_layout layout, tn_dtype dtype, const shape *s)
{
    check_case c;
    case_init(&c, kernel, TN_OP_GROUPED_MATMUL, dtype);
    c.site.meaning[TN_AXIS_LAYOUT] = layout;
    c.site.dim[TN_DIM_HIDDEN] = s->in;
    c.site.dim[TN_DIM_OUT] = s->out;
    c.site.dim[TN_DIM_EXPERTS] = s->groups;
    snprintf(c.what, sizeof c.what, "%lld rows %lld -> %lld, %lld groups, counts %d, gap %lld", (long long)s->rows,
             (long long)s->in, (long long)s->out, (long long)s->groups, (int)s->counts, (long long)s->gap);
    int64_t x[] = {s->rows, s->in}, y[] = {s->rows, s->out};
    int64_t x_stride[] = {s->in + s->gap, 1}, y_stride[] = {s->out + 2 * s->gap, 1};
    case_in(&c, dtype, 2, x, s->gap ? x_stride : NULL);
    tn_tensor *counts = case_in(&c, TN_I64, 1, &s->groups, NULL);
    for (int64_t g = 0; g < s->groups; g++)
        element_set(counts, g, (double)count_of(s, g));
    case_out(&c, dtype, 2, y, s->gap ? y_stride : NULL);
    int64_t r = is_io(layout) ? s->in : s->out, k = is_io(layout) ? s->out : s->in;
    if (is_list(layout))
        case_param(&c, TN_ROLE_WEIGHT, s->groups, dtype, 2, (int64_t[]){r, k});
    else
        case_param(&c, TN_ROLE_WEIGHT, 1, dtype, 3, (int64_t[]){s->groups, r, k});
    return c;
}

/* Matrix g as [out,in] in double. */
static double *matrix(check_case *c, tn_layout layout, const shape *s, int64_t g)
{
    const tn_tensor *w = c->site.param[TN_ROLE_WEIGHT].tensors;
    double *m = case_alloc(c, (size_t)(s->in * s->out) * sizeof *m);
    for (int64_t o = 0; o < s->out; o++)
        for (int64_t i = 0; i < s->in; i++) {
            int64_t at = is_io(layout) ? i * s->out + o : o * s->in + i;
            m[o * s->in + i] = is_list(layout) ? element_get(&w[g], at) : element_get(w, g * s->in * s->out + at);
        }
    return m;
}

/* Rows of one group: y = x w^T, dx = g w, dw = g^T x. */
static void reference_group(check_case *c, tn_layout layout, const shape *s, int64_t group, int64_t first, int64_t n,
                            const double *x, const double *g)
{
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    const double *w = matrix(c, layout, s, group);
    size_t most = (size_t)(s->in + s->out + s->rows);
    estimate *a = case_alloc(c, most * sizeof *a);
    for (int64_t t = first; t < first + n; t++) {
        for (int64_t i = 0; i < s->in; i++)
            a[i] = estimate_exact(x[t * s->in + i]);
        for (int64_t o = 0; o < s->out; o++)
            estimate_store(estimate_dot(dtype, a, w + o * s->in, 1, s->in, 0), c->want[0], c->bound[0], t * s->out + o);
        for (int64_t o = 0; o < s->out; o++)
            a[o] = estimate_exact(g[t * s->out + o]);
        for (int64_t i = 0; i < s->in; i++)
            estimate_store(estimate_dot(dtype, a, w + i, s->in, s->out, 0), c->want_in[0], c->bound_in[0],
                           t * s->in + i);
    }
    for (int64_t o = 0; o < s->out; o++) {
        for (int64_t t = 0; t < n; t++)
            a[t] = estimate_exact(g[(first + t) * s->out + o]);
        for (int64_t i = 0; i < s->in; i++) {
            int64_t at = group * s->in * s->out + (is_io(layout) ? i * s->out + o : o * s->in + i);
            estimate_store(estimate_dot(dtype, a, x + first * s->in + i, s->in, n, 0), c->want_param[TN_ROLE_WEIGHT],
                           c->bound_param[TN_ROLE_WEIGHT], at);
        }
    }
}

static check_case make_case(tn_layout layout, tn_dtype dtype, const shape *s)
{
    check_case c = open_case(layout, dtype, s);
    random_state r = {(uint64_t)(s->rows * 131 + s->in * 7 + s->out * 3 + s->groups)};
    const tn_param *w = &c.site.param[TN_ROLE_WEIGHT];
    fill_normal(&c.call.in[0], &r, 0, 1);
    for (int64_t i = 0; i < w->count; i++)
        fill_normal((tn_tensor *)&w->tensors[i], &r, 0, 1 / sqrt((double)s->in));
    case_grads(&c, &r);
    case_want(&c, 0);
    case_want_in(&c, 0);
    case_want_param(&c, TN_ROLE_WEIGHT);
    const double *x = case_values(&c, &c.call.in[0]), *g = case_values(&c, &c.grads.out[0]);
    for (int64_t group = 0, first = 0; group < s->groups; group++) {
        reference_group(&c, layout, s, group, first, count_of(s, group), x, g);
        first += count_of(s, group);
    }
    return c;
}

/* rows, in, out, groups, gap, counts. Around the few rows of a group that go by dots, around a tile, more than a piece,
 * pieces that are cut between threads, and gradients of few rows in whole lines. */
static const shape shapes[] = {
    {0, 8, 4, 3, 0, EVEN},      {1, 1, 1, 1, 0, EVEN},        {1, 17, 33, 5, 0, LAST},    {5, 31, 16, 2, 3, FIRST},
    {9, 16, 7, 9, 0, EVEN},     {24, 15, 18, 3, 0, EVEN},     {27, 48, 65, 3, 1, EVEN},   {40, 64, 40, 7, 0, GROWING},
    {70, 33, 20, 4, 5, FIRST},  {130, 20, 96, 6, 0, LAST},    {200, 40, 130, 8, 0, EVEN}, {90, 9, 5, 30, 0, ALTERNATE},
    {330, 24, 160, 2, 0, LAST}, {600, 12, 10, 3, 1, GROWING}, {20, 64, 96, 6, 0, EVEN},   {7, 160, 72, 7, 0, EVEN},
};

static const shape plain = {20, 24, 18, 3, 0, EVEN};

static check_case plain_case(int32_t layout, tn_dtype dtype)
{
    return make_case((tn_layout)layout, dtype, &plain);
}

static const check_decline declines[] = {
    {TN_LAYOUT_STACKED_OI,
     TN_F32,
     {{MEANING_IS, TN_AXIS_LAYOUT, TN_LAYOUT_STACKED_IO}},
     "weight: is f32 [3,18,24]; GROUPED_MATMUL takes f32 [3,24,18]"},
    {TN_LAYOUT_STACKED_OI,
     TN_F32,
     {{DIM_IS, TN_DIM_EXPERTS, 4}},
     "weight: is f32 [3,18,24]; GROUPED_MATMUL takes f32 [4,18,24]"},
    {TN_LAYOUT_STACKED_OI,
     TN_F32,
     {{MEANING_IS, TN_AXIS_LAYOUT, TN_LAYOUT_EXPERT_LIST}},
     "weight: the site has 1 tensors, GROUPED_MATMUL takes 3"},
    {TN_LAYOUT_LIST_IO, TN_F32, {{COUNT_IS, TN_ROLE_WEIGHT, 0}}, "weight: the site has 0 tensors"},
};

/* Counts that do not describe x. */
static void check_errors(check_state *s)
{
    static const struct {
        int64_t group;
        double count;
        const char *text;
    } bad[] = {{1, -1, "group 1 has -1 rows"},
               {0, 100, "group 0 has 100 rows"},
               {2, 9, "group 2 has 9 rows, of the 20 rows of x 8 are left"},
               {2, 3, "group, 2, ends at row 15 of 20"}};
    group_begin(s, "grouped_matmul refused %s", s->tier->name);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int l = 0; l < 4; l++) {
            check_case c = make_case(layouts[l], TN_BF16, &plain);
            for (int64_t g = 0; g < 3; g++)
                element_set(&c.call.in[1], g, g == bad[i].group ? bad[i].count : g == 2 ? 8 : 6);
            check_refused(s, &c, bad[i].text);
        }
    check_declines(s, declines, sizeof declines / sizeof *declines, plain_case);
    check_case c = plain_case(TN_LAYOUT_LIST_IO, TN_F32);
    ((tn_tensor *)c.site.param[TN_ROLE_WEIGHT].tensors)[1].shape[1] = 17;
    check_declined(s, &c, "weight 1: is f32 [24,17]; GROUPED_MATMUL takes f32 [24,18]");
    c = plain_case(TN_LAYOUT_LIST_IO, TN_F32);
    ((tn_tensor *)c.site.param[TN_ROLE_WEIGHT].tensors)[2].dtype = TN_BF16;
    check_declined(s, &c, "weight 2: is bf16");
    group_end(s);
}

static void check(check_state *s)
{
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (int l = 0; l < 4; l++) {
            group_begin(s, "grouped_matmul %s %s %s", layout_names[l], tn_dtype_name(check_dtypes[d]), s->tier->name);
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                if (check_pass_over(s))
                    continue;
                check_case c = make_case(layouts[l], check_dtypes[d], &shapes[i]);
                check_run(s, &c);
            }
            group_end(s);
        }
    check_errors(s);
}

/* Qwen3-30B-A3B's gates and ups, rows spread evenly. */
static void bench(check_state *s)
{
    const bench_model *m = &bench_models[2];
    for (int l = 0; l < 2; l++)
        for (int t = 0; t < BENCH_TOKENS; t++) {
            const shape real = {bench_tokens[t] * m->top_k, m->hidden, 2 * m->inter, m->experts, 0, EVEN};
            double each = (double)(real.in * real.out), rows = (double)real.rows, groups = (double)real.groups;
            double in = 2 * rows * (double)real.in, out = 2 * rows * (double)real.out;
            double used = 2 * each * fmin(rows, groups);
            const bench_work forward = {used + in, out, 2 * each * rows};
            const bench_work backward = {used + in + out, 2 * each * groups + in, 4 * each * rows};
            if (!bench_wanted(s, TN_BF16, forward.flops, "grouped_matmul %s %s x%lld", layout_names[l], m->name,
                              (long long)real.rows))
                continue;
            check_case c = open_case(layouts[l], TN_BF16, &real);
            bench_run(s, &c, forward, backward);
        }
}

/* Copies matrix g of a golden's [E,K,N] into a parameter of a layout, or its gradient out of one's. */
static void golden_matrix(check_case *c, tn_layout layout, const tn_tensor *w, int64_t g, bool gradient)
{
    tn_tensor one = *w;
    one.data = (char *)w->data + (size_t)(g * w->stride[0]) * tn_dtype_size(w->dtype);
    one.ndim = 2;
    for (int d = 0; d < 2; d++) {
        int from = is_io(layout) ? d + 1 : 2 - d;
        one.shape[d] = w->shape[from];
        one.stride[d] = w->stride[from];
    }
    tn_tensor *to = (tn_tensor *)&c->site.param[TN_ROLE_WEIGHT].tensors[g];
    if (gradient)
        golden_grad_param(c, TN_ROLE_WEIGHT, g, &one);
    else
        golden_copy(to, &one);
}

/* The whole stack with its matrices turned or not. */
static tn_tensor golden_stack(tn_layout layout, const tn_tensor *w)
{
    tn_tensor t = *w;
    if (!is_io(layout)) {
        t.shape[1] = w->shape[2];
        t.shape[2] = w->shape[1];
        t.stride[1] = w->stride[2];
        t.stride[2] = w->stride[1];
    }
    return t;
}

static bool golden(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype)
{
    static const char *const names[] = {"out"};
    tn_tensor x, w, list, up, dx, dw;
    if (strcmp(op, "gmm") || !golden_get(file, n, "x", &x) || !golden_get(file, n, "w", &w) ||
        !golden_get(file, n, "group_list", &list) || !golden_get(file, n, "grad_out", &up) ||
        !golden_get(file, n, "grad_x", &dx) || !golden_get(file, n, "grad_w", &dw))
        return false;
    for (int l = 0; l < 4; l++) {
        const shape sh = {.rows = x.shape[0], .in = w.shape[1], .out = w.shape[2], .groups = w.shape[0]};
        check_case c = open_case(layouts[l], dtype, &sh);
        random_state r = {1};
        golden_copy(&c.call.in[0], &x);
        golden_copy(&c.call.in[1], &list);
        case_grads(&c, &r);
        golden_upstream(&c, 0, &up);
        golden_grad_in(&c, 0, &dx);
        for (int64_t g = 0; g < sh.groups && is_list(layouts[l]); g++) {
            golden_matrix(&c, layouts[l], &w, g, false);
            golden_matrix(&c, layouts[l], &dw, g, true);
        }
        if (!is_list(layouts[l])) {
            tn_tensor stack = golden_stack(layouts[l], &w), gradient = golden_stack(layouts[l], &dw);
            golden_copy((tn_tensor *)c.site.param[TN_ROLE_WEIGHT].tensors, &stack);
            golden_grad_param(&c, TN_ROLE_WEIGHT, 0, &gradient);
        }
        golden_run(s, &c, file, n, names);
    }
    return true;
}

const check_test check_grouped_matmul = {
    .name = "grouped_matmul", .tiers = CHECK_PRODUCTS, .check = check, .bench = bench, .golden = golden};
