/* MOE_ROUTE and MOE_EXPERTS: every kind of score, ties, groups, values that are not numbers, errors, and sums in the
 * order that the contract fixes. */
#include "device/device.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* ---- routing --------------------------------------------------------------------------------------- */

/* A router of the unit matrix: the logits are the tokens themselves. */
static tn_call route_call(tn_dtype dtype, tn_score score, uint64_t features, int64_t tokens, int64_t experts, int64_t k)
{
    tn_call call = optest_call(TN_OP_MOE_ROUTE, dtype, 1, 2);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_SCORE] = (int32_t)score;
    site->features = features;
    tn_tensor router = optest_zeros(dtype, 2, (int64_t[]){experts, experts});
    for (int64_t e = 0; e < experts; e++)
        optest_set(&router, e * experts + e, 1.0);
    optest_param(site, TN_ROLE_ROUTER, &router, 1);
    call.in[0] = optest_random(dtype, 2, (int64_t[]){tokens, experts}, 3);
    call.out[0] = optest_zeros(features & TN_HAS_F32_ROUTING ? TN_F32 : dtype, 2, (int64_t[]){tokens, k});
    call.out[1] = optest_zeros(TN_I32, 2, (int64_t[]){tokens, k});
    return call;
}

static void logits(tn_call *call, int64_t token, const double *values)
{
    for (int64_t e = 0; e < call->in[0].shape[1]; e++)
        optest_set(&call->in[0], token * call->in[0].shape[1] + e, values[e]);
}

static void expect_route(const tn_call *call, int64_t token, const int *experts, const double *weights)
{
    int64_t k = call->out[0].shape[1];
    double unit = optest_epsilon(call->out[0].dtype);
    for (int64_t j = 0; j < k; j++) {
        ck_assert_msg(optest_at(&call->out[1], token * k + j) == experts[j], "slot %d has expert %g, expected %d",
                      (int)j, optest_at(&call->out[1], token * k + j), experts[j]);
        /* A few f32 operations, then one rounding. */
        double got = optest_at(&call->out[0], token * k + j);
        ck_assert_msg(fabs(got - weights[j]) <= fabs(weights[j]) * (unit + 8.0 * 0x1p-24),
                      "slot %d weighs %.9g, expected %.9g", (int)j, got, weights[j]);
    }
}

START_TEST(softmax_scores)
{
    const double l[] = {0.5, 2.0, -1.0, 1.0};
    const double sum = exp(0.5) + exp(2.0) + exp(-1.0) + exp(1.0), best = exp(2.0) / sum, next = exp(1.0) / sum;
    for (int d = 0; d < 3; d++)
        for (int f32 = 0; f32 < 2; f32++) {
            uint64_t routing = f32 ? TN_HAS_F32_ROUTING : 0;
            tn_call call = route_call(dtypes[d], TN_SCORE_SOFTMAX, routing, 1, 4, 2);
            logits(&call, 0, l);
            optest_run(&call);
            expect_route(&call, 0, (int[]){1, 3}, (double[]){best, next});
            optest_site_of(&call)->features |= TN_HAS_RENORM;
            optest_run(&call);
            expect_route(&call, 0, (int[]){1, 3}, (double[]){best / (best + next), next / (best + next)});
            optest_site_of(&call)->features |= TN_HAS_ROUTE_SCALE;
            optest_site_of(&call)->num[TN_NUM_SCALE] = 2.5;
            optest_run(&call);
            expect_route(&call, 0, (int[]){1, 3}, (double[]){2.5 * best / (best + next), 2.5 * next / (best + next)});
        }
}
END_TEST

START_TEST(sigmoid_scores)
{
    const double l[] = {0.5, 2.0, -1.0, 1.0}, bias[] = {0.9, -0.6, 1.0, 0.0};
    const double s0 = 1.0 / (1.0 + exp(-0.5)), s2 = 1.0 / (1.0 + exp(1.0));
    tn_call call =
        route_call(TN_BF16, TN_SCORE_SIGMOID, TN_HAS_CORRECTION_BIAS | TN_HAS_RENORM | TN_HAS_F32_ROUTING, 1, 4, 2);
    tn_tensor correction = optest_zeros(TN_F32, 1, (int64_t[]){4});
    for (int i = 0; i < 4; i++)
        optest_set(&correction, i, bias[i]);
    optest_param(optest_site_of(&call), TN_ROLE_CORRECTION_BIAS, &correction, 1);
    logits(&call, 0, l);
    optest_run(&call);
    /* The bias chooses, the scores weigh. */
    expect_route(&call, 0, (int[]){0, 2}, (double[]){s0 / (s0 + s2 + 1e-20), s2 / (s0 + s2 + 1e-20)});
    optest_site_of(&call)->num[TN_NUM_EPS] = 0.25; /* instead of it                                     */
    optest_run(&call);
    expect_route(&call, 0, (int[]){0, 2}, (double[]){s0 / (s0 + s2 + 0.25), s2 / (s0 + s2 + 0.25)});
    optest_site_of(&call)->num[TN_NUM_EPS] = 0;
    /* Scores of 0: only a sigmoid's sum has the 1e-20, so the weights are 0 and not NaN. */
    logits(&call, 0, (double[]){-1000.0, -1000.0, -1000.0, -1000.0});
    optest_run(&call);
    expect_route(&call, 0, (int[]){2, 0}, (double[]){0.0, 0.0});
    optest_set(&correction, 1, (double)NAN);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(optest_try(&call, &err), TN_E_INPUT);
    suite_expect_in(err.message, "expert 1");
}
END_TEST

START_TEST(softmax_of_the_chosen)
{
    tn_call call = route_call(TN_F32, TN_SCORE_TOPK_SOFTMAX, 0, 1, 4, 2);
    tn_tensor bias = optest_zeros(TN_F32, 1, (int64_t[]){4});
    optest_set(&bias, 0, 4.0);
    optest_param(optest_site_of(&call), TN_ROLE_ROUTER_BIAS, &bias, 1);
    logits(&call, 0, (double[]){0.5, 2.0, -1.0, 1.0});
    optest_run(&call);
    double a = exp(4.5), b = exp(2.0);
    expect_route(&call, 0, (int[]){0, 1}, (double[]){a / (a + b), b / (a + b)});
}
END_TEST

START_TEST(ties_go_to_the_lowest_expert)
{
    for (int score = TN_SCORE_SOFTMAX; score <= TN_SCORE_TOPK_SOFTMAX; score++) {
        tn_call call = route_call(TN_F32, (tn_score)score, 0, 1, 6, 4);
        logits(&call, 0, (double[]){1.0, 3.0, 1.0, 3.0, 1.0, 1.0});
        optest_run(&call);
        const double expected[] = {1, 3, 0, 2};
        for (int j = 0; j < 4; j++)
            ck_assert_double_eq(optest_at(&call.out[1], j), expected[j]);
    }
}
END_TEST

START_TEST(groups)
{
    /* Sigmoid: a group is as good as its two best together: the second group beats the first's single best. */
    tn_call call = route_call(TN_F32, TN_SCORE_SIGMOID, TN_HAS_GROUPS, 1, 6, 2);
    tn_site *site = optest_site_of(&call);
    site->dim[TN_DIM_GROUPS] = 2;
    site->dim[TN_DIM_TOP_GROUPS] = 1;
    logits(&call, 0, (double[]){3.0, -9.0, -9.0, 1.0, 1.0, 2.0});
    optest_run(&call);
    ck_assert_double_eq(optest_at(&call.out[1], 0), 5);
    ck_assert_double_eq(optest_at(&call.out[1], 1), 3);
    /* Softmax: by the single best. What is excluded scores 0, it still can be chosen after everything else. */
    site->meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    optest_run(&call);
    ck_assert_double_eq(optest_at(&call.out[1], 0), 0);
    ck_assert_double_eq(optest_at(&call.out[1], 1), 1);
    /* ... or by the best two, here those of the second group. */
    site->features |= TN_HAS_GROUP_PAIRS;
    logits(&call, 0, (double[]){2.0, -9.0, -9.0, 1.8, 1.8, 1.0});
    optest_run(&call);
    ck_assert_double_eq(optest_at(&call.out[1], 0), 3);
    ck_assert_double_eq(optest_at(&call.out[1], 1), 4);
    site->dim[TN_DIM_TOP_GROUPS] = 3;
    site->dim[TN_DIM_GROUPS] = 4;
    ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
}
END_TEST

START_TEST(scores_that_are_not_numbers)
{
    for (int score = TN_SCORE_SOFTMAX; score <= TN_SCORE_TOPK_SOFTMAX; score++)
        for (int threads = 1; threads <= 3; threads++) {
            threads_set(threads);
            tn_call call = route_call(TN_BF16, (tn_score)score, 0, 300, 8, 2);
            memset(call.out[0].data, 0x11, 300 * 2 * 2);
            memset(call.out[1].data, 0x11, 300 * 2 * 4);
            optest_set(&call.in[0], 200 * 8 + 3, (double)NAN);
            optest_set(&call.in[0], 131 * 8 + 7, (double)NAN);
            tn_error err = TN_ERROR_INIT;
            ck_assert_int_eq(optest_try(&call, &err), TN_E_INPUT);
            suite_expect_in(err.message, "token 131 ");
            ck_assert_str_eq(err.where, "model.layers.0.test");
            for (int64_t i = 0; i < 300 * 2 * 2; i++)
                if (((unsigned char *)call.out[0].data)[i] != 0x11 ||
                    ((unsigned char *)call.out[1].data)[2 * i] != 0x11)
                    ck_abort_msg("byte %d was written", (int)i);
        }
}
END_TEST

/* Logits round to the model's type unless the router is an f32 one. */
START_TEST(routers_in_f32)
{
    for (int f32 = 0; f32 < 2; f32++) {
        tn_call call = route_call(TN_BF16, TN_SCORE_TOPK_SOFTMAX, f32 ? TN_HAS_F32_ROUTER : 0, 1, 3, 1);
        tn_tensor router = call.site->param[TN_ROLE_ROUTER].tensors[0];
        optest_set(&router, 1 * 3 + 1, 0x1p-10); /* expert 0: 1 * 1; expert 1: 1 * 1 + 1 * 2^-10 */
        optest_set(&router, 1 * 3 + 0, 1.0);
        logits(&call, 0, (double[]){1.0, 1.0, -4.0});
        optest_run(&call);
        ck_assert_double_eq(optest_at(&call.out[1], 0), f32);
    }
}
END_TEST

START_TEST(many_experts_and_tokens)
{
    for (int d = 0; d < 3; d++) {
        tn_call call = route_call(dtypes[d], TN_SCORE_SOFTMAX, TN_HAS_RENORM, 150, 130, 8);
        tn_tensor router = optest_random(dtypes[d], 2, (int64_t[]){130, 130}, 8);
        optest_param(optest_site_of(&call), TN_ROLE_ROUTER, &router, 1);
        optest_threads(&call);
        for (int64_t t = 0; t < 150; t++) {
            double sum = 0.0;
            for (int64_t j = 0; j < 8; j++) {
                sum += optest_at(&call.out[0], t * 8 + j);
                if (j && optest_at(&call.out[0], t * 8 + j) > optest_at(&call.out[0], t * 8 + j - 1))
                    ck_abort_msg("token %d: slots are not in order", (int)t);
            }
            ck_assert_double_eq_tol(sum, 1.0, 0.02);
        }
        call.in[0].shape[0] = call.out[0].shape[0] = call.out[1].shape[0] = 0;
        optest_run(&call);
    }
}
END_TEST

/* ---- experts --------------------------------------------------------------------------------------------- */

typedef struct experts_case {
    int64_t tokens, hidden, inter, experts, k;
    bool f32_weights;
} experts_case;

static tn_call experts_call(const experts_case *c, tn_dtype dtype)
{
    tn_call call = optest_call(TN_OP_MOE_EXPERTS, dtype, 3, 1);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_ACT] = TN_ACT_RELU;
    site->meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_STACKED_OI;
    tn_tensor gate_up = optest_random(dtype, 3, (int64_t[]){c->experts, 2 * c->inter, c->hidden}, 1);
    tn_tensor down = optest_random(dtype, 3, (int64_t[]){c->experts, c->hidden, c->inter}, 2);
    optest_param(site, TN_ROLE_GATE_UP, &gate_up, 1);
    optest_param(site, TN_ROLE_DOWN, &down, 1);
    call.in[0] = optest_random(dtype, 2, (int64_t[]){c->tokens, c->hidden}, 3);
    call.in[1] = optest_random(c->f32_weights ? TN_F32 : dtype, 2, (int64_t[]){c->tokens, c->k}, 4);
    call.in[2] = optest_zeros(TN_I32, 2, (int64_t[]){c->tokens, c->k});
    for (int64_t i = 0; i < c->tokens * c->k; i++)
        optest_set(&call.in[2], i, (double)((i * i * 7 + i / 3) % c->experts));
    call.out[0] = optest_zeros(dtype, 2, (int64_t[]){c->tokens, c->hidden});
    return call;
}

/* With relu every step before the last product is exact but for its rounding, and equal to the reference's. */
static void experts_check(const tn_call *call, const experts_case *c)
{
    tn_dtype dt = call->in[0].dtype;
    const tn_tensor *gate_up = call->site->param[TN_ROLE_GATE_UP].tensors,
                    *down = call->site->param[TN_ROLE_DOWN].tensors;
    double *p = malloc((size_t)c->inter * sizeof *p);
    double *sum = malloc((size_t)c->hidden * sizeof *sum), *size = malloc((size_t)c->hidden * sizeof *size);
    for (int64_t t = 0; t < c->tokens; t++) {
        for (int64_t h = 0; h < c->hidden; h++)
            sum[h] = size[h] = 0.0;
        for (int64_t j = 0; j < c->k; j++) {
            int64_t e = (int64_t)optest_at(&call->in[2], t * c->k + j);
            double weight = optest_at(&call->in[1], t * c->k + j);
            for (int64_t i = 0; i < c->inter; i++) {
                double gate = 0.0, up = 0.0;
                for (int64_t h = 0; h < c->hidden; h++) {
                    double x = optest_at(&call->in[0], t * c->hidden + h);
                    gate += x * optest_at(gate_up, (e * 2 * c->inter + i) * c->hidden + h);
                    up += x * optest_at(gate_up, (e * 2 * c->inter + c->inter + i) * c->hidden + h);
                }
                p[i] = optest_rounded(fmax(optest_rounded(gate, dt), 0.0) * optest_rounded(up, dt), dt);
            }
            for (int64_t h = 0; h < c->hidden; h++) {
                double y = 0.0, magnitude = 0.0;
                for (int64_t i = 0; i < c->inter; i++) {
                    double term = p[i] * optest_at(down, (e * c->hidden + h) * c->inter + i);
                    y += term;
                    magnitude += fabs(term);
                }
                double term = optest_rounded(y, dt) * weight;
                sum[h] += c->f32_weights ? term : optest_rounded(term, dt);
                size[h] += magnitude * fabs(weight);
            }
        }
        double unit = optest_epsilon(dt);
        for (int64_t h = 0; h < c->hidden; h++) {
            double got = optest_at(&call->out[0], t * c->hidden + h);
            /* f32 sums in another order: an ulp of what is added up per term; then the last rounding. The product of
             * relu(gate) and up needs no more than f32's bits, so nothing before that differs. */
            double bound = size[h] * (double)(c->inter + c->k) * 0x1p-24 + fabs(sum[h]) * unit + 1e-30;
            bool flips = dt != TN_F32; /* a sum at a tie of dt may round either way before its weight  */
            if (!(fabs(got - sum[h]) <= bound + (flips ? size[h] * unit : 0.0)))
                ck_abort_msg("%s, token %d, feature %d: %.9g, expected %.9g +- %.2g", tn_dtype_name(dt), (int)t, (int)h,
                             got, sum[h], bound);
        }
    }
    free(p);
    free(sum);
    free(size);
}

static const experts_case experts_cases[] = {
    {1, 16, 8, 4, 2, false},  {1, 130, 140, 8, 3, true}, {40, 64, 24, 5, 2, false},
    {70, 33, 17, 3, 3, true}, {90, 20, 12, 1, 1, false}, {0, 16, 8, 4, 2, false},
};

START_TEST(experts_equal_the_reference)
{
    for (int d = 0; d < 3; d++) {
        tn_call call = experts_call(&experts_cases[_i], dtypes[d]);
        optest_threads(&call);
        experts_check(&call, &experts_cases[_i]);
    }
}
END_TEST

START_TEST(one_expert_takes_more_than_a_tile)
{
    const experts_case c = {600, 24, 16, 2, 1, false};
    tn_call call = experts_call(&c, TN_BF16);
    for (int64_t i = 0; i < 600; i++)
        optest_set(&call.in[2], i, i == 77 ? 0.0 : 1.0);
    optest_threads(&call);
    experts_check(&call, &c);
}
END_TEST

/* Enough work for several threads to share: the same bits whatever their number. */
START_TEST(threads_do_not_show)
{
    const experts_case c = {200, 256, 192, 8, 4, false};
    for (int d = 0; d < 3; d++) {
        tn_call call = experts_call(&c, dtypes[d]);
        optest_threads(&call);
    }
}
END_TEST

START_TEST(experts_that_do_not_exist)
{
    const experts_case c = {40, 16, 8, 4, 2, false};
    const int32_t bad[] = {4, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        tn_call call = experts_call(&c, TN_F32);
        ((int32_t *)call.in[2].data)[2 * 31 + 1] = bad[i];
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(optest_try(&call, &err), TN_E_INPUT);
        char expert[40];
        snprintf(expert, sizeof expert, "expert %" PRId32 ",", bad[i]);
        ck_assert_msg(strstr(err.message, "token 31 ") && strstr(err.message, expert), "%s", err.message);
        for (int64_t j = 0; j < 40 * 16; j++)
            ck_assert_msg(optest_at(&call.out[0], j) == 0.0, "element %d was written", (int)j);
    }
}
END_TEST

START_TEST(experts_without_meaning)
{
    const experts_case c = {2, 16, 8, 4, 2, false};
    tn_call call = experts_call(&c, TN_F32);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
    ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
    site->meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_STACKED_IO;
    site->meaning[TN_AXIS_ACT] = 0;
    ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
    site->meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    site->param[TN_ROLE_DOWN].count = 0;
    ck_assert_int_eq(optest_try(&call, NULL), TN_E_INTERNAL);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: mixtures of experts", 120);
    suite_add(tc, softmax_scores, sigmoid_scores, softmax_of_the_chosen, ties_go_to_the_lowest_expert, groups,
              scores_that_are_not_numbers, routers_in_f32, many_experts_and_tokens);
    tcase_add_loop_test(tc, experts_equal_the_reference, 0, (int)(sizeof experts_cases / sizeof *experts_cases));
    suite_add(tc, one_expert_takes_more_than_a_tile, threads_do_not_show, experts_that_do_not_exist,
              experts_without_meaning);
    return suite_run();
}
