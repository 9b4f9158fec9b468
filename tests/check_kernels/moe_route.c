/* MOE_ROUTE: routers of every kind. */
#include "host.h"
#include "routing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kernel[] = "npu_fused_moe";

/* What a router has. TIES: small whole numbers, whose sums are exact and often equal. */
enum { BIAS = 1, F32_WEIGHT = 2, TIES = 4, NARROW_CORRECTION = 8 };

typedef struct shape {
    int64_t tokens, hidden, experts, top_k, gap;
    tn_score score;
    uint64_t features;
    int64_t groups, top_groups;
    int has;
} shape;

#define RENORM TN_HAS_RENORM
#define SCALE TN_HAS_ROUTE_SCALE
#define CORRECT TN_HAS_CORRECTION_BIAS
#define GROUPS TN_HAS_GROUPS
#define F32 (TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING)

/* What models have (Qwen, Mixtral, DeepSeek-V2 and -V3, GLM, gpt_oss, Ernie), and around the boundaries: few tokens and
 * many, more than 256, 16 experts that a thread takes. */
static const shape shapes[] = {
    {0, 12, 4, 2, 0, TN_SCORE_SOFTMAX, RENORM, 0, 0, 0},
    {1, 1, 1, 1, 0, TN_SCORE_SOFTMAX, 0, 0, 0, 0},
    {1, 40, 33, 4, 0, TN_SCORE_SOFTMAX, RENORM, 0, 0, 0},
    {3, 33, 16, 2, 1, TN_SCORE_SOFTMAX, TN_HAS_F32_ROUTING | RENORM, 0, 0, 0},
    {8, 20, 17, 3, 0, TN_SCORE_SOFTMAX, 0, 0, 0, BIAS},
    {9, 31, 12, 12, 2, TN_SCORE_SOFTMAX, RENORM | SCALE, 0, 0, 0},
    {40, 24, 16, 3, 0, TN_SCORE_SOFTMAX, F32 | GROUPS | SCALE, 4, 2, 0},
    {5, 24, 12, 2, 0, TN_SCORE_SOFTMAX, F32 | GROUPS, 3, 1, F32_WEIGHT},
    {2, 48, 24, 4, 0, TN_SCORE_SIGMOID, F32 | CORRECT | RENORM | SCALE | GROUPS, 4, 2, 0},
    {50, 17, 16, 4, 3, TN_SCORE_SIGMOID, F32 | CORRECT | RENORM | SCALE | GROUPS, 8, 3, F32_WEIGHT},
    {20, 16, 20, 2, 0, TN_SCORE_SIGMOID, F32 | CORRECT | RENORM, 0, 0, NARROW_CORRECTION},
    {7, 29, 9, 3, 0, TN_SCORE_SIGMOID, 0, 0, 0, BIAS},
    {12, 16, 10, 2, 0, TN_SCORE_SOFTMAX, F32 | CORRECT | RENORM, 0, 0, F32_WEIGHT},
    {6, 32, 32, 4, 0, TN_SCORE_TOPK_SOFTMAX, 0, 0, 0, BIAS},
    {33, 19, 8, 2, 1, TN_SCORE_TOPK_SOFTMAX, SCALE, 0, 0, 0},
    {10, 19, 7, 3, 0, TN_SCORE_TOPK_SOFTMAX, RENORM | TN_HAS_F32_ROUTER, 0, 0, F32_WEIGHT},
    {300, 10, 6, 1, 0, TN_SCORE_SOFTMAX, RENORM, 0, 0, 0},
    {530, 8, 5, 2, 1, TN_SCORE_SIGMOID, RENORM | TN_HAS_F32_ROUTING, 0, 0, 0},
    {4, 6, 16, 6, 0, TN_SCORE_SOFTMAX, RENORM, 0, 0, TIES},
    {25, 6, 24, 5, 0, TN_SCORE_SIGMOID, F32 | RENORM, 0, 0, TIES},
    {30, 5, 18, 4, 0, TN_SCORE_TOPK_SOFTMAX, 0, 0, 0, TIES},
    {30, 5, 16, 3, 0, TN_SCORE_SIGMOID, F32 | GROUPS, 4, 2, TIES},
};

static void fill_whole(tn_tensor *t, random_state *r)
{
    for (int64_t i = 0, n = tn_tensor_count(t); i < n; i++)
        element_set(t, element_offset(t, i), (double)random_below(r, 3) - 1);
}

static void fill(tn_tensor *t, random_state *r, const shape *s, double deviation)
{
    if (s->has & TIES)
        fill_whole(t, r);
    else
        fill_normal(t, r, 0, deviation);
}

static check_case open_case(tn_dtype dtype, const shape *s)
{
    check_case c;
    case_init(&c, kernel, TN_OP_MOE_ROUTE, dtype);
    c.site.meaning[TN_AXIS_SCORE] = (int32_t)s->score;
    c.site.meaning[TN_AXIS_WEIGHT] = s->has & F32_WEIGHT ? TN_F32 : (int32_t)dtype;
    c.site.features = s->features;
    c.site.dim[TN_DIM_HIDDEN] = s->hidden;
    c.site.dim[TN_DIM_EXPERTS] = s->experts;
    c.site.dim[TN_DIM_TOP_K] = s->top_k;
    c.site.dim[TN_DIM_GROUPS] = s->groups;
    c.site.dim[TN_DIM_TOP_GROUPS] = s->top_groups;
    c.site.num[TN_NUM_SCALE] = s->features & SCALE ? 2.5 : 0;
    snprintf(c.what, sizeof c.what, "tokens %lld, %lld of %lld, hidden %lld, score %d, features %llx, has %d",
             (long long)s->tokens, (long long)s->top_k, (long long)s->experts, (long long)s->hidden, (int)s->score,
             (unsigned long long)s->features, s->has);
    int64_t x[] = {s->tokens, s->hidden}, y[] = {s->tokens, s->top_k}, router[] = {s->experts, s->hidden};
    int64_t x_stride[] = {s->hidden + s->gap, 1}, y_stride[] = {s->top_k + s->gap, 1};
    case_in(&c, dtype, 2, x, s->gap ? x_stride : NULL);
    case_out(&c, s->features & TN_HAS_F32_ROUTING ? TN_F32 : dtype, 2, y, s->gap ? y_stride : NULL);
    case_out(&c, TN_I32, 2, y, s->gap ? y_stride : NULL);
    case_param(&c, TN_ROLE_ROUTER, 1, s->has & F32_WEIGHT ? TN_F32 : dtype, 2, router);
    if (s->has & BIAS)
        case_param(&c, TN_ROLE_ROUTER_BIAS, 1, dtype, 1, &s->experts);
    if (s->features & CORRECT)
        case_param(&c, TN_ROLE_CORRECTION_BIAS, 1, s->has & NARROW_CORRECTION ? dtype : TN_F32, 1, &s->experts);
    return c;
}

static double *param_values(check_case *c, tn_role role)
{
    const tn_param *p = &c->site.param[role];
    return p->count ? case_values(c, p->tensors) : NULL;
}

static reference_router reference(check_case *c, const shape *s)
{
    return (reference_router){.dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE],
                              .score = s->score,
                              .hidden = s->hidden,
                              .experts = s->experts,
                              .top_k = s->top_k,
                              .groups = s->features & GROUPS ? s->groups : 0,
                              .top_groups = s->top_groups,
                              .renormalise = s->features & RENORM,
                              .f32_logits = s->features & TN_HAS_F32_ROUTER,
                              .scale = c->site.num[TN_NUM_SCALE],
                              .weight = param_values(c, TN_ROLE_ROUTER),
                              .bias = param_values(c, TN_ROLE_ROUTER_BIAS),
                              .correction = param_values(c, TN_ROLE_CORRECTION_BIAS)};
}

/* Token t: another one until its choice is clear. Its dlogits to dl. */
static void make_token(check_case *c, const shape *s, const reference_router *r, int64_t t, random_state *random,
                       estimate *dl)
{
    tn_tensor *x = &c->call.in[0], *up = &c->grads.out[0];
    double row[4096];
    reference_routes to;
    estimate upstream[ROUTING_TOP_K];
    for (int tries = 0;; tries++) {
        for (int64_t i = 0; i < s->hidden; i++)
            row[i] = element_get(x, t * x->stride[0] + i);
        if (reference_route(r, row, &to))
            break;
        if (tries == 10000) {
            fprintf(stderr, "check_kernels: %s: no token with a clear choice\n", c->what);
            exit(1);
        }
        for (int64_t i = 0; i < s->hidden; i++)
            element_set(x, t * x->stride[0] + i,
                        s->has & TIES ? (double)random_below(random, 3) - 1 : random_normal(random));
    }
    for (int64_t j = 0; j < s->top_k; j++) {
        estimate w = estimate_rounded(c->call.out[0].dtype, to.weight[j]);
        c->want[0][t * s->top_k + j] = w.value;
        c->bound[0][t * s->top_k + j] = w.error;
        c->want[1][t * s->top_k + j] = (double)to.id[j];
        upstream[j] = estimate_exact(element_get(up, t * up->stride[0] + j));
    }
    reference_route_grad(r, &to, upstream, dl);
    for (int64_t e = 0; e < s->experts; e++)
        dl[e] = estimate_rounded(s->has & F32_WEIGHT ? TN_F32 : r->dtype, dl[e]);
}

/* dx = dl W, dW = dl^T x, dbias = the sum of dl. */
static void make_gradients(check_case *c, const shape *s, const reference_router *r, const estimate *dl)
{
    const double *x = case_values(c, &c->call.in[0]);
    double *ones = case_alloc(c, (size_t)s->tokens * sizeof *ones);
    estimate *column = case_alloc(c, (size_t)s->tokens * sizeof *column);
    tn_dtype weight = c->site.param[TN_ROLE_ROUTER].tensors->dtype;
    case_want_in(c, 0);
    case_want_param(c, TN_ROLE_ROUTER);
    for (int64_t t = 0; t < s->tokens; t++) {
        ones[t] = 1;
        for (int64_t i = 0; i < s->hidden; i++)
            estimate_store(estimate_dot(r->dtype, dl + t * s->experts, r->weight + i, s->hidden, s->experts, 0),
                           c->want_in[0], c->bound_in[0], t * s->hidden + i);
    }
    if (r->bias)
        case_want_param(c, TN_ROLE_ROUTER_BIAS);
    if (r->correction) /* zeros */
        case_want_param(c, TN_ROLE_CORRECTION_BIAS);
    for (int64_t e = 0; e < s->experts; e++) {
        for (int64_t t = 0; t < s->tokens; t++)
            column[t] = dl[t * s->experts + e];
        for (int64_t i = 0; i < s->hidden; i++)
            estimate_store(estimate_dot(weight, column, x + i, s->hidden, s->tokens, 0), c->want_param[TN_ROLE_ROUTER],
                           c->bound_param[TN_ROLE_ROUTER], e * s->hidden + i);
        if (r->bias)
            estimate_store(estimate_dot(r->dtype, column, ones, 1, s->tokens, 0), c->want_param[TN_ROLE_ROUTER_BIAS],
                           c->bound_param[TN_ROLE_ROUTER_BIAS], e);
    }
}

static check_case make_case(tn_dtype dtype, const shape *s)
{
    check_case c = open_case(dtype, s);
    random_state r = {(uint64_t)(s->tokens * 131 + s->hidden * 7 + s->experts * 3 + s->top_k)};
    for (int role = TN_ROLE_ROUTER; role <= TN_ROLE_CORRECTION_BIAS; role++)
        if (c.site.param[role].count)
            fill((tn_tensor *)c.site.param[role].tensors, &r, s,
                 role == TN_ROLE_ROUTER ? 2 / sqrt((double)s->hidden) : 0.3);
    fill(&c.call.in[0], &r, s, 1);
    case_grads(&c, &r);
    case_want(&c, 0);
    case_want(&c, 1);
    reference_router reference_of = reference(&c, s);
    estimate *dl = case_alloc(&c, (size_t)(s->tokens * s->experts) * sizeof *dl);
    for (int64_t t = 0; t < s->tokens; t++)
        make_token(&c, s, &reference_of, t, &r, dl + t * s->experts);
    make_gradients(&c, s, &reference_of, dl);
    return c;
}

static check_case plain_case(int32_t variant, tn_dtype dtype)
{
    const shape plain = {2, 12, 20, 3, 0, TN_SCORE_SIGMOID, CORRECT | GROUPS | F32, 4, 2, BIAS};
    (void)variant;
    return make_case(dtype, &plain);
}

static const check_decline declines[] = {
    {0, TN_F32, {{DIM_IS, TN_DIM_GROUPS, 3}}, "groups: 3 do not divide 20 experts"},
    {0, TN_F32, {{DIM_IS, TN_DIM_TOP_GROUPS, 5}}, "top_groups: 5 of 4 groups"},
    {0, TN_F32, {{DIM_IS, TN_DIM_TOP_K, 11}}, "top_k: 11, of 10 experts in the best groups"},
    {0, TN_F32, {{DIM_IS, TN_DIM_TOP_K, 21}}, "top_k: 21 of 20 experts"},
    {0, TN_F32, {{ROWS_ARE, TN_ROLE_ROUTER_BIAS, 19}}, "router_bias: is f32 [19]; MOE_ROUTE takes f32 [20]"},
    {0, TN_F32, {{COUNT_IS, TN_ROLE_CORRECTION_BIAS, 0}}, "correction_bias: the site has 0 tensors, MOE_ROUTE takes 1"},
    {0, TN_BF16, {{DTYPE_IS, TN_ROLE_ROUTER, TN_F16}}, "router is f16"},
    {0, TN_F32, {{DIM_IS, TN_DIM_HIDDEN, 13}}, "router: is f32 [20,12]; MOE_ROUTE takes f32 [20,13]"},
};

static void check_errors(check_state *s)
{
    group_begin(s, "moe_route refused %s", s->tier->name);
    for (int many = 0; many < 2; many++)
        for (tn_score score = TN_SCORE_SOFTMAX; score <= TN_SCORE_TOPK_SOFTMAX; score++) {
            const shape sh = {many ? 60 : 5, 12, 20, 3, 0, score, CORRECT | F32, 0, 0, 0};
            check_case c = make_case(TN_BF16, &sh);
            element_set(&c.call.in[0], 12 * 4 + 3, NAN);
            element_set(&c.call.in[0], 12 * 3 + 3, NAN);
            check_refused(s, &c, "scores of token 3 are not numbers");
            c = make_case(TN_F32, &sh);
            element_set((tn_tensor *)c.site.param[TN_ROLE_CORRECTION_BIAS].tensors, 7, NAN);
            check_refused(s, &c, "correction bias of expert 7");
        }
    const shape infinite = {2, 12, 20, 3, 0, TN_SCORE_SOFTMAX, 0, 0, 0, 0};
    check_case c = make_case(TN_F16, &infinite);
    element_set(&c.call.in[0], 12 + 5, INFINITY);
    check_refused(s, &c, "scores of token 1 are not numbers");
    check_declines(s, declines, sizeof declines / sizeof *declines, plain_case);
    group_end(s);
}

static void check(check_state *s)
{
    for (int d = 0; d < CHECK_DTYPES; d++) {
        group_begin(s, "moe_route %s %s", tn_dtype_name(check_dtypes[d]), s->tier->name);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            if (check_pass_over(s))
                continue;
            check_case c = make_case(check_dtypes[d], &shapes[i]);
            check_run(s, &c);
        }
        group_end(s);
    }
    check_errors(s);
}

/* The routers of Qwen3-30B-A3B. */
static void bench(check_state *s)
{
    const bench_model *m = &bench_models[2];
    for (int t = 0; t < BENCH_TOKENS; t++) {
        const shape real = {bench_tokens[t], m->hidden, m->experts, m->top_k, 0, TN_SCORE_SOFTMAX, RENORM, 0, 0, 0};
        double weight = (double)(m->experts * m->hidden), tokens = (double)bench_tokens[t];
        double x = 2 * tokens * (double)m->hidden;
        const bench_work forward = {2 * weight + x, 6 * tokens * (double)m->top_k, 2 * weight * tokens};
        const bench_work backward = {2 * weight + x, 2 * weight + x, 6 * weight * tokens};
        if (!bench_wanted(s, TN_BF16, forward.flops, "moe_route %s x%lld", m->name, (long long)bench_tokens[t]))
            continue;
        check_case c = open_case(TN_BF16, &real);
        random_state r = {1};
        fill_normal(&c.call.in[0], &r, 0, 1);
        fill_normal((tn_tensor *)c.site.param[TN_ROLE_ROUTER].tensors, &r, 0, 0.02);
        bench_run(s, &c, forward, backward);
    }
}

const check_test check_moe_route = {.name = "moe_route", .tiers = CHECK_PRODUCTS, .check = check, .bench = bench};
