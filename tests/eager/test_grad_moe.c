/* Gradients of MOE_ROUTE and MOE_EXPERTS: finite differences of a reference in f64 for every kind of router and layout
 * of experts, bad data, and that nothing depends on the number of threads. */
#include "device/device.h"
#include "optest.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* Random values small enough that neither exponentials nor sums of products spoil a comparison. */
static tn_tensor random_tensor(tn_dtype dtype, int32_t ndim, const int64_t *shape, double factor, uint32_t seed)
{
    tn_tensor t = optest_random(dtype, ndim, shape, seed);
    for (int64_t i = 0; i < tn_tensor_count(&t); i++)
        optest_set(&t, i, optest_at(&t, i) * factor);
    return t;
}

static tn_tensor *param(const tn_call *call, tn_role role)
{
    return (tn_tensor *)(uintptr_t)call->site->param[role].tensors;
}

static const tn_tensor *grad(const tn_call *call, tn_role role)
{
    return call->grads->param[role].tensors;
}

/* ---- finite differences ------------------------------------------------------------------------------------ */

/* A loss that reads its tensors through `values`: the numbers of a tensor of the call, one of which is moved. */
typedef struct difference {
    const tn_call *call;
    const tn_tensor *moved; /* tensor and element that are not what they are                       */
    int64_t index;
    double by;
    double (*loss)(const struct difference *d);
} difference;

static double value(const difference *d, const tn_tensor *t, int64_t i)
{
    return optest_at(t, i) + (t == d->moved && i == d->index ? d->by : 0.0);
}

/* got must be the derivative of the loss by the elements of t. */
static void expect_derivative(const tn_call *call, double (*loss)(const difference *), const tn_tensor *t,
                              const tn_tensor *got, const char *what)
{
    const double step = 1e-5;
    tn_tensor truth = optest_zeros(TN_F32, got->ndim, got->shape);
    for (int64_t i = 0; i < tn_tensor_count(t); i++) {
        difference up = {call, t, i, step, loss}, down = {call, t, i, -step, loss};
        optest_set(&truth, i, (loss(&up) - loss(&down)) / (2.0 * step));
    }
    /* Weights may be f32 in a model that computes in less. */
    tn_tensor rounded = optest_from((tn_dtype)call->site->meaning[TN_AXIS_DTYPE], got);
    optest_golden_grad(&rounded, &truth, what);
}

/* ---- routers -------------------------------------------------------------------------------------------------- */

static const struct {
    tn_score score;
    uint64_t features;
} routers[] = {
    {TN_SCORE_SOFTMAX, 0},
    {TN_SCORE_SOFTMAX, TN_HAS_RENORM},
    {TN_SCORE_SOFTMAX, TN_HAS_ROUTE_SCALE | TN_HAS_GROUPS},
    {TN_SCORE_SOFTMAX, TN_HAS_RENORM | TN_HAS_ROUTE_SCALE | TN_HAS_CORRECTION_BIAS},
    {TN_SCORE_SIGMOID, 0},
    {TN_SCORE_SIGMOID, TN_HAS_RENORM},
    {TN_SCORE_SIGMOID, TN_HAS_RENORM | TN_HAS_ROUTE_SCALE | TN_HAS_CORRECTION_BIAS | TN_HAS_GROUPS},
    {TN_SCORE_SIGMOID, TN_HAS_ROUTE_SCALE | TN_HAS_CORRECTION_BIAS},
    {TN_SCORE_TOPK_SOFTMAX, 0},
    {TN_SCORE_TOPK_SOFTMAX, TN_HAS_RENORM | TN_HAS_ROUTE_SCALE},
    {TN_SCORE_TOPK_SIGMOID, 0},
    {TN_SCORE_TOPK_SIGMOID, TN_HAS_RENORM | TN_HAS_ROUTE_SCALE},
    {TN_SCORE_SOFTMAX, TN_HAS_RENORM | TN_HAS_EXPERT_SCALE},
    {TN_SCORE_SOFTMAX, TN_HAS_EXPERT_SCALE | TN_HAS_ROUTE_SCALE},
    {TN_SCORE_SIGMOID, TN_HAS_RENORM | TN_HAS_EXPERT_SCALE},
};

static void route_call(int kind, uint64_t more, tn_dtype dtype, int64_t tokens, int64_t hidden, int64_t experts,
                       int64_t k, bool bias, tn_call *call, tn_site *site)
{
    *site = optest_site(TN_OP_MOE_ROUTE, dtype);
    site->meaning[TN_AXIS_SCORE] = (int32_t)routers[kind].score;
    site->features = routers[kind].features | more;
    site->num[TN_NUM_SCALE] = 2.5;
    site->dim[TN_DIM_GROUPS] = 3;
    site->dim[TN_DIM_TOP_GROUPS] = 2;
    site->dim[TN_DIM_TOP_K] = k;
    tn_tensor router = random_tensor(dtype, 2, (int64_t[]){experts, hidden}, 0.5, 21);
    tn_tensor correction = random_tensor(TN_F32, 1, &experts, 0.125, 23);
    optest_param(site, TN_ROLE_ROUTER, &router, 1);
    optest_param(site, TN_ROLE_CORRECTION_BIAS, &correction, 1);
    if (site->features & TN_HAS_EXPERT_SCALE) {
        tn_tensor scale = random_tensor(dtype, 1, &experts, 0.5, 25);
        optest_param(site, TN_ROLE_EXPERT_SCALE, &scale, 1);
    }
    if (bias) {
        tn_tensor b = random_tensor(dtype, 1, &experts, 0.5, 22);
        optest_param(site, TN_ROLE_ROUTER_BIAS, &b, 1);
    }
    *call = (tn_call){.op = TN_OP_MOE_ROUTE, .site = site, .in_count = 1, .out_count = 2};
    call->in[0] = random_tensor(dtype, 2, (int64_t[]){tokens, hidden}, 0.5, 24);
    call->out[0] = optest_zeros(site->features & TN_HAS_F32_ROUTING ? TN_F32 : dtype, 2, (int64_t[]){tokens, k});
    call->out[1] = optest_zeros(TN_I32, 2, (int64_t[]){tokens, k});
}

/* Sum of g w, with the experts that forward chose. */
static double route_loss(const difference *d)
{
    const tn_call *call = d->call;
    const tn_tensor *x = &call->in[0], *router = param(call, TN_ROLE_ROUTER), *bias = param(call, TN_ROLE_ROUTER_BIAS);
    int64_t hidden = x->shape[1], experts = router->shape[0], k = call->out[0].shape[1];
    uint64_t features = call->site->features;
    int32_t score = call->site->meaning[TN_AXIS_SCORE];
    double total = 0.0, l[64], v[64];
    for (int64_t t = 0; t < x->shape[0]; t++) {
        double all = 0.0, chosen = 0.0;
        for (int64_t e = 0; e < experts; e++) {
            l[e] = bias ? value(d, bias, e) : 0.0;
            for (int64_t h = 0; h < hidden; h++)
                l[e] += value(d, x, t * hidden + h) * value(d, router, e * hidden + h);
            l[e] = score == TN_SCORE_SIGMOID || score == TN_SCORE_TOPK_SIGMOID ? 1.0 / (1.0 + exp(-l[e])) : exp(l[e]);
            all += l[e];
        }
        for (int64_t j = 0; j < k; j++) {
            v[j] = l[(int64_t)optest_at(&call->out[1], t * k + j)];
            chosen += v[j];
        }
        double divisor = features & TN_HAS_RENORM || score == TN_SCORE_TOPK_SOFTMAX ? chosen
                         : score == TN_SCORE_SOFTMAX                                ? all
                                                                                    : 1.0;
        for (int64_t j = 0; j < k; j++) {
            int64_t e = (int64_t)optest_at(&call->out[1], t * k + j);
            double factor = features & TN_HAS_ROUTE_SCALE ? 2.5 : 1.0;
            factor *= features & TN_HAS_EXPERT_SCALE ? value(d, param(call, TN_ROLE_EXPERT_SCALE), e) : 1.0;
            total += optest_at(&call->grads->out[0], t * k + j) * v[j] / divisor * factor;
        }
    }
    return total;
}

static void expect_zero(const tn_tensor *t)
{
    for (int64_t i = 0; i < tn_tensor_count(t); i++)
        if (optest_at(t, i) != 0.0)
            ck_abort_msg("element %d is %g", (int)i, optest_at(t, i));
}

START_TEST(routers_by_finite_differences)
{
    static const struct {
        int64_t tokens, hidden, experts, k;
    } shapes[] = {{5, 9, 6, 3}, {1, 1, 3, 1}, {67, 3, 6, 2}, {6, 7, 9, 4}};
    static const uint64_t precision[] = {0, TN_HAS_F32_ROUTING, TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int d = 0; d < 3; d++)
            for (int p = 0; p < 3; p++) {
                tn_call call;
                tn_site site;
                tn_grads grads;
                route_call(_i, precision[p], dtypes[d], shapes[s].tokens, shapes[s].hidden, shapes[s].experts,
                           shapes[s].k, p != 1, &call, &site);
                optest_run(&call);
                optest_grads(&call, &grads, 31);
                optest_backward_threads(&call);
                expect_derivative(&call, route_loss, &call.in[0], &grads.in[0], "x");
                expect_derivative(&call, route_loss, param(&call, TN_ROLE_ROUTER), grad(&call, TN_ROLE_ROUTER),
                                  "router");
                if (p != 1)
                    expect_derivative(&call, route_loss, param(&call, TN_ROLE_ROUTER_BIAS),
                                      grad(&call, TN_ROLE_ROUTER_BIAS), "router bias");
                if (site.features & TN_HAS_EXPERT_SCALE)
                    expect_derivative(&call, route_loss, param(&call, TN_ROLE_EXPERT_SCALE),
                                      grad(&call, TN_ROLE_EXPERT_SCALE), "expert scale");
                expect_zero(grad(&call, TN_ROLE_CORRECTION_BIAS));
            }
}
END_TEST

/* What is divided by at least so much is not divided by the sum: weights are as if scaled, and so are gradients. */
START_TEST(a_sum_counts_at_least)
{
    tn_call call, plain;
    tn_site site, scaled;
    tn_grads grads, like;
    route_call(1, 0, TN_F32, 5, 9, 6, 3, true, &call, &site);
    site.num[TN_NUM_EPS] = 4.0;
    route_call(0, 0, TN_F32, 5, 9, 6, 3, true, &plain, &scaled);
    scaled.features |= TN_HAS_ROUTE_SCALE;
    scaled.num[TN_NUM_SCALE] = 0.25;
    optest_run(&call);
    optest_run(&plain);
    optest_grads(&call, &grads, 31);
    optest_grads(&plain, &like, 31);
    optest_backward_threads(&call);
    optest_backward_threads(&plain);
    for (int64_t i = 0; i < 15; i++)
        ck_assert_double_eq(optest_at(&call.out[0], i), optest_at(&plain.out[0], i));
    for (int64_t i = 0; i < 45; i++)
        ck_assert_double_eq(optest_at(&grads.in[0], i), optest_at(&like.in[0], i));
}
END_TEST

/* Backward makes forward's choice: with a router of the unit matrix the gradient of x is that of the logits, and only
 * those of chosen experts have one. Logits are so close that another order of summation would choose others. */
START_TEST(the_choice_is_that_of_forward)
{
    for (int kind = 0; kind < (int)(sizeof routers / sizeof *routers); kind++) {
        const int64_t tokens = 130, experts = 12, k = 4;
        tn_call call;
        tn_site site;
        tn_grads grads;
        route_call(kind, 0, TN_F32, tokens, experts, experts, k, false, &call, &site);
        if (routers[kind].score == TN_SCORE_SOFTMAX)
            site.features |= TN_HAS_RENORM;
        for (int64_t i = 0; i < experts * experts; i++)
            optest_set(param(&call, TN_ROLE_ROUTER), i, i % (experts + 1) == 0);
        for (int64_t i = 0; i < experts; i++)
            optest_set(param(&call, TN_ROLE_CORRECTION_BIAS), i, 0.0);
        for (int64_t i = 0; i < tokens * experts; i++) /* many ties, and neighbours in f32 */
            optest_set(&call.in[0], i, 1.0 + (double)((i * 7 + i / 12) % 3) * 0x1p-23);
        optest_run(&call);
        optest_grads(&call, &grads, 31);
        for (int64_t i = 0; i < tokens * k; i++)
            optest_set(&grads.out[0], i, (double)(i % k) + 1.0);
        optest_backward(&call);
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t e = 0; e < experts; e++) {
                bool chosen = false;
                for (int64_t j = 0; j < k; j++)
                    chosen = chosen || optest_at(&call.out[1], t * k + j) == (double)e;
                if ((optest_at(&grads.in[0], t * experts + e) != 0.0) != chosen)
                    ck_abort_msg("router %d, token %d, expert %d", kind, (int)t, (int)e);
            }
    }
}
END_TEST

START_TEST(scores_that_are_not_numbers)
{
    for (int threads = 1; threads <= 3; threads++) {
        threads_set(threads);
        tn_call call;
        tn_site site;
        tn_grads grads;
        route_call(4, 0, TN_BF16, 300, 8, 6, 2, true, &call, &site);
        optest_grads(&call, &grads, 1);
        optest_set(&call.in[0], 200 * 8 + 3, (double)NAN);
        optest_set(&call.in[0], 131 * 8 + 7, (double)NAN);
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(optest_try_backward(&call, &err), TN_E_INPUT);
        ck_assert_msg(strstr(err.message, "token 131 ") != NULL, "%s", err.message);
        ck_assert_str_eq(err.where, "model.layers.0.test");
        expect_zero(&grads.in[0]);
        expect_zero(grad(&call, TN_ROLE_ROUTER));
        expect_zero(grad(&call, TN_ROLE_ROUTER_BIAS));
    }
}
END_TEST

/* ---- experts ------------------------------------------------------------------------------------------------------
 */

typedef struct experts_case {
    int64_t tokens, hidden, inter, experts, k;
    tn_act act;
    bool f32_weights;
    int ids; /* 0: spread, the last expert idle; 1: all in expert 1                                */
    uint64_t features;
} experts_case;

static const tn_layout layouts[] = {TN_LAYOUT_STACKED_OI, TN_LAYOUT_STACKED_IO, TN_LAYOUT_EXPERT_LIST,
                                    TN_LAYOUT_PAIRS_IO};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static bool is_io(int32_t layout)
{
    return layout == TN_LAYOUT_STACKED_IO || layout == TN_LAYOUT_PAIRS_IO;
}

static void experts_param(tn_site *site, tn_role role, tn_dtype dtype, int64_t experts, int64_t out, int64_t in,
                          uint32_t seed)
{
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    tn_tensor list[16];
    if (layout != TN_LAYOUT_EXPERT_LIST) {
        bool io = is_io(layout);
        list[0] = random_tensor(dtype, 3, (int64_t[]){experts, io ? in : out, io ? out : in}, 0.25, seed);
        optest_param(site, role, list, 1);
        return;
    }
    for (int64_t e = 0; e < experts; e++)
        list[e] = random_tensor(dtype, 2, (int64_t[]){out, in}, 0.25, seed + (uint32_t)e);
    optest_param(site, role, list, experts);
}

static void experts_call(const experts_case *c, tn_layout layout, tn_dtype dtype, tn_call *call, tn_site *site)
{
    *site = optest_site(TN_OP_MOE_EXPERTS, dtype);
    site->meaning[TN_AXIS_ACT] = (int32_t)c->act;
    site->meaning[TN_AXIS_LAYOUT] = (int32_t)layout;
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        experts_param(site, TN_ROLE_GATE, dtype, c->experts, c->inter, c->hidden, 50);
        experts_param(site, TN_ROLE_UP, dtype, c->experts, c->inter, c->hidden, 70);
    } else {
        experts_param(site, TN_ROLE_GATE_UP, dtype, c->experts, 2 * c->inter, c->hidden, 50);
    }
    experts_param(site, TN_ROLE_DOWN, dtype, c->experts, c->hidden, c->inter, 90);
    site->features = c->features;
    /* Some are beyond it; rounding would move others across, so that narrow types have a limit that none reaches. */
    site->num[TN_NUM_LIMIT] = dtype == TN_F32 ? 0.5 : 8;
    site->num[TN_NUM_ALPHA] = 1.702;
    if (c->features & TN_HAS_BIAS) {
        tn_tensor gate_up = random_tensor(dtype, 2, (int64_t[]){c->experts, 2 * c->inter}, 0.5, 61);
        tn_tensor down = random_tensor(dtype, 2, (int64_t[]){c->experts, c->hidden}, 0.5, 62);
        optest_param(site, TN_ROLE_GATE_UP_BIAS, &gate_up, 1);
        optest_param(site, TN_ROLE_DOWN_BIAS, &down, 1);
    }
    *call = (tn_call){.op = TN_OP_MOE_EXPERTS, .site = site, .in_count = 3, .out_count = 1};
    call->in[0] = random_tensor(dtype, 2, (int64_t[]){c->tokens, c->hidden}, 0.5, 3);
    call->in[1] = random_tensor(c->f32_weights ? TN_F32 : dtype, 2, (int64_t[]){c->tokens, c->k}, 0.5, 4);
    call->in[2] = optest_zeros(TN_I32, 2, (int64_t[]){c->tokens, c->k});
    for (int64_t i = 0; i < c->tokens * c->k; i++)
        optest_set(&call->in[2], i, c->ids ? 1.0 : (double)((i * 5 + i / 3) % (c->experts - 1)));
    call->out[0] = optest_zeros(dtype, 2, (int64_t[]){c->tokens, c->hidden});
}

/* Element (out, in) of an expert's matrix; up: of the second half of gate_up. */
static double experts_weight(const difference *d, tn_role role, int64_t e, int64_t out, int64_t in, bool up)
{
    const tn_tensor *t = param(d->call, role);
    int32_t layout = d->call->site->meaning[TN_AXIS_LAYOUT];
    if (layout == TN_LAYOUT_EXPERT_LIST)
        return value(d, &t[e], out * t[e].shape[1] + in);
    bool io = is_io(layout);
    int64_t rows = t->shape[1], columns = t->shape[2], outs = io ? columns : rows;
    if (layout == TN_LAYOUT_PAIRS_IO && role == TN_ROLE_GATE_UP)
        out = 2 * out + up;
    else
        out += up ? outs / 2 : 0;
    return value(d, t, (e * rows + (io ? in : out)) * columns + (io ? out : in));
}

static double experts_bias(const difference *d, int64_t e, int64_t i, bool up)
{
    const tn_tensor *bias = param(d->call, TN_ROLE_GATE_UP_BIAS);
    bool pairs = d->call->site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_PAIRS_IO;
    int64_t at = !bias ? 0 : pairs ? 2 * i + up : i + (up ? bias->shape[1] / 2 : 0);
    return bias ? value(d, bias, e * bias->shape[1] + at) : 0.0;
}

static double experts_gated(const tn_site *site, double gate, double up)
{
    double inner = sqrt(2.0 / M_PI) * (gate + 0.044715 * gate * gate * gate), limit = site->num[TN_NUM_LIMIT];
    if (site->meaning[TN_AXIS_ACT] == TN_ACT_SILU)
        return gate / (1.0 + exp(-gate)) * up;
    if (site->meaning[TN_AXIS_ACT] == TN_ACT_GELU_TANH)
        return 0.5 * gate * (1.0 + tanh(inner)) * up;
    gate = fmin(gate, limit);
    return gate / (1.0 + exp(-site->num[TN_NUM_ALPHA] * gate)) * (fmax(fmin(up, limit), -limit) + 1.0);
}

static double experts_loss(const difference *d)
{
    const tn_call *call = d->call;
    bool list = call->site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_EXPERT_LIST;
    bool scaled = call->site->features & TN_HAS_INPUT_SCALE;
    const tn_tensor *bias = param(call, TN_ROLE_DOWN_BIAS);
    const tn_tensor *x = &call->in[0], *down = param(call, TN_ROLE_DOWN);
    int64_t hidden = x->shape[1], k = call->in[1].shape[1];
    int64_t inter = list ? down->shape[1] : tn_tensor_count(down) / down->shape[0] / hidden;
    double total = 0.0, p[32];
    for (int64_t t = 0; t < x->shape[0]; t++)
        for (int64_t j = 0; j < k; j++) {
            int64_t e = (int64_t)optest_at(&call->in[2], t * k + j);
            for (int64_t i = 0; i < inter; i++) {
                double gate = experts_bias(d, e, i, false), up = experts_bias(d, e, i, true);
                for (int64_t h = 0; h < hidden; h++) {
                    double in = value(d, x, t * hidden + h) * (scaled ? value(d, &call->in[1], t * k + j) : 1.0);
                    gate += in * experts_weight(d, list ? TN_ROLE_GATE : TN_ROLE_GATE_UP, e, i, h, false);
                    up += in * experts_weight(d, list ? TN_ROLE_UP : TN_ROLE_GATE_UP, e, i, h, !list);
                }
                p[i] = experts_gated(call->site, gate, up);
            }
            for (int64_t h = 0; h < hidden; h++) {
                double y = bias ? value(d, bias, e * hidden + h) : 0.0;
                for (int64_t i = 0; i < inter; i++)
                    y += p[i] * experts_weight(d, TN_ROLE_DOWN, e, h, i, false);
                total += optest_at(&call->grads->out[0], t * hidden + h) * y *
                         (scaled ? 1.0 : value(d, &call->in[1], t * k + j));
            }
        }
    return total;
}

static void check_experts(const tn_call *call)
{
    static const tn_role roles[] = {TN_ROLE_GATE, TN_ROLE_UP,           TN_ROLE_GATE_UP,
                                    TN_ROLE_DOWN, TN_ROLE_GATE_UP_BIAS, TN_ROLE_DOWN_BIAS};
    expect_derivative(call, experts_loss, &call->in[0], &call->grads->in[0], "x");
    expect_derivative(call, experts_loss, &call->in[1], &call->grads->in[1], "weights");
    for (int r = 0; r < 6; r++)
        for (int64_t i = 0; i < call->site->param[roles[r]].count; i++)
            expect_derivative(call, experts_loss, &param(call, roles[r])[i], &grad(call, roles[r])[i], "experts");
}

static const experts_case experts_cases[] = {
    {5, 6, 7, 4, 2, TN_ACT_SILU, false, 0, 0},
    {5, 7, 4, 3, 2, TN_ACT_GELU_TANH, true, 0, 0},
    {6, 5, 3, 3, 1, TN_ACT_SILU, true, 1, 0},
    {1, 1, 1, 2, 1, TN_ACT_GELU_TANH, false, 0, 0},
    {9, 4, 2, 4, 3, TN_ACT_SILU, false, 0, 0},
    {5, 6, 7, 4, 2, TN_ACT_SILU, false, 0, TN_HAS_BIAS},
    {6, 5, 4, 3, 2, TN_ACT_CLAMPED_SWIGLU, false, 0, TN_HAS_BIAS},
    {7, 6, 5, 4, 2, TN_ACT_CLAMPED_SWIGLU, true, 1, 0},
    {5, 6, 4, 4, 2, TN_ACT_SILU, false, 0, TN_HAS_INPUT_SCALE},
    {4, 5, 3, 3, 1, TN_ACT_GELU_TANH, true, 0, TN_HAS_INPUT_SCALE | TN_HAS_BIAS},
};

/* The sum of g y, in f32, is that of the reference. */
static void check_value(const tn_call *call)
{
    const difference d = {call, NULL, 0, 0.0, experts_loss};
    double sum = 0.0, wanted = experts_loss(&d);
    for (int64_t i = 0; i < tn_tensor_count(&call->out[0]); i++)
        sum += optest_at(&call->grads->out[0], i) * optest_at(&call->out[0], i);
    ck_assert_double_le(fabs(sum - wanted), 1e-5 * (1.0 + fabs(wanted)));
}

START_TEST(experts_by_finite_differences)
{
    for (int l = 0; l < LAYOUTS; l++)
        for (int d = 0; d < 3; d++) {
            tn_call call;
            tn_site site;
            tn_grads grads;
            experts_call(&experts_cases[_i], layouts[l], dtypes[d], &call, &site);
            optest_grads(&call, &grads, 11);
            optest_run(&call);
            if (dtypes[d] == TN_F32)
                check_value(&call);
            optest_backward_threads(&call);
            check_experts(&call);
        }
}
END_TEST

/* Enough work for several threads to share, more rows than a tile has; experts without tokens get zeros. */
START_TEST(threads_do_not_show)
{
    const experts_case cases[] = {{200, 256, 192, 8, 4, TN_ACT_SILU, false, 0, 0},
                                  {600, 40, 24, 3, 1, TN_ACT_SILU, true, 1, 0}};
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < 3; d++) {
            tn_call call;
            tn_site site;
            tn_grads grads;
            experts_call(&cases[i], TN_LAYOUT_EXPERT_LIST, dtypes[d], &call, &site);
            optest_grads(&call, &grads, 1);
            optest_backward_threads(&call);
            for (int role = TN_ROLE_GATE; role <= TN_ROLE_DOWN; role++) {
                expect_zero(&grads.param[role].tensors[cases[i].experts - 1]);
                double size = 0.0;
                for (int64_t j = 0; j < 100; j++)
                    size += fabs(optest_at(&grads.param[role].tensors[1], j));
                ck_assert_double_gt(size, 0.0);
            }
        }
}
END_TEST

START_TEST(experts_that_do_not_exist)
{
    const int32_t bad[] = {3, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        tn_call call;
        tn_site site;
        tn_grads grads;
        experts_call(&experts_cases[1], TN_LAYOUT_STACKED_OI, TN_F16, &call, &site);
        optest_grads(&call, &grads, 1);
        ((int32_t *)call.in[2].data)[2 * 3 + 1] = bad[i];
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(optest_try_backward(&call, &err), TN_E_INPUT);
        ck_assert_msg(strstr(err.message, "token 3 ") != NULL, "%s", err.message);
        expect_zero(&grads.in[0]);
        expect_zero(&grads.in[1]);
        expect_zero(grad(&call, TN_ROLE_GATE_UP));
        expect_zero(grad(&call, TN_ROLE_DOWN));
    }
}
END_TEST

/* ---- what is asked for --------------------------------------------------------------------------------------- */

static void fill(const tn_tensor *t, double x)
{
    for (int64_t i = 0; i < tn_tensor_count(t); i++)
        optest_set((tn_tensor *)(uintptr_t)t, i, x);
}

START_TEST(no_tokens_and_no_upstream_gradient)
{
    for (int none = 0; none < 2; none++) {
        tn_call call;
        tn_site site;
        tn_grads grads;
        experts_call(&experts_cases[0], TN_LAYOUT_STACKED_IO, TN_BF16, &call, &site);
        optest_grads(&call, &grads, 1);
        fill(grad(&call, TN_ROLE_GATE_UP), 5.0);
        fill(grad(&call, TN_ROLE_DOWN), 5.0);
        fill(&grads.in[0], 5.0);
        fill(&grads.in[1], 5.0);
        if (none)
            grads.out[0] = (tn_tensor){0};
        else
            call.in[0].shape[0] = call.in[1].shape[0] = call.in[2].shape[0] = grads.out[0].shape[0] =
                grads.in[0].shape[0] = grads.in[1].shape[0] = 0;
        optest_backward(&call);
        expect_zero(grad(&call, TN_ROLE_GATE_UP));
        expect_zero(grad(&call, TN_ROLE_DOWN));
        expect_zero(&grads.in[0]);
        expect_zero(&grads.in[1]);
        route_call(1, 0, TN_BF16, 4, 5, 6, 2, true, &call, &site);
        optest_grads(&call, &grads, 1);
        fill(grad(&call, TN_ROLE_ROUTER), 5.0);
        fill(grad(&call, TN_ROLE_ROUTER_BIAS), 5.0);
        fill(&grads.in[0], 5.0);
        if (none)
            grads.out[0] = (tn_tensor){0};
        else
            call.in[0].shape[0] = grads.out[0].shape[0] = grads.in[0].shape[0] = 0;
        optest_backward(&call);
        expect_zero(grad(&call, TN_ROLE_ROUTER));
        expect_zero(grad(&call, TN_ROLE_ROUTER_BIAS));
        expect_zero(&grads.in[0]);
    }
}
END_TEST

/* Each gradient alone is what it is among the others. */
START_TEST(only_what_is_wanted)
{
    tn_call call;
    tn_site site;
    tn_grads all, one;
    experts_call(&experts_cases[0], TN_LAYOUT_STACKED_OI, TN_F32, &call, &site);
    optest_grads(&call, &all, 1);
    optest_backward(&call);
    for (int which = 0; which < 4; which++) {
        optest_grads(&call, &one, 1);
        for (int i = 0; i < 2; i++)
            if (which != i)
                one.in[i].data = NULL;
        one.param[TN_ROLE_GATE_UP].count = which == 2;
        one.param[TN_ROLE_DOWN].count = which == 3;
        optest_backward(&call);
        tn_role role = which == 2 ? TN_ROLE_GATE_UP : TN_ROLE_DOWN;
        if (which < 2)
            optest_close(&one.in[which], &all.in[which], 0.0, 0.0, "alone");
        else
            optest_close(one.param[role].tensors, all.param[role].tensors, 0.0, 0.0, "alone");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("eager: gradients of mixtures of experts");
    TCase *tc = tcase_create("experts");
    tcase_add_checked_fixture(tc, optest_setup, optest_teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, routers_by_finite_differences, 0, (int)(sizeof routers / sizeof *routers));
    tcase_add_test(tc, a_sum_counts_at_least);
    tcase_add_test(tc, the_choice_is_that_of_forward);
    tcase_add_test(tc, scores_that_are_not_numbers);
    tcase_add_loop_test(tc, experts_by_finite_differences, 0, (int)(sizeof experts_cases / sizeof *experts_cases));
    tcase_add_test(tc, threads_do_not_show);
    tcase_add_test(tc, experts_that_do_not_exist);
    tcase_add_test(tc, no_tokens_and_no_upstream_gradient);
    tcase_add_test(tc, only_what_is_wanted);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
