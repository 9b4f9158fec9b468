/* MOE_EXPERTS and MOE_BLOCK. */
#include "host.h"
#include "mixture.h"
#include "moe_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *layout_name(int32_t layout)
{
    return layout == TN_LAYOUT_EXPERT_LIST ? "list" : layout == TN_LAYOUT_STACKED_OI ? "stacked oi" : "stacked io";
}

static tn_dtype dtype_of(const check_case *c)
{
    return (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
}

static void fill_param(check_case *c, tn_role role, int64_t count, int32_t ndim, const int64_t *dims, double deviation,
                       random_state *r)
{
    tn_tensor *t = case_param(c, role, count, dtype_of(c), ndim, dims);
    fill_normal(&t[0], r, 0, deviation);
    size_t bytes = (size_t)tn_tensor_count(&t[0]) * tn_dtype_size(t[0].dtype);
    for (int64_t i = 1; i < count; i++) {
        if (tn_tensor_count(&t[0]) < 100000)
            fill_normal(&t[i], r, 0, deviation);
        else /* for timing only */
            memcpy(t[i].data, t[0].data, bytes);
    }
}

static void make_experts(check_case *c, const moe_shape *s, random_state *r)
{
    int32_t layout = c->site.meaning[TN_AXIS_LAYOUT];
    double in = 1 / sqrt((double)s->hidden), out = 1 / sqrt((double)s->inter);
    int64_t e = s->experts, i = s->inter, h = s->hidden;
    bool io = layout == TN_LAYOUT_STACKED_IO;
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        fill_param(c, TN_ROLE_GATE, e, 2, (int64_t[]){i, h}, in, r);
        fill_param(c, TN_ROLE_UP, e, 2, (int64_t[]){i, h}, in, r);
        fill_param(c, TN_ROLE_DOWN, e, 2, (int64_t[]){h, i}, out, r);
        return;
    }
    fill_param(c, TN_ROLE_GATE_UP, 1, 3, (int64_t[]){e, io ? h : 2 * i, io ? 2 * i : h}, in, r);
    fill_param(c, TN_ROLE_DOWN, 1, 3, (int64_t[]){e, io ? i : h, io ? h : i}, out, r);
}

static void make_block(check_case *c, const moe_shape *s, random_state *r)
{
    double in = 1 / sqrt((double)s->hidden);
    fill_param(c, TN_ROLE_ROUTER, 1, 2, (int64_t[]){s->experts, s->hidden}, 2 * in, r);
    c->site.meaning[TN_AXIS_SCORE] = s->score ? (int32_t)s->score : TN_SCORE_SOFTMAX;
    c->site.dim[TN_DIM_GROUPS] = 4;
    c->site.dim[TN_DIM_TOP_GROUPS] = 2;
    c->site.num[TN_NUM_SCALE] = s->features & TN_HAS_ROUTE_SCALE ? 1.5 : 0;
    if (s->features & TN_HAS_CORRECTION_BIAS)
        fill_normal(case_param(c, TN_ROLE_CORRECTION_BIAS, 1, TN_F32, 1, &s->experts), r, 0, 0.2);
    if (!s->shared)
        return;
    c->site.features |= TN_HAS_SHARED_EXPERT;
    c->site.dim[TN_DIM_SHARED_INTER] = s->shared;
    int64_t narrow[] = {s->shared, s->hidden}, wide[] = {s->hidden, s->shared}, one[] = {1, s->hidden};
    fill_param(c, TN_ROLE_SHARED_GATE, 1, 2, narrow, in, r);
    fill_param(c, TN_ROLE_SHARED_UP, 1, 2, narrow, in, r);
    fill_param(c, TN_ROLE_SHARED_DOWN, 1, 2, wide, 1 / sqrt((double)s->shared), r);
    if (s->features & TN_HAS_SHARED_GATE)
        fill_param(c, TN_ROLE_SHARED_EXPERT_GATE, 1, 2, one, in, r);
}

/* ---- parameters and their gradients, whatever the layout ------------------------------------------------------ */

/* Calls body for every element of a role's tensors: index is its place in row-major order of the whole parameter, at
 * its place in [E, rows, columns] with the rows of products first. */
typedef struct element_walk {
    const tn_param *param;
    bool io;
    int64_t experts, rows, columns, first; /* rows first .. first + rows - 1 of each matrix            */
} element_walk;

static int64_t walk_index(const element_walk *w, int64_t e, int64_t row, int64_t column)
{
    const tn_tensor *t = w->param->tensors;
    int64_t each = tn_tensor_count(t) / (t->ndim == 3 ? t->shape[0] : 1), width = t->shape[t->ndim - 1];
    return e * each + (w->io ? column * width + w->first + row : (w->first + row) * width + column);
}

static double *walk_values(check_case *c, const element_walk *w)
{
    double *values = case_alloc(c, (size_t)(w->experts * w->rows * w->columns) * sizeof *values);
    int64_t each = tn_tensor_count(w->param->tensors), at = 0;
    for (int64_t e = 0; e < w->experts; e++)
        for (int64_t r = 0; r < w->rows; r++)
            for (int64_t i = 0; i < w->columns; i++) {
                int64_t index = walk_index(w, e, r, i);
                values[at++] = element_get(&w->param->tensors[index / each], index % each);
            }
    return values;
}

static void walk_want(check_case *c, tn_role role, const element_walk *w, const estimate *from)
{
    int64_t at = 0;
    if (!c->want_param[role])
        case_want_param(c, role);
    for (int64_t e = 0; e < w->experts; e++)
        for (int64_t r = 0; r < w->rows; r++)
            for (int64_t i = 0; i < w->columns; i++, at++) {
                int64_t index = walk_index(w, e, r, i);
                c->want_param[role][index] = from[at].value;
                c->bound_param[role][index] = from[at].error;
            }
}

/* gate, up, down of the experts (first true) or of the shared one. */
static void walks_of(const check_case *c, const moe_shape *s, bool experts, element_walk walk[3], tn_role role[3])
{
    int32_t layout = experts ? c->site.meaning[TN_AXIS_LAYOUT] : TN_LAYOUT_EXPERT_LIST;
    bool list = layout == TN_LAYOUT_EXPERT_LIST, io = layout == TN_LAYOUT_STACKED_IO;
    int64_t inter = experts ? s->inter : s->shared, count = experts ? s->experts : 1;
    const tn_role lists[] = {TN_ROLE_GATE, TN_ROLE_UP, TN_ROLE_DOWN};
    const tn_role stacks[] = {TN_ROLE_GATE_UP, TN_ROLE_GATE_UP, TN_ROLE_DOWN};
    const tn_role shared[] = {TN_ROLE_SHARED_GATE, TN_ROLE_SHARED_UP, TN_ROLE_SHARED_DOWN};
    for (int i = 0; i < 3; i++) {
        role[i] = !experts ? shared[i] : list ? lists[i] : stacks[i];
        walk[i] = (element_walk){.param = &c->site.param[role[i]],
                                 .io = io,
                                 .experts = count,
                                 .rows = i < 2 ? inter : s->hidden,
                                 .columns = i < 2 ? s->hidden : inter,
                                 .first = i == 1 && !list ? inter : 0};
    }
}

static mixture_weights read_weights(check_case *c, const moe_shape *s, bool experts)
{
    element_walk walk[3];
    tn_role role[3];
    walks_of(c, s, experts, walk, role);
    return (mixture_weights){.inter = experts ? s->inter : s->shared,
                             .gate = walk_values(c, &walk[0]),
                             .up = walk_values(c, &walk[1]),
                             .down = walk_values(c, &walk[2])};
}

static void want_weights(check_case *c, const moe_shape *s, bool experts, const mixture_weights *w)
{
    element_walk walk[3];
    tn_role role[3];
    const estimate *from[] = {w->dgate, w->dup, w->ddown};
    walks_of(c, s, experts, walk, role);
    for (int i = 0; i < 3; i++)
        walk_want(c, role[i], &walk[i], from[i]);
}

static void store(const estimate *from, int64_t count, double *want, double *bound)
{
    for (int64_t i = 0; i < count; i++) {
        want[i] = from[i].value;
        bound[i] = from[i].error;
    }
}

static void store_param(check_case *c, tn_role role, const estimate *from)
{
    case_want_param(c, role);
    store(from, tn_tensor_count(c->site.param[role].tensors), c->want_param[role], c->bound_param[role]);
}

/* ---- cases -------------------------------------------------------------------------------------------------- */

static int32_t pick(const moe_shape *s, int64_t token, int64_t j, random_state *r)
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

static void make_io(check_case *c, const moe_shape *s, random_state *r)
{
    int64_t dims[] = {s->tokens, s->hidden}, stride[] = {s->hidden + s->gap, 1};
    fill_normal(case_in(c, dtype_of(c), 2, dims, s->gap ? stride : NULL), r, 0, 1);
    stride[0] += 1;
    case_out(c, dtype_of(c), 2, dims, s->gap ? stride : NULL);
}

/* What the case's tensors say, and from it what is wanted. */
static void make_wants(check_case *c, const moe_shape *s, mixture *m, random_state *r)
{
    case_grads(c, r);
    m->dtype = dtype_of(c);
    m->act = (tn_act)c->site.meaning[TN_AXIS_ACT];
    m->tokens = s->tokens;
    m->hidden = s->hidden;
    m->experts = s->experts;
    m->top_k = s->top_k;
    m->expert = read_weights(c, s, true);
    if (s->shared)
        m->shared = read_weights(c, s, false);
    if (c->site.param[TN_ROLE_SHARED_EXPERT_GATE].count)
        m->shared_scale = case_values(c, c->site.param[TN_ROLE_SHARED_EXPERT_GATE].tensors);
    m->x = case_values(c, &c->call.in[0]);
    m->g = case_values(c, &c->grads.out[0]);
    mixture_run(c, m);
    case_want(c, 0);
    store(m->y, s->tokens * s->hidden, c->want[0], c->bound[0]);
    case_want_in(c, 0);
    store(m->dx, s->tokens * s->hidden, c->want_in[0], c->bound_in[0]);
    want_weights(c, s, true, &m->expert);
    if (s->shared)
        want_weights(c, s, false, &m->shared);
    if (m->shared_scale)
        store_param(c, TN_ROLE_SHARED_EXPERT_GATE, m->dshared_scale);
}

static check_case experts_case(tn_layout layout, tn_dtype dtype, const moe_shape *s)
{
    check_case c = moe_open_case(TN_OP_MOE_EXPERTS, layout, dtype, s);
    random_state r = {(uint64_t)(s->tokens * 131 + s->hidden * 7 + s->inter + s->experts * 3)};
    int64_t dims[] = {s->tokens, s->top_k}, stride[] = {s->top_k + s->gap, 1};
    mixture m = {.routes = case_alloc(&c, (size_t)s->tokens * sizeof(reference_routes))};
    make_experts(&c, s, &r);
    make_io(&c, s, &r);
    tn_dtype weights = s->features & TN_HAS_F32_ROUTING ? TN_F32 : dtype;
    tn_tensor *given = case_in(&c, weights, 2, dims, s->gap ? stride : NULL);
    fill_normal(given, &r, 0.3, 0.2);
    tn_tensor *ids = case_in(&c, TN_I32, 2, dims, s->gap ? stride : NULL);
    for (int64_t t = 0; t < s->tokens; t++)
        for (int64_t j = 0; j < s->top_k; j++) {
            m.routes[t].id[j] = pick(s, t, j, &r);
            element_set(ids, t * ids->stride[0] + j, (double)m.routes[t].id[j]);
            m.routes[t].weight[j] = estimate_exact(element_get(given, t * given->stride[0] + j));
        }
    make_wants(&c, s, &m, &r);
    case_want_in(&c, 1);
    for (int64_t i = 0; i < s->tokens * s->top_k; i++)
        m.dweights[i] = estimate_rounded(weights, m.dweights[i]);
    store(m.dweights, s->tokens * s->top_k, c.want_in[1], c.bound_in[1]);
    return c;
}

static reference_router router_of(check_case *c, const moe_shape *s)
{
    const tn_param *correction = &c->site.param[TN_ROLE_CORRECTION_BIAS];
    return (reference_router){.dtype = dtype_of(c),
                              .score = (tn_score)c->site.meaning[TN_AXIS_SCORE],
                              .hidden = s->hidden,
                              .experts = s->experts,
                              .top_k = s->top_k,
                              .groups = s->features & TN_HAS_GROUPS ? c->site.dim[TN_DIM_GROUPS] : 0,
                              .top_groups = c->site.dim[TN_DIM_TOP_GROUPS],
                              .renormalise = s->features & TN_HAS_RENORM,
                              .f32_logits = s->features & TN_HAS_F32_ROUTER,
                              .scale = c->site.num[TN_NUM_SCALE],
                              .weight = case_values(c, c->site.param[TN_ROLE_ROUTER].tensors),
                              .correction = correction->count ? case_values(c, correction->tensors) : NULL};
}

static check_case block_case(tn_layout layout, tn_dtype dtype, const moe_shape *s)
{
    check_case c = moe_open_case(TN_OP_MOE_BLOCK, layout, dtype, s);
    random_state r = {(uint64_t)(s->tokens * 137 + s->hidden * 11 + s->inter + s->experts * 5)};
    make_experts(&c, s, &r);
    make_block(&c, s, &r);
    make_io(&c, s, &r);
    reference_router router = router_of(&c, s);
    mixture m = {.router = &router, .routes = case_alloc(&c, (size_t)s->tokens * sizeof(reference_routes))};
    tn_tensor *x = &c.call.in[0];
    double *row = case_alloc(&c, (size_t)s->hidden * sizeof *row);
    for (int64_t t = 0; t < s->tokens; t++)
        for (int tries = 0;; tries++) { /* another token until its choice is clear */
            for (int64_t i = 0; i < s->hidden; i++)
                row[i] = element_get(x, t * x->stride[0] + i);
            if (reference_route(&router, row, &m.routes[t]))
                break;
            if (tries == 10000) {
                fprintf(stderr, "check_kernels: %s: no token with a clear choice\n", c.what);
                exit(1);
            }
            for (int64_t i = 0; i < s->hidden; i++)
                element_set(x, t * x->stride[0] + i, random_normal(&r));
        }
    /* Kernels may keep the weights in f32, or round them as eager does. */
    for (int64_t t = 0; t < s->tokens; t++)
        for (int64_t j = 0; j < s->top_k && !(s->features & TN_HAS_F32_ROUTING); j++)
            m.routes[t].weight[j] = estimate_rounded(dtype, m.routes[t].weight[j]);
    make_wants(&c, s, &m, &r);
    store_param(&c, TN_ROLE_ROUTER, m.drouter);
    if (router.correction) /* it only chooses: zeros */
        case_want_param(&c, TN_ROLE_CORRECTION_BIAS);
    return c;
}

/* ---- what is checked ------------------------------------------------------------------------------------------- */

#define RENORM TN_HAS_RENORM
#define WIDE TN_HAS_F32_ROUTING
#define GATED TN_HAS_SHARED_GATE
#define DEEPSEEK (TN_HAS_F32_ROUTER | WIDE | RENORM | TN_HAS_CORRECTION_BIAS | TN_HAS_GROUPS | TN_HAS_ROUTE_SCALE)

/* tokens, hidden, inter, experts, top_k, gap, shared, ids, features, act. Around the few tokens of a call and of an
 * expert, more than a piece, pieces that are cut between threads, and more than the 4096 tokens of a block. Experts of
 * more than 8192 elements take tiles of pairs. */
static const moe_shape expert_shapes[] = {
    {0, 8, 4, 3, 1, 0, 0, SPREAD, 0, 0, 0},
    {1, 1, 1, 1, 1, 0, 0, SPREAD, WIDE, 0, 0},
    {1, 48, 33, 16, 8, 0, 0, SPREAD, 0, 0, 0},
    {2, 17, 5, 4, 2, 3, 0, SPREAD, WIDE, 0, 0},
    {5, 33, 18, 7, 3, 0, 0, TWICE, 0, TN_ACT_GELU_TANH, 0},
    {8, 10, 12, 3, 3, 0, 0, TWICE, 0, 0, 0},
    {16, 24, 20, 8, 2, 1, 0, SPREAD, 0, 0, 0},
    {16, 9, 31, 5, 4, 0, 0, ONE_EXPERT, WIDE, TN_ACT_GELU, 0},
    {17, 16, 12, 40, 2, 0, 0, SPREAD, 0, 0, 0},
    {40, 31, 7, 6, 2, 0, 0, CROWDED, 0, 0, 0},
    {70, 20, 9, 3, 2, 5, 0, LAST_ONLY, 0, 0, 0},
    {130, 18, 16, 4, 1, 0, 0, ONE_EXPERT, WIDE, 0, 0},
    {300, 10, 6, 5, 2, 0, 0, CROWDED, 0, 0, 0},
    {530, 6, 5, 9, 3, 1, 0, SPREAD, 0, 0, 0},
    {4200, 17, 5, 2, 1, 0, 0, SPREAD, 0, 0, 0},
    {3, 130, 70, 3, 2, 1, 0, SPREAD, 0, 0, 0},
    {70, 97, 86, 3, 2, 1, 0, SPREAD, 0, TN_ACT_GELU_TANH, 0},
    {45, 66, 131, 2, 1, 0, 0, ONE_EXPERT, WIDE, 0, 0},
};

static const moe_shape block_shapes[] = {
    {0, 8, 4, 3, 1, 0, 0, SPREAD, RENORM, 0, 0},
    {1, 40, 24, 16, 4, 0, 0, SPREAD, RENORM, 0, 0},
    {1, 16, 8, 8, 8, 0, 0, SPREAD, 0, 0, 0},
    {3, 33, 9, 5, 2, 1, 21, SPREAD, GATED, 0, 0},
    {4, 24, 10, 12, 2, 0, 9, SPREAD, DEEPSEEK, 0, TN_SCORE_SIGMOID},
    {16, 20, 18, 9, 3, 0, 7, SPREAD, RENORM | WIDE, 0, 0},
    {17, 24, 12, 20, 2, 0, 40, SPREAD, RENORM | GATED, TN_ACT_GELU_TANH, 0},
    {45, 31, 5, 6, 1, 3, 0, SPREAD, WIDE, 0, 0},
    {50, 16, 11, 16, 3, 0, 6, SPREAD, DEEPSEEK, 0, TN_SCORE_SIGMOID},
    {30, 22, 8, 9, 2, 1, 0, SPREAD, 0, 0, TN_SCORE_TOPK_SOFTMAX},
    {100, 18, 14, 17, 4, 0, 10, SPREAD, RENORM | GATED, 0, 0},
    {600, 12, 6, 4, 2, 0, 5, SPREAD, RENORM | GATED, 0, 0},
    {60, 96, 88, 4, 2, 3, 90, SPREAD, RENORM | GATED, 0, 0},
};

static void check_group(check_state *s, tn_op op, tn_layout layout, tn_dtype dtype)
{
    bool block = op == TN_OP_MOE_BLOCK;
    size_t count = block ? sizeof block_shapes / sizeof *block_shapes : sizeof expert_shapes / sizeof *expert_shapes;
    group_begin(s, "moe %s %s %s %s", block ? "block" : "experts", layout_name(layout), tn_dtype_name(dtype),
                s->tier->name);
    for (size_t i = 0; i < count; i++) {
        if (check_pass_over(s))
            continue;
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
        const moe_shape one = {many ? 40 : 5, 12, 8, 6, 2, 0, 0, SPREAD, 0, 0, 0};
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
    const moe_shape plain = {1, 16, 7, 4, 2, 0, 0, SPREAD, 0, 0, 0};
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

static void check(check_state *s)
{
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (int layout = TN_LAYOUT_EXPERT_LIST; layout <= TN_LAYOUT_STACKED_IO; layout++) {
            check_group(s, TN_OP_MOE_EXPERTS, (tn_layout)layout, check_dtypes[d]);
            check_group(s, TN_OP_MOE_BLOCK, (tn_layout)layout, check_dtypes[d]);
        }
    check_errors(s);
}

/* A block of Qwen3-30B-A3B, and one of 64 experts of 1024 -> 384. Backward: see mlp.c. */
static void bench_block(check_state *s, const bench_model *m, tn_layout layout, tn_dtype dtype, int64_t tokens)
{
    const moe_shape real = {tokens, m->hidden, m->inter, m->experts, m->top_k, 0, 0, SPREAD, TN_HAS_RENORM, 0, 0};
    double expert = 3.0 * (double)(m->hidden * m->inter), size = (double)tn_dtype_size(dtype), k = (double)m->top_k;
    double e = (double)m->experts, io = (double)(tokens * m->hidden) * size;
    double used = e * (1 - pow(1 - k / e, (double)tokens)); /* when each token takes k at random */
    const bench_work forward = {used * expert * size + io, io, 2 * expert * k * (double)tokens};
    const bench_work backward = {used * expert * size + 2 * io, e * expert * size + io, forward.flops * 8 / 3};
    if (!bench_wanted(s, dtype, forward.flops, "moe block %s %s x%lld", layout_name(layout), m->name,
                      (long long)tokens))
        return;
    check_case c = moe_open_case(TN_OP_MOE_BLOCK, layout, dtype, &real);
    random_state r = {1};
    make_experts(&c, &real, &r);
    make_block(&c, &real, &r);
    make_io(&c, &real, &r);
    bench_run(s, &c, forward, backward);
}

/* Tokens spread evenly over 64 experts, and one dense MLP with the same products: what grouping costs. */
static void bench_even(check_state *s, int64_t tokens)
{
    const moe_shape real = {tokens, 2048, 768, 64, 8, 0, 0, SPREAD, 0, 0, 0};
    double io = 2 * (double)(tokens * real.hidden), each = 3.0 * (double)(real.hidden * real.inter);
    double flops = 2 * each * 8 * (double)tokens;
    const bench_work none = {0, 0, 0};
    const bench_work even = {2 * each * fmin(64, 8 * (double)tokens) + io, io, flops};
    const bench_work dense = {2 * each * 8 + io, io, flops};
    random_state r = {1};
    int64_t dims[] = {tokens, 8}, wide = real.inter * 8;
    if (bench_wanted(s, TN_BF16, flops, "moe experts even 64x(2048->768) x%lld", (long long)tokens)) {
        check_case c = moe_open_case(TN_OP_MOE_EXPERTS, TN_LAYOUT_EXPERT_LIST, TN_BF16, &real);
        make_experts(&c, &real, &r);
        make_io(&c, &real, &r);
        fill_normal(case_in(&c, TN_BF16, 2, dims, NULL), &r, 0.3, 0.2);
        tn_tensor *ids = case_in(&c, TN_I32, 2, dims, NULL);
        for (int64_t i = 0; i < tokens * 8; i++)
            element_set(ids, i, (double)((i + i / 64) % 64));
        bench_run(s, &c, even, none);
    }
    if (bench_wanted(s, TN_BF16, flops, "moe dense MLP 2048->6144 x%lld", (long long)tokens)) {
        check_case c;
        case_init(&c, "npu_fused_swiglu", TN_OP_MLP, TN_BF16);
        c.site.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
        c.site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
        c.site.dim[TN_DIM_HIDDEN] = real.hidden;
        c.site.dim[TN_DIM_INTER] = wide;
        fill_param(&c, TN_ROLE_GATE, 1, 2, (int64_t[]){wide, real.hidden}, 0.02, &r);
        fill_param(&c, TN_ROLE_UP, 1, 2, (int64_t[]){wide, real.hidden}, 0.02, &r);
        fill_param(&c, TN_ROLE_DOWN, 1, 2, (int64_t[]){real.hidden, wide}, 0.02, &r);
        make_io(&c, &real, &r);
        bench_run(s, &c, dense, none);
    }
}

static void bench(check_state *s)
{
    static const bench_model small = {"64x384", 1024, 384, 0, 0, 0, 64, 8};
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (int t = 0; t < BENCH_TOKENS; t++) {
            bench_block(s, &bench_models[2], TN_LAYOUT_EXPERT_LIST, check_dtypes[d], bench_tokens[t]);
            for (int layout = TN_LAYOUT_EXPERT_LIST; layout <= TN_LAYOUT_STACKED_IO; layout++)
                bench_block(s, &small, (tn_layout)layout, check_dtypes[d], bench_tokens[t]);
        }
    for (int t = 0; t < BENCH_TOKENS; t++)
        bench_even(s, bench_tokens[t]);
}

const check_test check_moe = {
    .name = "moe", .tiers = CHECK_PRODUCTS, .check = check, .bench = bench, .golden = moe_golden};
