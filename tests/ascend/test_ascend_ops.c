/* Attention, routers, experts and grouped products of the device npu, on the simulator of the vendor's libraries,
 * against the CPU: made-up sites of every kind that the device takes, and reasons for those that it declines. */
#include "check/check_device.h"
#include "check/inputs.h"
#include "npu_pair.h"
#include "sanitizer.h"
#include "suite.h"
#include "variants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sites -------------------------------------------------------------------------------------------------- */

static const variant variants[] = {
    {"plain attention", .op = TN_OP_ATTENTION},
    {"a key head for each", .op = TN_OP_ATTENTION, .dims = {{TN_DIM_KV_HEADS, 6}}},
    {"one key head", .op = TN_OP_ATTENTION, .dims = {{TN_DIM_KV_HEADS, 1}, {TN_DIM_HEAD, 24}}},
    {"values of another width", .op = TN_OP_ATTENTION, .dims = {{TN_DIM_HEAD_V, 20}}},
    {"window", .op = TN_OP_ATTENTION, .features = TN_HAS_WINDOW},
    {"chunk", .op = TN_OP_ATTENTION, .features = TN_HAS_CHUNK},
    {"softcap", .op = TN_OP_ATTENTION, .features = TN_HAS_SOFTCAP},
    {"sinks", .op = TN_OP_ATTENTION, .features = TN_HAS_SINKS},
    {"sinks in a window", .op = TN_OP_ATTENTION, .features = TN_HAS_SINKS | TN_HAS_WINDOW},
    {"both sides", .op = TN_OP_ATTENTION, .features = TN_HAS_BOTH_SIDES},
    {"both sides in a chunk", .op = TN_OP_ATTENTION, .features = TN_HAS_BOTH_SIDES | TN_HAS_CHUNK},
    {"ALiBi", .op = TN_OP_ATTENTION, .features = TN_HAS_ALIBI},
    {"ALiBi, a key head for each", .op = TN_OP_ATTENTION, .features = TN_HAS_ALIBI, .dims = {{TN_DIM_KV_HEADS, 6}}},
    {"ALiBi behind a softcap", .op = TN_OP_ATTENTION, .features = TN_HAS_ALIBI | TN_HAS_SOFTCAP | TN_HAS_SINKS},
    {"chosen keys", .op = TN_OP_ATTENTION, .features = TN_HAS_CHOSEN_KEYS},
    {"chosen keys of a window", .op = TN_OP_ATTENTION, .features = TN_HAS_CHOSEN_KEYS | TN_HAS_WINDOW},
    {"groups of a row", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W, .features = TN_HAS_GROUPS},
    {"groups, 1 + w", .op = TN_OP_RMS_NORM, .norm = TN_NORM_1_PLUS_W, .features = TN_HAS_GROUPS},
    {"groups, gated", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W_GATED, .features = TN_HAS_GROUPS},
    {"groups without a weight", .op = TN_OP_RMS_NORM, .norm = TN_NORM_NO_WEIGHT, .features = TN_HAS_GROUPS},
    {"a gate that comes first", .op = TN_OP_RMS_NORM, .norm = TN_NORM_GATED_W},
    {"groups of what was gated", .op = TN_OP_RMS_NORM, .norm = TN_NORM_GATED_W, .features = TN_HAS_GROUPS},
    {"a gate in f32", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W_GATED_F32},
    {"softmax router", .op = TN_OP_MOE_ROUTE},
    {"sparsemixer", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_SPARSEMIXER},
    {"sparsemixer in f32", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_SPARSEMIXER, .features = TN_HAS_F32_ROUTER,
     .dims = {{TN_DIM_TOP_K, 4}}},
    {"renormalised", .op = TN_OP_MOE_ROUTE, .features = TN_HAS_RENORM, .eps = 1e-9},
    {"sigmoid router", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_SIGMOID,
     .features = TN_HAS_RENORM | TN_HAS_CORRECTION_BIAS | TN_HAS_ROUTE_SCALE, .eps = 1e-3},
    {"softmax of the best", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_TOPK_SOFTMAX, .features = TN_HAS_EXPERT_SCALE},
    {"sigmoid of the best", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_TOPK_SIGMOID},
    {"router in f32", .op = TN_OP_MOE_ROUTE,
     .features = TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING | TN_HAS_CORRECTION_BIAS},
    {"best groups", .op = TN_OP_MOE_ROUTE, .features = TN_HAS_GROUPS},
    {"groups by pairs", .op = TN_OP_MOE_ROUTE, .features = TN_HAS_GROUP_PAIRS},
    {"groups of sigmoids", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_SIGMOID,
     .features = TN_HAS_GROUPS | TN_HAS_CORRECTION_BIAS | TN_HAS_RENORM},
    {"all experts", .op = TN_OP_MOE_ROUTE, .dims = {{TN_DIM_EXPERTS, 4}, {TN_DIM_TOP_K, 4}}},
    {"experts in a list", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_EXPERT_LIST},
    {"a list of many", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_EXPERT_LIST,
     .dims = {{TN_DIM_EXPERTS, 70}, {TN_DIM_TOP_K, 6}}},
    {"a list of too many", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_EXPERT_LIST,
     .dims = {{TN_DIM_EXPERTS, 130}, {TN_DIM_TOP_K, 3}}},
    {"stacked, [out,in]", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI},
    {"stacked, [in,out]", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_IO},
    {"pairs, clamped, biased", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_PAIRS_IO, .act = TN_ACT_CLAMPED_SWIGLU,
     .features = TN_HAS_BIAS},
    {"a list with biases", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_EXPERT_LIST, .features = TN_HAS_BIAS},
    {"weights of inputs", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_IO, .features = TN_HAS_INPUT_SCALE},
    {"weights in f32", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI, .features = TN_HAS_F32_ROUTING},
    {"gelu", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI, .act = TN_ACT_GELU_TANH},
    {"quick gelu", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI, .act = TN_ACT_QUICK_GELU},
    {"gelu with erf", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_EXPERT_LIST, .act = TN_ACT_GELU},
    {"relu", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_IO, .act = TN_ACT_RELU},
    {"one expert", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI,
     .dims = {{TN_DIM_EXPERTS, 1}, {TN_DIM_TOP_K, 1}}},
    {"groups in a list", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_EXPERT_LIST},
    {"groups, [in,out] in a list", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_LIST_IO},
    {"groups, [out,in]", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_OI},
    {"groups, [in,out]", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_IO},
};
enum { VARIANTS = sizeof variants / sizeof *variants };
static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* ---- calls -------------------------------------------------------------------------------------------------- */

/* Of each variant; under the sanitizers, where they take minutes, each has one in turn. */
enum { TYPES = SANITIZER ? 1 : 3 };

START_TEST(they_are_right_at_made_up_sites)
{
    const variant *v = &variants[_i / TYPES];
    tn_site site = variant_site(v, dtypes[_i % 3]);
    tn_error err = TN_ERROR_INIT;
    npu_pair_open();
    npu_pair_sites *s = npu_pair_draw(&site);
    ck_assert_msg(device_supports(&npu_pair_npu, &s->there, &err) == TN_OK, "%s: %s", v->name, err.message);
    check_device_subject subject = {.device = &npu_pair_npu, .cpu = &npu_pair_cpu, .site = &s->there, .op = v->op};
    tn_status status = check_device(&subject, &err);
    ck_assert_msg(status == TN_OK, "%s, %s: %s", v->name, tn_dtype_name(dtypes[_i % 3]), err.message);
    npu_pair_drop(s);
    npu_pair_close();
}
END_TEST

/* Prompts behind a long cache, whose scores do not fit into the scratch at once; decoding in a cache that is a ring;
 * rows with padding. */
static const check_case cached[] = {{.batch = 1, .tokens = 600, .past = 4200, .seed = 4},
                                    {.batch = 1, .tokens = 1, .past = 4200, .seed = 5},
                                    {.batch = 3, .tokens = 1, .past = 40, .profile = INPUTS_CROWDED, .seed = 6},
                                    {.batch = 2, .tokens = 37, .past = 21, .profile = INPUTS_CROWDED, .seed = 7},
                                    {.batch = 2, .tokens = 5, .profile = INPUTS_OUTLIERS, .seed = 8},
                                    {.batch = 3, .tokens = 7, .seed = 9}};
enum { CACHED = sizeof cached / sizeof *cached, ATTENDS = 6 };

START_TEST(attention_behind_caches)
{
    static const uint64_t features[ATTENDS] = {
        0, TN_HAS_WINDOW, TN_HAS_CHUNK, TN_HAS_WINDOW | TN_HAS_BOTH_SIDES, TN_HAS_ALIBI, TN_HAS_CHOSEN_KEYS};
    inputs in;
    tn_error err = TN_ERROR_INIT;
    const variant v = {.op = TN_OP_ATTENTION, .features = features[_i / 3]};
    tn_site site = variant_site(&v, dtypes[_i % 3]);
    npu_pair_open();
    npu_pair_sites *s = npu_pair_draw(&site);
    for (int i = 0; i < CACHED; i++) {
        ck_assert_msg(inputs_draw_case(&in, &s->drawn.site, &cached[i], &err) == TN_OK, "%s", err.message);
        npu_pair_compare(s, &in, dtypes[_i % 3] == TN_F32 ? 256 : 8);
        inputs_close(&in);
    }
    npu_pair_drop(s);
    npu_pair_close();
}
END_TEST

/* Calls of no tokens do nothing, and attention to no keys gives zeros. */
START_TEST(empty_calls)
{
    inputs in;
    tn_error err = TN_ERROR_INIT;
    npu_pair_open();
    for (int i = 0; i < VARIANTS; i++) {
        tn_site site = variant_site(&variants[i], TN_BF16);
        npu_pair_sites *s = npu_pair_draw(&site);
        for (int64_t tokens = 0; tokens < 2; tokens++) {
            ck_assert_int_eq(inputs_draw_case(&in, &s->drawn.site, &(check_case){.batch = 1, .tokens = 1}, &err),
                             TN_OK);
            bool attends = site.op == TN_OP_ATTENTION;
            for (int t = 0; t < in.call.in_count && tokens == 0; t++)
                if (site.op != TN_OP_GROUPED_MATMUL || t == 0)
                    in.call.in[t].shape[attends ? 1 : 0] = t == 1 && attends ? in.call.in[t].shape[1] : 0;
            for (int t = 0; t < in.call.out_count && tokens == 0; t++)
                in.call.out[t].shape[attends ? 1 : 0] = 0;
            for (int t = 0; t < 5 && tokens == 1 && attends; t++)
                if (t == 1 || t == 2 || t == 4)
                    in.call.in[t].shape[1] = 0;
            if (tokens == 0 && site.op == TN_OP_GROUPED_MATMUL)
                memset(in.call.in[1].data, 0, (size_t)in.call.in[1].shape[0] * sizeof(int64_t));
            if (tokens == 0 || attends)
                npu_pair_compare(s, &in, 0);
            inputs_close(&in);
        }
        npu_pair_drop(s);
    }
    npu_pair_close();
}
END_TEST

/* Counts that are not those of the rows are found where the host has put them there. */
START_TEST(counts_are_looked_at)
{
    inputs in;
    tn_error err = TN_ERROR_INIT;
    const variant v = {.op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_OI};
    tn_site site = variant_site(&v, TN_BF16);
    npu_pair_open();
    npu_pair_sites *s = npu_pair_draw(&site);
    ck_assert_int_eq(inputs_draw_case(&in, &s->drawn.site, &(check_case){.batch = 1, .tokens = 9}, &err), TN_OK);
    ((int64_t *)in.call.in[1].data)[2] += 1;
    tn_call far = in.call;
    npu_pair_give_results(&in.call);
    const tn_tensor *here[] = {&in.call.in[0], &in.call.in[1], &in.call.out[0]};
    tn_tensor *there[] = {&far.in[0], &far.in[1], &far.out[0]};
    for (int i = 0; i < 3; i++)
        npu_pair_upload(here[i], there[i]);
    far.site = &s->there;
    ck_assert_int_ne(run_alone(&npu_pair_npu, NULL, NULL, &far, &err), TN_OK);
    ck_assert_ptr_nonnull(strstr(err.message, "the counts must add up to the rows of x"));
    for (int i = 0; i < 3; i++)
        device_free(&npu_pair_npu, there[i]->data, tn_dtype_bytes(there[i]->dtype, tn_tensor_count(there[i])));
    npu_pair_free_results(&in.call);
    inputs_close(&in);
    npu_pair_drop(s);
    npu_pair_close();
}
END_TEST

/* Tokens for which all experts, and all groups, are equal. */
START_TEST(ties_leave_a_choice)
{
    static const variant tied[] = {{.op = TN_OP_MOE_ROUTE},
                                   {.op = TN_OP_MOE_ROUTE, .features = TN_HAS_GROUPS},
                                   {.op = TN_OP_MOE_ROUTE, .features = TN_HAS_GROUPS, .score = TN_SCORE_SIGMOID}};
    enum { TOKENS = 3, CHOICES = 2, EXPERTS = 9 };
    npu_pair_open();
    for (size_t i = 0; i < sizeof tied / sizeof *tied; i++) {
        tn_site site = variant_site(&tied[i], TN_F32);
        npu_pair_sites *s = npu_pair_draw(&site);
        tn_param bias = s->there.param[TN_ROLE_ROUTER_BIAS];
        s->there.param[TN_ROLE_ROUTER_BIAS] = (tn_param){0};
        tn_call call = inputs_call(&s->drawn.site, 1, TOKENS);
        float x[TOKENS * 40] = {0}, weights[TOKENS * CHOICES];
        int32_t experts[TOKENS * CHOICES];
        call.in[0].data = x;
        call.out[0].data = weights;
        call.out[1].data = experts;
        npu_pair_perform(&s->there, &call);
        for (int t = 0; t < TOKENS * CHOICES; t++) {
            ck_assert_float_eq_tol(weights[t], tied[i].score ? 0.5f : 1.0f / EXPERTS, 1e-6f);
            ck_assert(experts[t] >= 0 && experts[t] < EXPERTS);
            ck_assert_int_ne(experts[t - t % CHOICES], experts[t - t % CHOICES + 1]);
        }
        s->there.param[TN_ROLE_ROUTER_BIAS] = bias;
        npu_pair_drop(s);
    }
    npu_pair_close();
}
END_TEST

static const struct {
    variant v;
    int32_t weight; /* dtype of weights; 0: that of the activations                                */
    const char *reason;
} declined[] = {
    {{.op = TN_OP_MOE_ROUTE, .score = TN_SCORE_TOPK_SOFTMAX, .features = TN_HAS_GROUPS}, 0, "its best 2 of 3 groups"},
    {{.op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI}, TN_F32, "have another type"},
    {{.op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_OI}, TN_F32, "bf16 with weights of f32"},
    {{.op = TN_OP_MOE_ROUTE, .score = TN_SCORE_TOPK_SIGMOID, .features = TN_HAS_RENORM, .eps = 1e-3},
     0,
     "at least 0.001"},
};
enum { DECLINED = sizeof declined / sizeof *declined };

START_TEST(what_does_not_compose_is_declined)
{
    npu_pair_open();
    for (int i = 0; i < DECLINED; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_site site = variant_site(&declined[i].v, TN_BF16);
        site.meaning[TN_AXIS_WEIGHT] = declined[i].weight;
        npu_pair_sites *s = npu_pair_draw(&site);
        ck_assert_int_eq(device_supports(&npu_pair_npu, &s->there, &err), TN_DECLINED);
        ck_assert_msg(strstr(err.message, declined[i].reason) != NULL, "%s", err.message);
        npu_pair_drop(s);
    }
    npu_pair_close();
}
END_TEST

/* ---- ------------------------------------------------------------------------------------------------------ */

/* The first variant with grouped products: they come last. */
static int first_grouped(void)
{
    int i = 0;
    while (variants[i].op != TN_OP_MOE_EXPERTS)
        i++;
    return i;
}

/* The simulator without what the headers of 8.1.RC1 lack, in a program of its own: grouped products by V4. */
START_TEST(older_installations)
{
    npu_pair_on_older("experts");
}
END_TEST

static void add_tests(void)
{
    TCase *tc = suite_open("ascend_ops", 600);
    tcase_add_loop_test(tc, they_are_right_at_made_up_sites, 0, TYPES * first_grouped());
    tcase_add_loop_test(tc, attention_behind_caches, 0, 3 * ATTENDS);
    suite_add(tc, empty_calls, counts_are_looked_at, ties_leave_a_choice, older_installations,
              what_does_not_compose_is_declined);
    tc = suite_open("experts", 600);
    tcase_add_loop_test(tc, they_are_right_at_made_up_sites, TYPES * first_grouped(), TYPES * VARIANTS);
}

int main(int argc, char **argv)
{
    (void)argc;
    add_tests();
    return npu_pair_main(argv);
}
