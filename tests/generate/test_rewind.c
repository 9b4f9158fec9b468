/* Going back: what follows then is what would have followed had the tokens behind never been there, or it is declined.
 */
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tenon/tenon.h>

enum { TOKENS = 45, CHUNK = 8 };

static tn_session *new_session(tn_model *m, int64_t rows)
{
    return test_session(m, .rows = rows, .context = TOKENS, .chunk = CHUNK);
}

static void feed(tn_session *s, const int64_t *ids, int64_t tokens, float *last)
{
    test_model_run(s, tokens, ids, .last_logits = last);
}

/* How far each goes back from TOKENS - 6 tokens: all the way, or as far as a window's ring holds. */
static const struct {
    const char *model;
    int64_t to;
} ways[] = {{"llama", 3},
            {"qwen3_moe", 0},
            {"deepseek_v2", 20},
            {"qwen2_sliding", TOKENS - 6 - CHUNK},
            {"gpt_oss", 33},
            {"deepseek_v32", 20},
            {"mimo_v2_flash", TOKENS - 6 - CHUNK}};

START_TEST(another_text_may_follow)
{
    int64_t before = TOKENS - 6, to = ways[_i].to, ids[TOKENS];
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model(ways[_i].model, .dtype = "f32");
    int64_t vocab = test_model_vocab(m);
    float *got = malloc((size_t)vocab * sizeof *got), *want = malloc((size_t)vocab * sizeof *want);
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + 11) % vocab;
    tn_session *s = new_session(m, 1), *fresh = new_session(m, 1);
    feed(s, ids, before, got);
    ck_assert_msg(tn_session_rewind(s, to, &err) == TN_OK, "%s", err.message);
    ck_assert_int_eq(tn_session_length(s), to);
    for (int64_t i = to; i < to + 6; i++)
        ids[i] = (i * 53 + 7) % vocab;
    feed(s, ids + to, 6, got);
    feed(fresh, ids, to + 6, want);
    for (int64_t i = 0; i < vocab; i++)
        ck_assert_msg(fabsf(got[i] - want[i]) <= 1e-4f, "%s: %g, not %g", ways[_i].model, (double)got[i],
                      (double)want[i]);
    free(got);
    free(want);
}
END_TEST

static void expect(tn_session *s, int64_t to, tn_status status, const char *text)
{
    tn_error err = TN_ERROR_INIT;
    int64_t before = tn_session_length(s);
    ck_assert_int_eq(tn_session_rewind(s, to, &err), status);
    suite_expect_in(err.message, text);
    ck_assert_int_eq(tn_session_length(s), before);
}

/* Of these the way back is lost. */
static const struct {
    const char *model, *why;
} lost[] = {{"qwen3_next", "keep a state"},
            {"lfm2", "keep a state"},
            {"kimi_linear", "keep a state"},
            {"qwen2_sliding", "were overwritten"},
            {"llama_dynamic", "have followed the length"}};

START_TEST(what_is_lost_is_declined)
{
    int64_t ids[TOKENS];
    tn_model *m = test_model(lost[_i].model, .dtype = "f32");
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = i % test_model_vocab(m);
    tn_session *s = new_session(m, 1);
    feed(s, ids, TOKENS, NULL);
    expect(s, 2, TN_DECLINED, lost[_i].why);
    ck_assert_int_eq(tn_session_rewind(s, TOKENS, NULL), TN_OK);
}
END_TEST

START_TEST(bad_lengths_are_refused)
{
    int64_t ids[4] = {1, 2, 3, 4};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_session *s = new_session(m, 1), *two = new_session(m, 2);
    feed(s, ids, 4, NULL);
    expect(s, 5, TN_E_USAGE, "holds 4 tokens and cannot go back to 5");
    expect(s, -1, TN_E_USAGE, "cannot go back to -1");
    expect(two, 0, TN_E_USAGE, "one row");
    ck_assert_int_eq(tn_session_rewind(NULL, 0, &err), TN_E_USAGE);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("rewind", 0);
    tcase_add_loop_test(tc, another_text_may_follow, 0, sizeof ways / sizeof ways[0]);
    tcase_add_loop_test(tc, what_is_lost_is_declined, 0, sizeof lost / sizeof lost[0]);
    suite_add(tc, bad_lengths_are_refused);
    return suite_run();
}
