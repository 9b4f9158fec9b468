/* MOE_EXPERTS and MOE_BLOCK. */
#include "host.h"
#include "products.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kernel[] = "npu_fused_moe";

/* Which experts the tokens of an experts case ask for. */
typedef enum pattern { SPREAD, ONE_EXPERT, LAST_ONLY, TWICE, CROWDED } pattern;

typedef struct shape {
    int64_t tokens, hidden, inter, experts, top_k, gap, shared; /* shared: 0 or the shared expert's width */
    pattern ids;
    bool renormalise, shared_gate, f32_weights;
} shape;

static const char *layout_name(int32_t layout)
{
    return layout == TN_LAYOUT_EXPERT_LIST ? "list" : layout == TN_LAYOUT_STACKED_OI ? "stacked oi" : "stacked io";
}

/* The weights of all experts in double, whatever their layout. */
typedef struct weights {
    double *gate, *up, *down; /* [E,I,H], [E,I,H], [E,H,I]                                          */
    double *router, *shared_scale;
    reference_mlp shared;
} weights;

static tn_tensor *fill_param(check_case *c, tn_role role, int64_t count, int32_t ndim, const int64_t *dims,
                             double deviation, random_state *r)
{
    tn_tensor *t = case_param(c, role, count, (tn_dtype)c->site.meaning[TN_AXIS_DTYPE], ndim, dims);
    fill_normal(&t[0], r, 0, deviation);
    size_t bytes = (size_t)tn_tensor_count(&t[0]) * tn_dtype_size(t[0].dtype);
    for (int64_t i = 1; i < count; i++) {
        if (tn_tensor_count(&t[0]) < 100000)
            fill_normal(&t[i], r, 0, deviation);
        else /* for timing only */
            memcpy(t[i].data, t[0].data, bytes);
    }
    return t;
}

static double *list_values(check_case *c, const tn_tensor *list, int64_t count)
{
    int64_t each = tn_tensor_count(&list[0]);
    double *all = case_alloc(c, (size_t)(each * count) * sizeof *all);
    for (int64_t e = 0; e < count; e++)
        for (int64_t i = 0; i < each; i++)
            all[e * each + i] = element_get(&list[e], i);
    return all;
}

/* One element of a stacked tensor: row of the product and index along k of one expert. */
static double stacked(const tn_tensor *t, bool io, int64_t e, int64_t row, int64_t k)
{
    return element_get(t, e * t->stride[0] + (io ? k : row) * t->stride[1] + (io ? row : k));
}

static void stacked_values(check_case *c, const shape *s, bool io, const tn_tensor *both, const tn_tensor *down,
                           weights *w)
{
    size_t each = (size_t)(s->experts * s->inter * s->hidden) * sizeof(double);
    w->gate = case_alloc(c, each);
    w->up = case_alloc(c, each);
    w->down = case_alloc(c, each);
    for (int64_t e = 0, at = 0; e < s->experts; e++)
        for (int64_t f = 0; f < s->inter; f++)
            for (int64_t i = 0; i < s->hidden; i++, at++) {
                w->gate[at] = stacked(both, io, e, f, i);
                w->up[at] = stacked(both, io, e, s->inter + f, i);
                w->down[(e * s->hidden + i) * s->inter + f] = stacked(down, io, e, i, f);
            }
}

static void make_experts(check_case *c, const shape *s, random_state *r, weights *w, bool values)
{
    int32_t layout = c->site.meaning[TN_AXIS_LAYOUT];
    double in = 1 / sqrt((double)s->hidden), out = 1 / sqrt((double)s->inter);
    int64_t e = s->experts, i = s->inter, h = s->hidden;
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        const tn_tensor *gate = fill_param(c, TN_ROLE_GATE, e, 2, (int64_t[]){i, h}, in, r);
        const tn_tensor *up = fill_param(c, TN_ROLE_UP, e, 2, (int64_t[]){i, h}, in, r);
        const tn_tensor *down = fill_param(c, TN_ROLE_DOWN, e, 2, (int64_t[]){h, i}, out, r);
        if (values) {
            w->gate = list_values(c, gate, e);
            w->up = list_values(c, up, e);
            w->down = list_values(c, down, e);
        }
        return;
    }
    bool io = layout == TN_LAYOUT_STACKED_IO;
    const int64_t both_dims[] = {e, io ? h : 2 * i, io ? 2 * i : h}, down_dims[] = {e, io ? i : h, io ? h : i};
    const tn_tensor *both = fill_param(c, TN_ROLE_GATE_UP, 1, 3, both_dims, in, r);
    const tn_tensor *down = fill_param(c, TN_ROLE_DOWN, 1, 3, down_dims, out, r);
    if (values)
        stacked_values(c, s, io, both, down, w);
}

static void make_block(check_case *c, const shape *s, random_state *r, weights *w)
{
    double in = 1 / sqrt((double)s->hidden);
    const tn_tensor *router = fill_param(c, TN_ROLE_ROUTER, 1, 2, (int64_t[]){s->experts, s->hidden}, 2 * in, r);
    c->site.meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    c->site.features |= (s->renormalise ? TN_HAS_RENORM : 0) | (s->f32_weights ? TN_HAS_F32_ROUTING : 0);
    w->router = case_values(c, router);
    if (!s->shared)
        return;
    c->site.features |= TN_HAS_SHARED_EXPERT | (s->shared_gate ? TN_HAS_SHARED_GATE : 0);
    c->site.dim[TN_DIM_SHARED_INTER] = s->shared;
    int64_t narrow[] = {s->shared, s->hidden}, wide[] = {s->hidden, s->shared}, one[] = {1, s->hidden};
    w->shared = (reference_mlp){.dtype = router->dtype, .hidden = s->hidden, .inter = s->shared};
    w->shared.gate = case_values(c, fill_param(c, TN_ROLE_SHARED_GATE, 1, 2, narrow, in, r));
    w->shared.up = case_values(c, fill_param(c, TN_ROLE_SHARED_UP, 1, 2, narrow, in, r));
    w->shared.down = case_values(c, fill_param(c, TN_ROLE_SHARED_DOWN, 1, 2, wide, 1 / sqrt((double)s->shared), r));
    if (s->shared_gate)
        w->shared_scale = case_values(c, fill_param(c, TN_ROLE_SHARED_EXPERT_GATE, 1, 2, one, in, r));
}

/* ---- the reference ---------------------------------------------------------------------------------------- */

/* The experts of a token with their weights, and their order. */
typedef struct routes {
    int64_t id[64];
    estimate weight[64];
} routes;

/* Which experts, from logits in double. False where rounding could change the choice. */
static bool choose(const check_case *c, const shape *s, const weights *w, const double *x, routes *out)
{
    estimate exact[4096], logit[256];
    double sum = 0, error = 0, kept = 0;
    bool taken[256] = {false};
    for (int64_t i = 0; i < s->hidden; i++)
        exact[i] = estimate_exact(x[i]);
    for (int64_t e = 0; e < s->experts; e++) {
        logit[e] =
            estimate_dot((tn_dtype)c->site.meaning[TN_AXIS_DTYPE], exact, w->router + e * s->hidden, 1, s->hidden, 0);
        sum += exp(logit[e].value);
        error = fmax(error, logit[e].error);
    }
    for (int64_t j = 0; j < s->top_k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < s->experts; e++)
            if (!taken[e] && (best < 0 || logit[e].value > logit[best].value))
                best = e;
        taken[best] = true;
        out->id[j] = best;
        kept += exp(logit[best].value) / sum;
    }
    for (int64_t e = 0; e < s->experts; e++)
        if (!taken[e] && logit[out->id[s->top_k - 1]].value - logit[e].value < 3 * error)
            return false;
    for (int64_t j = 0; j < s->top_k; j++) {
        double p = exp(logit[out->id[j]].value) / sum / (s->renormalise ? kept : 1);
        /* e^x, its sum and the quotient: each logit may be off by error, in both; and some f32 roundings. */
        double relative = expm1((s->renormalise ? 4 : 2) * error) + (8 + (double)s->experts) * unit_roundoff(TN_F32);
        out->weight[j] = (estimate){p, p * relative};
        if (!s->f32_weights)
            out->weight[j] = estimate_rounded((tn_dtype)c->site.meaning[TN_AXIS_DTYPE], out->weight[j]);
    }
    return true;
}

/* One token: the experts' results times their weights, summed in f32; then the shared expert's. */
static void reference_token(check_case *c, const shape *s, const weights *w, const double *x, const routes *to,
                            int64_t token, estimate *h, estimate *y)
{
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    int64_t each = s->inter * s->hidden;
    estimate sum[4096];
    double magnitude[4096];
    for (int64_t i = 0; i < s->hidden; i++) {
        sum[i] = estimate_exact(0);
        magnitude[i] = 0;
    }
    for (int64_t j = 0; j < s->top_k; j++) {
        int64_t e = to->id[j];
        const reference_mlp m = {.dtype = dtype,
                                 .hidden = s->hidden,
                                 .inter = s->inter,
                                 .gate = w->gate + e * each,
                                 .up = w->up + e * each,
                                 .down = w->down + e * each};
        reference_mlp_token(&m, x, h, y);
        for (int64_t i = 0; i < s->hidden; i++) {
            estimate part = estimate_product(s->f32_weights ? TN_F32 : dtype, y[i], to->weight[j]);
            sum[i].value += part.value;
            sum[i].error += part.error;
            magnitude[i] += fabs(part.value) + part.error;
        }
    }
    if (s->shared)
        reference_mlp_token(&w->shared, x, h, y);
    for (int64_t i = 0; i < s->hidden; i++) {
        sum[i].error += (double)s->top_k * unit_roundoff(TN_F32) * magnitude[i];
        estimate result = estimate_rounded(dtype, sum[i]);
        if (s->shared) {
            estimate scale = estimate_exact(1), exact[4096];
            for (int64_t k = 0; k < s->hidden && s->shared_gate; k++)
                exact[k] = estimate_exact(x[k]);
            if (s->shared_gate) {
                estimate z = estimate_dot(dtype, exact, w->shared_scale, 1, s->hidden, 0);
                double g = 1 / (1 + exp(-z.value)); /* its slope is at most 1/4 */
                scale = estimate_rounded(dtype, (estimate){g, z.error / 4 + 8 * unit_roundoff(TN_F32) * g});
            }
            estimate part = estimate_product(dtype, y[i], scale);
            result.value += part.value;
            result.error += part.error;
            result = estimate_rounded(dtype, result);
        }
        c->want[0][token * s->hidden + i] = result.value;
        c->bound[0][token * s->hidden + i] = result.error;
    }
}

/* ---- cases -------------------------------------------------------------------------------------------------- */

static check_case open_case(tn_op op, tn_layout layout, tn_dtype dtype, const shape *s)
{
    check_case c;
    case_init(&c, kernel, op, dtype);
    c.site.meaning[TN_AXIS_LAYOUT] = layout;
    c.site.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    c.site.dim[TN_DIM_HIDDEN] = s->hidden;
    c.site.dim[TN_DIM_INTER] = s->inter;
    c.site.dim[TN_DIM_EXPERTS] = s->experts;
    c.site.dim[TN_DIM_TOP_K] = s->top_k;
    snprintf(c.what, sizeof c.what, "tokens %lld, %lld of %lld experts %lld -> %lld, gap %lld, ids %d, shared %lld%s",
             (long long)s->tokens, (long long)s->top_k, (long long)s->experts, (long long)s->hidden,
             (long long)s->inter, (long long)s->gap, (int)s->ids, (long long)s->shared,
             s->f32_weights ? ", f32 weights" : "");
    return c;
}

static int32_t pick(const shape *s, int64_t token, int64_t j, random_state *r)
{
    int64_t e = s->experts;
    switch (s->ids) {
    case ONE_EXPERT:
        return (int32_t)(j % e);
    case LAST_ONLY:
        return (int32_t)(e - 1 - j % e);
    case TWICE:
        return (int32_t)(token % e);
    case CROWDED:
        return (int32_t)(random_below(r, 8) ? (1 + j) % e : random_below(r, e));
    default:
        return (int32_t)((token * 7 + j + random_below(r, e - s->top_k + 1)) % e);
    }
}

static void make_io(check_case *c, const shape *s, random_state *r)
{
    int64_t dims[] = {s->tokens, s->hidden}, stride[] = {s->hidden + s->gap, 1};
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    fill_normal(case_in(c, dtype, 2, dims, s->gap ? stride : NULL), r, 0, 1);
    stride[0] += 1;
    case_out(c, dtype, 2, dims, s->gap ? stride : NULL);
}

static check_case experts_case(tn_layout layout, tn_dtype dtype, const shape *s)
{
    check_case c = open_case(TN_OP_MOE_EXPERTS, layout, dtype, s);
    random_state r = {(uint64_t)(s->tokens * 131 + s->hidden * 7 + s->inter + s->experts * 3)};
    int64_t dims[] = {s->tokens, s->top_k}, stride[] = {s->top_k + s->gap, 1};
    weights w = {0};
    make_experts(&c, s, &r, &w, true);
    make_io(&c, s, &r);
    tn_tensor *given = case_in(&c, s->f32_weights ? TN_F32 : dtype, 2, dims, s->gap ? stride : NULL);
    fill_normal(given, &r, 0.3, 0.2);
    tn_tensor *ids = case_in(&c, TN_I32, 2, dims, s->gap ? stride : NULL);
    c.site.features |= s->f32_weights ? TN_HAS_F32_ROUTING : 0;
    case_want(&c, 0);
    double *x = case_values(&c, &c.call.in[0]);
    estimate *h = case_alloc(&c, (size_t)s->inter * sizeof *h), *y = case_alloc(&c, (size_t)s->hidden * sizeof *y);
    for (int64_t t = 0; t < s->tokens; t++) {
        routes to;
        for (int64_t j = 0; j < s->top_k; j++) {
            to.id[j] = pick(s, t, j, &r);
            element_set(ids, t * ids->stride[0] + j, (double)to.id[j]);
            to.weight[j] = estimate_exact(element_get(given, t * given->stride[0] + j));
        }
        reference_token(&c, s, &w, x + t * s->hidden, &to, t, h, y);
    }
    case_grads(&c, &r);
    return c;
}

static check_case block_case(tn_layout layout, tn_dtype dtype, const shape *s)
{
    check_case c = open_case(TN_OP_MOE_BLOCK, layout, dtype, s);
    random_state r = {(uint64_t)(s->tokens * 137 + s->hidden * 11 + s->inter + s->experts * 5)};
    weights w = {0};
    make_experts(&c, s, &r, &w, true);
    make_block(&c, s, &r, &w);
    make_io(&c, s, &r);
    case_want(&c, 0);
    tn_tensor *x = &c.call.in[0];
    double *row = case_alloc(&c, (size_t)s->hidden * sizeof *row);
    estimate *h = case_alloc(&c, (size_t)(s->inter + s->shared) * sizeof *h);
    estimate *y = case_alloc(&c, (size_t)s->hidden * sizeof *y);
    for (int64_t t = 0; t < s->tokens; t++) {
        routes to;
        for (int tries = 0;; tries++) { /* another token until its choice is clear */
            for (int64_t i = 0; i < s->hidden; i++)
                row[i] = element_get(x, t * x->stride[0] + i);
            if (choose(&c, s, &w, row, &to))
                break;
            if (tries == 10000) {
                fprintf(stderr, "check_kernels: %s: no token with a clear choice\n", c.what);
                exit(1);
            }
            for (int64_t i = 0; i < s->hidden; i++)
                element_set(x, t * x->stride[0] + i, random_normal(&r));
        }
        reference_token(&c, s, &w, row, &to, t, h, y);
    }
    case_grads(&c, &r);
    return c;
}

/* tokens, hidden, inter, experts, top_k, gap, shared, ids, renormalise, shared gate, f32 weights. Around 16 tokens of a
 * call and of an expert, 64 and more that are cut between threads, and blocks of 512. Experts of more than 8192
 * elements take tiles. */
static const shape expert_shapes[] = {
    {0, 8, 4, 3, 1, 0, 0, SPREAD, false, false, false},        {1, 1, 1, 1, 1, 0, 0, SPREAD, false, false, true},
    {1, 48, 33, 16, 8, 0, 0, SPREAD, false, false, false},     {2, 17, 5, 4, 2, 3, 0, SPREAD, false, false, true},
    {5, 33, 18, 7, 3, 0, 0, TWICE, false, false, false},       {16, 24, 20, 8, 2, 1, 0, SPREAD, false, false, false},
    {16, 9, 31, 5, 4, 0, 0, ONE_EXPERT, false, false, true},   {17, 16, 12, 40, 2, 0, 0, SPREAD, false, false, false},
    {40, 31, 7, 6, 2, 0, 0, CROWDED, false, false, false},     {70, 20, 9, 3, 2, 5, 0, LAST_ONLY, false, false, false},
    {130, 18, 16, 4, 1, 0, 0, ONE_EXPERT, false, false, true}, {300, 10, 6, 5, 2, 0, 0, CROWDED, false, false, false},
    {530, 6, 5, 9, 3, 1, 0, SPREAD, false, false, false},      {70, 97, 86, 3, 2, 1, 0, SPREAD, false, false, false},
    {45, 66, 131, 2, 1, 0, 0, ONE_EXPERT, false, false, true},
};

static const shape block_shapes[] = {
    {0, 8, 4, 3, 1, 0, 0, SPREAD, true, false, false},   {1, 40, 24, 16, 4, 0, 0, SPREAD, true, false, false},
    {1, 16, 8, 8, 8, 0, 0, SPREAD, false, false, false}, {3, 33, 9, 5, 2, 1, 21, SPREAD, false, true, false},
    {16, 20, 18, 9, 3, 0, 7, SPREAD, true, false, true}, {17, 24, 12, 20, 2, 0, 40, SPREAD, true, true, false},
    {45, 31, 5, 6, 1, 3, 0, SPREAD, false, false, true}, {100, 18, 14, 17, 4, 0, 10, SPREAD, true, true, false},
    {600, 12, 6, 4, 2, 0, 5, SPREAD, true, true, false}, {60, 96, 88, 4, 2, 3, 90, SPREAD, true, true, false},
};

static void check_group(check_state *s, tn_op op, tn_layout layout, tn_dtype dtype)
{
    bool block = op == TN_OP_MOE_BLOCK;
    size_t count = block ? sizeof block_shapes / sizeof *block_shapes : sizeof expert_shapes / sizeof *expert_shapes;
    group_begin(s, "moe %s %s %s %s", block ? "block" : "experts", layout_name(layout), tn_dtype_name(dtype),
                s->tier->name);
    for (size_t i = 0; i < count; i++) {
        check_case c =
            block ? block_case(layout, dtype, &block_shapes[i]) : experts_case(layout, dtype, &expert_shapes[i]);
        check_run(s, &c);
    }
    group_end(s);
}

static void check_errors(check_state *s)
{
    group_begin(s, "moe refused %s", s->tier->name);
    for (int many = 0; many < 2; many++) {
        const shape one = {many ? 40 : 5, 12, 8, 6, 2, 0, 0, SPREAD, true, false, false};
        check_case c = experts_case(TN_LAYOUT_EXPERT_LIST, TN_BF16, &one);
        element_set(&c.call.in[2], 2 * 3 + 1, 6);
        check_refused(s, &c, "token 3 asks for expert 6");
        c = experts_case(TN_LAYOUT_STACKED_OI, TN_F32, &one);
        element_set(&c.call.in[2], 2 * 4, -1);
        check_refused(s, &c, "token 4 asks for expert -1");
        c = block_case(TN_LAYOUT_EXPERT_LIST, TN_BF16, &one);
        element_set(&c.call.in[0], 12 * 2 + 5, NAN);
        check_refused(s, &c, "scores of token 2 are not numbers");
    }
    const shape plain = {1, 16, 7, 4, 2, 0, 0, SPREAD, true, false, false};
    check_case c = block_case(TN_LAYOUT_EXPERT_LIST, TN_F32, &plain);
    c.site.features |= TN_HAS_GROUPS;
    c.site.dim[TN_DIM_GROUPS] = 3;
    check_declined(s, &c, "groups: 3 do not divide 4 experts");
    c = experts_case(TN_LAYOUT_EXPERT_LIST, TN_F32, &plain);
    c.site.meaning[TN_AXIS_ACT] = TN_ACT_RELU;
    check_declined(s, &c, "relu");
    c = experts_case(TN_LAYOUT_STACKED_IO, TN_F32, &plain);
    c.site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_STACKED_OI;
    check_declined(s, &c, "gate_up");
    c = block_case(TN_LAYOUT_EXPERT_LIST, TN_F32, &plain);
    c.site.param[TN_ROLE_ROUTER].count = 0;
    check_declined(s, &c, "router");
    group_end(s);
}

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static void check(check_state *s)
{
    for (int d = 0; d < 3; d++)
        for (int layout = TN_LAYOUT_EXPERT_LIST; layout <= TN_LAYOUT_STACKED_IO; layout++) {
            check_group(s, TN_OP_MOE_EXPERTS, (tn_layout)layout, dtypes[d]);
            check_group(s, TN_OP_MOE_BLOCK, (tn_layout)layout, dtypes[d]);
        }
    check_errors(s);
}

/* A block of Qwen3-30B-A3B, and one of 64 experts of 1024 -> 384. Backward: see mlp.c. */
static void bench_block(check_state *s, const bench_model *m, tn_layout layout, tn_dtype dtype, int64_t tokens)
{
    const shape real = {tokens, m->hidden, m->inter, m->experts, m->top_k, 0, 0, SPREAD, true, false, false};
    double expert = 3.0 * (double)(m->hidden * m->inter), size = (double)tn_dtype_size(dtype), k = (double)m->top_k;
    double e = (double)m->experts, io = (double)(tokens * m->hidden) * size;
    double used = e * (1 - pow(1 - k / e, (double)tokens)); /* when each token takes k at random */
    const bench_work forward = {used * expert * size + io, io, 2 * expert * k * (double)tokens};
    const bench_work backward = {used * expert * size + 2 * io, e * expert * size + io, forward.flops * 8 / 3};
    if (!bench_wanted(s, dtype, forward.flops, "moe block %s %s x%lld", layout_name(layout), m->name,
                      (long long)tokens))
        return;
    check_case c = open_case(TN_OP_MOE_BLOCK, layout, dtype, &real);
    random_state r = {1};
    weights w = {0};
    make_experts(&c, &real, &r, &w, false);
    make_block(&c, &real, &r, &w);
    make_io(&c, &real, &r);
    bench_run(s, &c, forward, backward);
}

static void bench(check_state *s)
{
    static const bench_model small = {"64x384", 1024, 384, 0, 0, 0, 64, 8};
    for (int d = 0; d < 3; d++)
        for (int t = 0; t < BENCH_TOKENS; t++) {
            bench_block(s, &bench_models[2], TN_LAYOUT_EXPERT_LIST, dtypes[d], bench_tokens[t]);
            for (int layout = TN_LAYOUT_EXPERT_LIST; layout <= TN_LAYOUT_STACKED_IO; layout++)
                bench_block(s, &small, (tn_layout)layout, dtypes[d], bench_tokens[t]);
        }
}

/* Rows first .. first + rows - 1 of matrix e of a stack. */
static tn_tensor slice(const tn_tensor *stack, int64_t e, int64_t first, int64_t rows)
{
    tn_tensor t = tn_tensor_dense(NULL, stack->dtype, 2, (int64_t[]){rows, stack->shape[2]});
    t.data =
        (char *)stack->data + (size_t)(e * stack->stride[0] + first * stack->stride[1]) * tn_dtype_size(stack->dtype);
    return t;
}

/* A stack of the golden as a parameter, and its gradient. */
static void golden_stack(check_case *c, tn_role role, const tn_tensor *stack, const tn_tensor *gradient)
{
    golden_copy((tn_tensor *)c->site.param[role].tensors, stack);
    golden_grad_param(c, role, 0, gradient);
}

static void golden_list(check_case *c, tn_role role, const tn_tensor *stack, const tn_tensor *gradient, int64_t first)
{
    int64_t rows = c->site.param[role].tensors[0].shape[0];
    for (int64_t e = 0; e < stack->shape[0]; e++) {
        tn_tensor part = slice(stack, e, first, rows), grad = slice(gradient, e, first, rows);
        golden_copy((tn_tensor *)&c->site.param[role].tensors[e], &part);
        golden_grad_param(c, role, e, &grad);
    }
}

static const struct {
    const char *name, *gradient;
    tn_role role;
} golden_shared[] = {{"shared_gate", "grad_shared_gate", TN_ROLE_SHARED_GATE},
                     {"shared_up", "grad_shared_up", TN_ROLE_SHARED_UP},
                     {"shared_down", "grad_shared_down", TN_ROLE_SHARED_DOWN},
                     {"shared_expert_gate", "grad_shared_expert_gate", TN_ROLE_SHARED_EXPERT_GATE}};

/* What a case of the golden says, with room for its tensors. */
static check_case golden_open(const tn_safetensors *file, int64_t n, tn_dtype dtype, tn_layout layout,
                              const tn_tensor *hidden, const tn_tensor *router, const tn_tensor *down)
{
    const shape sh = {.tokens = hidden->shape[0],
                      .hidden = hidden->shape[1],
                      .inter = down->shape[layout == TN_LAYOUT_STACKED_IO ? 1 : 2],
                      .experts = router->shape[0],
                      .top_k = (int64_t)golden_number(file, n, "top_k", 1)};
    int64_t e = sh.experts, i = sh.inter, h = sh.hidden;
    check_case c = open_case(TN_OP_MOE_BLOCK, layout, dtype, &sh);
    c.site.meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    c.site.features = golden_number(file, n, "norm_topk_prob", 0) != 0 ? TN_HAS_RENORM : 0;
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        case_param(&c, TN_ROLE_GATE, e, dtype, 2, (int64_t[]){i, h});
        case_param(&c, TN_ROLE_UP, e, dtype, 2, (int64_t[]){i, h});
        case_param(&c, TN_ROLE_DOWN, e, dtype, 2, (int64_t[]){h, i});
    } else {
        bool io = layout == TN_LAYOUT_STACKED_IO;
        case_param(&c, TN_ROLE_GATE_UP, 1, dtype, 3, (int64_t[]){e, io ? h : 2 * i, io ? 2 * i : h});
        case_param(&c, TN_ROLE_DOWN, 1, dtype, 3, (int64_t[]){e, io ? i : h, io ? h : i});
    }
    golden_copy(case_param(&c, TN_ROLE_ROUTER, 1, dtype, 2, router->shape), router);
    for (int j = 0; j < 4; j++) {
        tn_tensor t;
        if (!golden_get(file, n, golden_shared[j].name, &t))
            continue;
        c.site.features |= TN_HAS_SHARED_EXPERT | (j == 3 ? TN_HAS_SHARED_GATE : 0);
        c.site.dim[TN_DIM_SHARED_INTER] = j == 0 ? t.shape[0] : c.site.dim[TN_DIM_SHARED_INTER];
        golden_copy(case_param(&c, golden_shared[j].role, 1, dtype, 2, t.shape), &t);
    }
    golden_copy(case_in(&c, dtype, 2, hidden->shape, NULL), hidden);
    case_out(&c, dtype, 2, hidden->shape, NULL);
    return c;
}

static bool golden_block(check_state *s, const tn_safetensors *file, int64_t n, tn_dtype dtype, tn_layout layout)
{
    static const char *const names[] = {"out"};
    bool io = layout == TN_LAYOUT_STACKED_IO;
    tn_tensor hidden, router, both, down, up, dx, dboth, ddown, drouter, t;
    if (!golden_get(file, n, "hidden", &hidden) || !golden_get(file, n, "router", &router) ||
        !golden_get(file, n, io ? "gate_up_v4" : "gate_up_v5", &both) ||
        !golden_get(file, n, io ? "down_v4" : "down_v5", &down) || !golden_get(file, n, "grad_out", &up) ||
        !golden_get(file, n, "grad_hidden", &dx) || !golden_get(file, n, "grad_router", &drouter) ||
        !golden_get(file, n, io ? "grad_gate_up_v4" : "grad_gate_up_v5", &dboth) ||
        !golden_get(file, n, io ? "grad_down_v4" : "grad_down_v5", &ddown))
        return false;
    check_case c = golden_open(file, n, dtype, layout, &hidden, &router, &down);
    random_state r = {1};
    case_grads(&c, &r);
    golden_upstream(&c, 0, &up);
    golden_grad_in(&c, 0, &dx);
    golden_grad_param(&c, TN_ROLE_ROUTER, 0, &drouter);
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        golden_list(&c, TN_ROLE_GATE, &both, &dboth, 0);
        golden_list(&c, TN_ROLE_UP, &both, &dboth, both.shape[1] / 2);
        golden_list(&c, TN_ROLE_DOWN, &down, &ddown, 0);
    } else {
        golden_stack(&c, TN_ROLE_GATE_UP, &both, &dboth);
        golden_stack(&c, TN_ROLE_DOWN, &down, &ddown);
    }
    for (int j = 0; j < 4; j++)
        if (golden_get(file, n, golden_shared[j].gradient, &t))
            golden_grad_param(&c, golden_shared[j].role, 0, &t);
    golden_run(s, &c, file, n, names);
    return true;
}

static bool golden(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype)
{
    bool good = !strcmp(op, "moe");
    for (int layout = TN_LAYOUT_EXPERT_LIST; good && layout <= TN_LAYOUT_STACKED_IO; layout++)
        good = golden_block(s, file, n, dtype, (tn_layout)layout);
    return good;
}

const check_test check_moe = {.name = "moe",
                              .tiers = TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_AVX512_BF16 | TN_CPU_AMX_BF16 | TN_CPU_NEON,
                              .check = check,
                              .bench = bench,
                              .golden = golden};
