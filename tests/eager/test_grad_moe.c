/* Gradients of MOE_ROUTE: finite differences of a reference in f64 for every kind of router, bad data. */
#include "device/device.h"
#include "difference.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* ---- routers -------------------------------------------------------------------------------------------------- */

static const struct {
    tn_score score;
    uint64_t features;
} routers[] = {
    {TN_SCORE_SOFTMAX, 0},
    {TN_SCORE_SOFTMAX, TN_HAS_RENORM},
    {TN_SCORE_SOFTMAX, TN_HAS_ROUTE_SCALE | TN_HAS_GROUPS},
    {TN_SCORE_SOFTMAX, TN_HAS_RENORM | TN_HAS_GROUPS | TN_HAS_GROUP_PAIRS},
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
    {TN_SCORE_SPARSEMIXER, 0},
    {TN_SCORE_SPARSEMIXER, TN_HAS_ROUTE_SCALE},
};

/* Of TN_SCORE_SPARSEMIXER: all experts are near; differences would jump where one comes or goes. */
static const double ALL_NEAR = 3;

static tn_call route_call(int kind, uint64_t more, tn_dtype dtype, int64_t tokens, int64_t hidden, int64_t experts,
                          int64_t k, bool bias)
{
    tn_call call = optest_call(TN_OP_MOE_ROUTE, dtype, 1, 2);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_SCORE] = (int32_t)routers[kind].score;
    site->features = routers[kind].features | more;
    site->num[TN_NUM_SCALE] = 2.5;
    site->num[TN_NUM_MARGIN] = ALL_NEAR;
    site->dim[TN_DIM_GROUPS] = 3;
    site->dim[TN_DIM_TOP_GROUPS] = 2;
    site->dim[TN_DIM_TOP_K] = k;
    tn_tensor router = difference_random(dtype, 2, (int64_t[]){experts, hidden}, 0.5, 21);
    tn_tensor correction = difference_random(TN_F32, 1, &experts, 0.125, 23);
    optest_param(site, TN_ROLE_ROUTER, &router, 1);
    optest_param(site, TN_ROLE_CORRECTION_BIAS, &correction, 1);
    if (site->features & TN_HAS_EXPERT_SCALE) {
        tn_tensor scale = difference_random(dtype, 1, &experts, 0.5, 25);
        optest_param(site, TN_ROLE_EXPERT_SCALE, &scale, 1);
    }
    if (bias) {
        tn_tensor b = difference_random(dtype, 1, &experts, 0.5, 22);
        optest_param(site, TN_ROLE_ROUTER_BIAS, &b, 1);
    }
    call.in[0] = difference_random(dtype, 2, (int64_t[]){tokens, hidden}, 0.5, 24);
    call.out[0] = optest_zeros(site->features & TN_HAS_F32_ROUTING ? TN_F32 : dtype, 2, (int64_t[]){tokens, k});
    call.out[1] = optest_zeros(TN_I32, 2, (int64_t[]){tokens, k});
    return call;
}

/* Sum of g w, with the experts that forward chose. */
static double route_loss(const difference *d)
{
    const tn_call *call = d->call;
    const tn_tensor *x = &call->in[0], *router = difference_param(call, TN_ROLE_ROUTER),
                    *bias = difference_param(call, TN_ROLE_ROUTER_BIAS);
    int64_t hidden = x->shape[1], experts = router->shape[0], k = call->out[0].shape[1];
    uint64_t features = call->site->features;
    int32_t score = call->site->meaning[TN_AXIS_SCORE];
    double total = 0.0, l[64], v[64];
    for (int64_t t = 0; t < x->shape[0]; t++) {
        double all = 0.0, chosen = 0.0;
        for (int64_t e = 0; e < experts; e++) {
            l[e] = bias ? difference_value(d, bias, e) : 0.0;
            for (int64_t h = 0; h < hidden; h++)
                l[e] += difference_value(d, x, t * hidden + h) * difference_value(d, router, e * hidden + h);
            l[e] = score == TN_SCORE_SIGMOID || score == TN_SCORE_TOPK_SIGMOID ? 1.0 / (1.0 + exp(-l[e])) : exp(l[e]);
            all += l[e];
        }
        for (int64_t j = 0; j < k; j++) {
            int64_t e = (int64_t)optest_at(&call->out[1], t * k + j);
            v[j] = l[e];
            chosen += v[j];
            if (score == TN_SCORE_SPARSEMIXER) { /* among what was not chosen before                     */
                v[j] /= all;
                all -= l[e];
            }
        }
        double divisor = features & TN_HAS_RENORM || score == TN_SCORE_TOPK_SOFTMAX ? chosen
                         : score == TN_SCORE_SOFTMAX                                ? all
                                                                                    : 1.0;
        for (int64_t j = 0; j < k; j++) {
            int64_t e = (int64_t)optest_at(&call->out[1], t * k + j);
            double factor = features & TN_HAS_ROUTE_SCALE ? 2.5 : 1.0;
            factor *= features & TN_HAS_EXPERT_SCALE
                          ? difference_value(d, difference_param(call, TN_ROLE_EXPERT_SCALE), e)
                          : 1.0;
            total += optest_at(&call->grads->out[0], t * k + j) * v[j] / divisor * factor;
        }
    }
    return total;
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
                tn_call call = route_call(_i, precision[p], dtypes[d], shapes[s].tokens, shapes[s].hidden,
                                          shapes[s].experts, shapes[s].k, p != 1);
                optest_run(&call);
                tn_grads *grads = optest_grads(&call, 31);
                optest_backward_threads(&call);
                difference_expect(&call, route_loss, &call.in[0], &grads->in[0], "x");
                difference_expect(&call, route_loss, difference_param(&call, TN_ROLE_ROUTER),
                                  difference_grad(&call, TN_ROLE_ROUTER), "router");
                if (p != 1)
                    difference_expect(&call, route_loss, difference_param(&call, TN_ROLE_ROUTER_BIAS),
                                      difference_grad(&call, TN_ROLE_ROUTER_BIAS), "router bias");
                if (call.site->features & TN_HAS_EXPERT_SCALE)
                    difference_expect(&call, route_loss, difference_param(&call, TN_ROLE_EXPERT_SCALE),
                                      difference_grad(&call, TN_ROLE_EXPERT_SCALE), "expert scale");
                optest_expect_zero(difference_grad(&call, TN_ROLE_CORRECTION_BIAS));
            }
}
END_TEST

/* Logits are the inputs: only what is near the best takes part, and the second is chosen without the first. */
START_TEST(sparse_weights)
{
    static const double logits[] = {1.5, 2.0, 1.97, -1.0};
    tn_call call = route_call(0, 0, TN_F32, 1, 4, 4, 2, false);
    tn_site *site = optest_site_of(&call);
    tn_tensor router = optest_zeros(TN_F32, 2, (int64_t[]){4, 4});
    for (int64_t e = 0; e < 4; e++) {
        optest_set(&router, 5 * e, 1);
        optest_set(&call.in[0], e, logits[e]);
    }
    site->meaning[TN_AXIS_SCORE] = TN_SCORE_SPARSEMIXER;
    site->num[TN_NUM_MARGIN] = 0.02;
    optest_param(site, TN_ROLE_ROUTER, &router, 1);
    optest_run(&call);
    ck_assert_double_eq(optest_at(&call.out[1], 0), 1);
    ck_assert_double_eq(optest_at(&call.out[1], 1), 2);
    ck_assert_double_eq_tol(optest_at(&call.out[0], 0), 1 / (1 + exp(-0.03)), 1e-6);
    ck_assert_double_eq(optest_at(&call.out[0], 1), 1);
    tn_grads *grads = optest_grads(&call, 31);
    for (int64_t i = 0; i < 2; i++)
        optest_set(&grads->out[0], i, 1);
    optest_backward(&call);
    double w = 1 / (1 + exp(-0.03)), slope = w * (1 - w), expected[] = {0, slope, -slope, 0};
    for (int64_t e = 0; e < 4; e++) /* the router is the identity                                     */
        ck_assert_double_eq_tol(optest_at(&grads->in[0], e), expected[e], 1e-6);
}
END_TEST

/* What is divided by at least so much is not divided by the sum: weights are as if scaled, and so are gradients. */
START_TEST(a_sum_counts_at_least)
{
    tn_call call = route_call(1, 0, TN_F32, 5, 9, 6, 3, true);
    optest_site_of(&call)->num[TN_NUM_EPS] = 4.0;
    tn_call plain = route_call(0, 0, TN_F32, 5, 9, 6, 3, true);
    optest_site_of(&plain)->features |= TN_HAS_ROUTE_SCALE;
    optest_site_of(&plain)->num[TN_NUM_SCALE] = 0.25;
    optest_run(&call);
    optest_run(&plain);
    tn_grads *grads = optest_grads(&call, 31), *like = optest_grads(&plain, 31);
    optest_backward_threads(&call);
    optest_backward_threads(&plain);
    for (int64_t i = 0; i < 15; i++)
        ck_assert_double_eq(optest_at(&call.out[0], i), optest_at(&plain.out[0], i));
    for (int64_t i = 0; i < 45; i++)
        ck_assert_double_eq(optest_at(&grads->in[0], i), optest_at(&like->in[0], i));
}
END_TEST

/* Backward makes forward's choice: with a router of the unit matrix the gradient of x is that of the logits, and only
 * those of chosen experts have one. Logits are so close that another order of summation would choose others. */
START_TEST(the_choice_is_that_of_forward)
{
    for (int kind = 0; kind < (int)(sizeof routers / sizeof *routers); kind++) {
        const int64_t tokens = 130, experts = 12, k = 4;
        if (routers[kind].score == TN_SCORE_SPARSEMIXER) /* others that are near have gradients, too     */
            continue;
        tn_call call = route_call(kind, 0, TN_F32, tokens, experts, experts, k, false);
        if (routers[kind].score == TN_SCORE_SOFTMAX)
            optest_site_of(&call)->features |= TN_HAS_RENORM;
        for (int64_t i = 0; i < experts * experts; i++)
            optest_set(difference_param(&call, TN_ROLE_ROUTER), i, i % (experts + 1) == 0);
        for (int64_t i = 0; i < experts; i++)
            optest_set(difference_param(&call, TN_ROLE_CORRECTION_BIAS), i, 0.0);
        for (int64_t i = 0; i < tokens * experts; i++) /* many ties, and neighbours in f32 */
            optest_set(&call.in[0], i, 1.0 + (double)((i * 7 + i / 12) % 3) * 0x1p-23);
        optest_run(&call);
        tn_grads *grads = optest_grads(&call, 31);
        for (int64_t i = 0; i < tokens * k; i++)
            optest_set(&grads->out[0], i, (double)(i % k) + 1.0);
        optest_backward(&call);
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t e = 0; e < experts; e++) {
                bool chosen = false;
                for (int64_t j = 0; j < k; j++)
                    chosen = chosen || optest_at(&call.out[1], t * k + j) == (double)e;
                if ((optest_at(&grads->in[0], t * experts + e) != 0.0) != chosen)
                    ck_abort_msg("router %d, token %d, expert %d", kind, (int)t, (int)e);
            }
    }
}
END_TEST

START_TEST(scores_that_are_not_numbers)
{
    for (int threads = 1; threads <= 3; threads++) {
        threads_set(threads);
        tn_call call = route_call(4, 0, TN_BF16, 300, 8, 6, 2, true);
        tn_grads *grads = optest_grads(&call, 1);
        optest_set(&call.in[0], 200 * 8 + 3, (double)NAN);
        optest_set(&call.in[0], 131 * 8 + 7, (double)NAN);
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(optest_try_backward(&call, &err), TN_E_INPUT);
        suite_expect_in(err.message, "token 131 ");
        ck_assert_str_eq(err.where, "model.layers.0.test");
        optest_expect_zero(&grads->in[0]);
        optest_expect_zero(difference_grad(&call, TN_ROLE_ROUTER));
        optest_expect_zero(difference_grad(&call, TN_ROLE_ROUTER_BIAS));
    }
}
END_TEST

START_TEST(no_tokens_and_no_upstream_gradient)
{
    for (int none = 0; none < 2; none++) {
        tn_call call = route_call(1, 0, TN_BF16, 4, 5, 6, 2, true);
        tn_grads *grads = optest_grads(&call, 1);
        difference_fill(difference_grad(&call, TN_ROLE_ROUTER), 5.0);
        difference_fill(difference_grad(&call, TN_ROLE_ROUTER_BIAS), 5.0);
        difference_fill(&grads->in[0], 5.0);
        if (none)
            grads->out[0] = (tn_tensor){0};
        else
            call.in[0].shape[0] = grads->out[0].shape[0] = grads->in[0].shape[0] = 0;
        optest_backward(&call);
        optest_expect_zero(difference_grad(&call, TN_ROLE_ROUTER));
        optest_expect_zero(difference_grad(&call, TN_ROLE_ROUTER_BIAS));
        optest_expect_zero(&grads->in[0]);
    }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of routers", 120);
    tcase_add_loop_test(tc, routers_by_finite_differences, 0, (int)(sizeof routers / sizeof *routers));
    suite_add(tc, sparse_weights, a_sum_counts_at_least, the_choice_is_that_of_forward, scores_that_are_not_numbers,
              no_tokens_and_no_upstream_gradient);
    return suite_run();
}
