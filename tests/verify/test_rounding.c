/* What check_models says of logits in bf16 where experts are picked: right kernels pass, wrong ones do not. */
#include "../check_models/check.h"
#include "plugin_box.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <tenon/half.h>

static const char *const cases[] = {"olmoe", "qwen3_moe", "qwen3_moe_step2", "qwen3_moe_top1"};
enum { CASES = sizeof cases / sizeof *cases };

typedef tn_status experts_forward(const tn_call *, tn_error *);
static experts_forward *forward;
static int64_t calls;

static tn_status counted(const tn_call *call, tn_error *err)
{
    calls++;
    return forward(call, err);
}

/* The logits of a case with a kernel for its experts; with spoil one of them, of a token that is clean or not, is no
 * number. Are they right? text says how far they are. */
static bool judge(const char *name, experts_forward *experts, bool spoil, bool clean, char text[static 192])
{
    tn_error err = TN_ERROR_INIT;
    golden g;
    near_tokens n;
    run_results r;
    char folder[256];
    snprintf(folder, sizeof folder, "tests/data/models/%s", name);
    test_kernel_add(&(test_kernel){.id = "experts", .op = TN_OP_MOE_BLOCK, .forward = counted});
    tn_model *m = test_model(name, "bf16");
    test_model_apply(m, test_config("{\"verify\": \"never\"}"), "auto");
    ck_assert_msg(golden_open(&g, folder, name, &err), "%s", err.message);
    ck_assert_msg(near_find(&g, m, RUN_GIVEN, &n, &err), "%s", err.message);
    ck_assert_int_gt(n.routers, 0);
    forward = experts;
    calls = 0;
    ck_assert(run_allocate(&g, m, false, &r));
    ck_assert_msg(run_case(&g, m, 0, RUN_GIVEN, &r, &err), "%s", err.message);
    ck_assert_int_eq(calls, n.routers);
    int64_t spoilt = 0;
    while (spoil && n.clean[spoilt] != clean)
        ck_assert_int_lt(++spoilt, n.positions);
    if (spoil)
        r.logits[spoilt * r.vocab + 3] = NAN;
    bool right = rounding_is_right(&g, &r, &n, false, text);
    run_free(&r);
    near_free(&n);
    golden_close(&g);
    return right;
}

START_TEST(right_kernels_pass)
{
    char text[192];
    ck_assert_msg(judge(cases[_i], test_kernel_forward, false, false, text), "%s: %s", cases[_i], text);
}
END_TEST

/* Forward with a site that differs. */
static tn_status with_site(const tn_call *call, const tn_site *site, tn_error *err)
{
    tn_call with = *call;
    with.site = site;
    return test_kernel_forward(&with, err);
}

static tn_status forgets_the_last_choice(const tn_call *call, tn_error *err)
{
    tn_site site = *call->site;
    site.dim[TN_DIM_TOP_K]--;
    return with_site(call, &site, err);
}

static tn_status divides_by_another_sum(const tn_call *call, tn_error *err)
{
    tn_site site = *call->site;
    site.features ^= TN_HAS_RENORM;
    return with_site(call, &site, err);
}

static tn_status takes_the_next_expert(const tn_call *call, tn_error *err)
{
    tn_site site = *call->site;
    tn_param *down = &site.param[TN_ROLE_DOWN];
    tn_tensor turned[64];
    for (int64_t e = 0; e < down->count; e++)
        turned[e] = down->tensors[(e + 1) % down->count];
    down->tensors = turned;
    return with_site(call, &site, err);
}

/* From the third quarter of a call on results are a fifth too large. */
static tn_status grows(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    int64_t tokens = call->out[0].shape[0], width = call->out[0].shape[1];
    uint16_t *y = call->out[0].data;
    for (int64_t t = tokens / 2; t < tokens; t++)
        for (int64_t i = 0; i < width; i++)
            y[t * call->out[0].stride[0] + i] =
                tn_f32_to_bf16(1.2f * tn_bf16_to_f32(y[t * call->out[0].stride[0] + i]));
    return status;
}

static experts_forward *const wrong[] = {forgets_the_last_choice, divides_by_another_sum, takes_the_next_expert, grows};
enum { WRONG = sizeof wrong / sizeof *wrong };

START_TEST(wrong_kernels_do_not)
{
    char text[192];
    const char *name = cases[_i / WRONG];
    ck_assert_msg(!judge(name, wrong[_i % WRONG], false, false, text), "%s, %d: %s", name, _i % WRONG, text);
}
END_TEST

/* One logit of one token, whether another choice is near to it or not. */
START_TEST(not_a_number_is_found)
{
    char text[192];
    ck_assert_msg(!judge("olmoe", test_kernel_forward, true, _i, text), "%s", text);
}
END_TEST

/* A router that takes what is within the roundings' distance of its best for the best is not found: it may be right. */
START_TEST(tokens_that_are_near_are_few)
{
    tn_error err = TN_ERROR_INIT;
    golden g;
    near_tokens n;
    ck_assert(golden_open(&g, "tests/data/models/mixtral", "mixtral", &err));
    ck_assert_msg(near_find(&g, test_model("mixtral", "f32"), RUN_GIVEN, &n, &err), "%s", err.message);
    int64_t near = 0;
    for (int64_t i = 0; i < n.positions; i++) {
        near += n.near[i];
        ck_assert(!n.near[i] || !n.clean[i]);
    }
    ck_assert_int_lt(near, n.positions / 4);
    near_free(&n);
    golden_close(&g);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("rounding", 120);
    tcase_add_checked_fixture(c, plugin_box_open, NULL);
    tcase_add_loop_test(c, right_kernels_pass, 0, CASES);
    tcase_add_loop_test(c, wrong_kernels_do_not, 0, CASES * WRONG);
    tcase_add_loop_test(c, not_a_number_is_found, 0, 2);
    suite_add(c, tokens_that_are_near_are_few);
    return suite_run();
}
