/* Gradients of MOE_EXPERTS: finite differences of a reference in f64 for every layout of experts, bad data, and that
 * nothing depends on the number of threads. */
#include "device/device.h"
#include "difference.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

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
        list[0] = difference_random(dtype, 3, (int64_t[]){experts, io ? in : out, io ? out : in}, 0.25, seed);
        optest_param(site, role, list, 1);
        return;
    }
    for (int64_t e = 0; e < experts; e++)
        list[e] = difference_random(dtype, 2, (int64_t[]){out, in}, 0.25, seed + (uint32_t)e);
    optest_param(site, role, list, experts);
}

static tn_call experts_call(const experts_case *c, tn_layout layout, tn_dtype dtype)
{
    tn_call call = optest_call(TN_OP_MOE_EXPERTS, dtype, 3, 1);
    tn_site *site = optest_site_of(&call);
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
        tn_tensor gate_up = difference_random(dtype, 2, (int64_t[]){c->experts, 2 * c->inter}, 0.5, 61);
        tn_tensor down = difference_random(dtype, 2, (int64_t[]){c->experts, c->hidden}, 0.5, 62);
        optest_param(site, TN_ROLE_GATE_UP_BIAS, &gate_up, 1);
        optest_param(site, TN_ROLE_DOWN_BIAS, &down, 1);
    }
    call.in[0] = difference_random(dtype, 2, (int64_t[]){c->tokens, c->hidden}, 0.5, 3);
    call.in[1] = difference_random(c->f32_weights ? TN_F32 : dtype, 2, (int64_t[]){c->tokens, c->k}, 0.5, 4);
    call.in[2] = optest_zeros(TN_I32, 2, (int64_t[]){c->tokens, c->k});
    for (int64_t i = 0; i < c->tokens * c->k; i++)
        optest_set(&call.in[2], i, c->ids ? 1.0 : (double)((i * 5 + i / 3) % (c->experts - 1)));
    call.out[0] = optest_zeros(dtype, 2, (int64_t[]){c->tokens, c->hidden});
    return call;
}

/* Element (out, in) of an expert's matrix; up: of the second half of gate_up. */
static double experts_weight(const difference *d, tn_role role, int64_t e, int64_t out, int64_t in, bool up)
{
    const tn_tensor *t = difference_param(d->call, role);
    int32_t layout = d->call->site->meaning[TN_AXIS_LAYOUT];
    if (layout == TN_LAYOUT_EXPERT_LIST)
        return difference_value(d, &t[e], out * t[e].shape[1] + in);
    bool io = is_io(layout);
    int64_t rows = t->shape[1], columns = t->shape[2], outs = io ? columns : rows;
    if (layout == TN_LAYOUT_PAIRS_IO && role == TN_ROLE_GATE_UP)
        out = 2 * out + up;
    else
        out += up ? outs / 2 : 0;
    return difference_value(d, t, (e * rows + (io ? in : out)) * columns + (io ? out : in));
}

static double experts_bias(const difference *d, int64_t e, int64_t i, bool up)
{
    const tn_tensor *bias = difference_param(d->call, TN_ROLE_GATE_UP_BIAS);
    bool pairs = d->call->site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_PAIRS_IO;
    int64_t at = !bias ? 0 : pairs ? 2 * i + up : i + (up ? bias->shape[1] / 2 : 0);
    return bias ? difference_value(d, bias, e * bias->shape[1] + at) : 0.0;
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
    const tn_tensor *bias = difference_param(call, TN_ROLE_DOWN_BIAS);
    const tn_tensor *x = &call->in[0], *down = difference_param(call, TN_ROLE_DOWN);
    int64_t hidden = x->shape[1], k = call->in[1].shape[1];
    int64_t inter = list ? down->shape[1] : tn_tensor_count(down) / down->shape[0] / hidden;
    double total = 0.0, p[32];
    for (int64_t t = 0; t < x->shape[0]; t++)
        for (int64_t j = 0; j < k; j++) {
            int64_t e = (int64_t)optest_at(&call->in[2], t * k + j);
            for (int64_t i = 0; i < inter; i++) {
                double gate = experts_bias(d, e, i, false), up = experts_bias(d, e, i, true);
                for (int64_t h = 0; h < hidden; h++) {
                    double in = difference_value(d, x, t * hidden + h) *
                                (scaled ? difference_value(d, &call->in[1], t * k + j) : 1.0);
                    gate += in * experts_weight(d, list ? TN_ROLE_GATE : TN_ROLE_GATE_UP, e, i, h, false);
                    up += in * experts_weight(d, list ? TN_ROLE_UP : TN_ROLE_GATE_UP, e, i, h, !list);
                }
                p[i] = experts_gated(call->site, gate, up);
            }
            for (int64_t h = 0; h < hidden; h++) {
                double y = bias ? difference_value(d, bias, e * hidden + h) : 0.0;
                for (int64_t i = 0; i < inter; i++)
                    y += p[i] * experts_weight(d, TN_ROLE_DOWN, e, h, i, false);
                total += optest_at(&call->grads->out[0], t * hidden + h) * y *
                         (scaled ? 1.0 : difference_value(d, &call->in[1], t * k + j));
            }
        }
    return total;
}

static void check_experts(const tn_call *call)
{
    static const tn_role roles[] = {TN_ROLE_GATE, TN_ROLE_UP,           TN_ROLE_GATE_UP,
                                    TN_ROLE_DOWN, TN_ROLE_GATE_UP_BIAS, TN_ROLE_DOWN_BIAS};
    difference_expect(call, experts_loss, &call->in[0], &call->grads->in[0], "x");
    difference_expect(call, experts_loss, &call->in[1], &call->grads->in[1], "weights");
    for (int r = 0; r < 6; r++)
        for (int64_t i = 0; i < call->site->param[roles[r]].count; i++)
            difference_expect(call, experts_loss, &difference_param(call, roles[r])[i],
                              &difference_grad(call, roles[r])[i], "experts");
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
            tn_call call = experts_call(&experts_cases[_i], layouts[l], dtypes[d]);
            optest_grads(&call, 11);
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
            tn_call call = experts_call(&cases[i], TN_LAYOUT_EXPERT_LIST, dtypes[d]);
            tn_grads *grads = optest_grads(&call, 1);
            optest_backward_threads(&call);
            for (int role = TN_ROLE_GATE; role <= TN_ROLE_DOWN; role++) {
                optest_expect_zero(&grads->param[role].tensors[cases[i].experts - 1]);
                double size = 0.0;
                for (int64_t j = 0; j < 100; j++)
                    size += fabs(optest_at(&grads->param[role].tensors[1], j));
                ck_assert_double_gt(size, 0.0);
            }
        }
}
END_TEST

START_TEST(experts_that_do_not_exist)
{
    const int32_t bad[] = {3, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        tn_call call = experts_call(&experts_cases[1], TN_LAYOUT_STACKED_OI, TN_F16);
        tn_grads *grads = optest_grads(&call, 1);
        ((int32_t *)call.in[2].data)[2 * 3 + 1] = bad[i];
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(optest_try_backward(&call, &err), TN_E_INPUT);
        suite_expect_in(err.message, "token 3 ");
        optest_expect_zero(&grads->in[0]);
        optest_expect_zero(&grads->in[1]);
        optest_expect_zero(difference_grad(&call, TN_ROLE_GATE_UP));
        optest_expect_zero(difference_grad(&call, TN_ROLE_DOWN));
    }
}
END_TEST

START_TEST(no_tokens_and_no_upstream_gradient)
{
    for (int none = 0; none < 2; none++) {
        tn_call call = experts_call(&experts_cases[0], TN_LAYOUT_STACKED_IO, TN_BF16);
        tn_grads *grads = optest_grads(&call, 1);
        difference_fill(difference_grad(&call, TN_ROLE_GATE_UP), 5.0);
        difference_fill(difference_grad(&call, TN_ROLE_DOWN), 5.0);
        difference_fill(&grads->in[0], 5.0);
        difference_fill(&grads->in[1], 5.0);
        if (none)
            grads->out[0] = (tn_tensor){0};
        else
            call.in[0].shape[0] = call.in[1].shape[0] = call.in[2].shape[0] = grads->out[0].shape[0] =
                grads->in[0].shape[0] = grads->in[1].shape[0] = 0;
        optest_backward(&call);
        optest_expect_zero(difference_grad(&call, TN_ROLE_GATE_UP));
        optest_expect_zero(difference_grad(&call, TN_ROLE_DOWN));
        optest_expect_zero(&grads->in[0]);
        optest_expect_zero(&grads->in[1]);
    }
}
END_TEST

/* Each gradient alone is what it is among the others. */
START_TEST(only_what_is_wanted)
{
    tn_call call = experts_call(&experts_cases[0], TN_LAYOUT_STACKED_OI, TN_F32);
    const tn_grads *all = optest_grads(&call, 1);
    optest_backward(&call);
    for (int which = 0; which < 4; which++) {
        tn_grads *one = optest_grads(&call, 1);
        for (int i = 0; i < 2; i++)
            if (which != i)
                one->in[i].data = NULL;
        one->param[TN_ROLE_GATE_UP].count = which == 2;
        one->param[TN_ROLE_DOWN].count = which == 3;
        optest_backward(&call);
        tn_role role = which == 2 ? TN_ROLE_GATE_UP : TN_ROLE_DOWN;
        if (which < 2)
            optest_close(&one->in[which], &all->in[which], 0.0, 0.0, "alone");
        else
            optest_close(one->param[role].tensors, all->param[role].tensors, 0.0, 0.0, "alone");
    }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of experts", 120);
    tcase_add_loop_test(tc, experts_by_finite_differences, 0, (int)(sizeof experts_cases / sizeof *experts_cases));
    suite_add(tc, threads_do_not_show, experts_that_do_not_exist, no_tokens_and_no_upstream_gradient,
              only_what_is_wanted);
    return suite_run();
}
