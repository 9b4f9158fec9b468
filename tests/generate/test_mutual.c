/* Pictures whose tokens see each other: as a whole in every layer, in one call, and in no part of one. */
#include "broken.h"
#include "process.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PICTURE = 4, LONG = 150, HIDDEN = 48, LAYERS = 3, VOCAB = 128, IMAGE = 5 };

static float features[LONG * HIDDEN];

static void fill(void)
{
    for (int i = 0; i < LONG * HIDDEN; i++)
        features[i] = (float)(i % PICTURE * HIDDEN * 37 % 101 + i % 23 + i / 1000) / 60.0f - 1.0f;
    memcpy(features + PICTURE * HIDDEN, features, PICTURE * HIDDEN * sizeof *features);
}

static tn_status feed(tn_session *s, int64_t rows, int64_t tokens, const int64_t *ids, const int64_t *mask,
                      const tn_outputs *out, tn_error *err)
{
    int64_t count = 0;
    for (int64_t i = 0; i < rows * tokens; i++)
        count += ids[i] == IMAGE;
    const tn_pictures images = {.size = sizeof images, .features = features, .feature_count = count};
    return tn_session_run(s,
                          &(tn_batch){.size = sizeof(tn_batch),
                                      .rows = rows,
                                      .tokens = tokens,
                                      .ids = ids,
                                      .mask = mask,
                                      .images = count ? &images : NULL},
                          out, err);
}

static void hidden_of(const char *folder, float *last, int64_t tokens, const int64_t *ids)
{
    tn_error err = TN_ERROR_INIT;
    float *hidden[LAYERS + 1] = {NULL, NULL, NULL, last};
    tn_session *s = test_session(test_model(folder, .dtype = "f32"), .context = tokens);
    const tn_outputs out = {.size = sizeof out, .hidden = hidden};
    ck_assert_msg(feed(s, 1, tokens, ids, NULL, &out, &err) == TN_OK, "%s", err.message);
}

/* A window of two tokens: a picture without anything before it is what it is with a longer one; text is not. */
START_TEST(a_window_shorter_than_the_picture)
{
    static const int64_t ids[] = {IMAGE, IMAGE, IMAGE, IMAGE, 9, 10, 11};
    enum { TOKENS = sizeof ids / sizeof *ids };
    float wide[TOKENS * HIDDEN], narrow[TOKENS * HIDDEN];
    char *folder = broken_copy("gemma3");
    broken_json(folder, "config.json", "text_config/sliding_window", "2");
    hidden_of("gemma3", wide, TOKENS, ids);
    hidden_of(folder, narrow, TOKENS, ids);
    ck_assert_mem_eq(wide, narrow, PICTURE * HIDDEN * sizeof *wide);
    ck_assert_mem_ne(wide + (TOKENS - 1) * HIDDEN, narrow + (TOKENS - 1) * HIDDEN, HIDDEN * sizeof *wide);
}
END_TEST

/* ... and behind text, no token of it sees further back than the window reaches: in the one layer that is local and
 * comes first, a token that is two before the picture changes none of it. */
START_TEST(what_lies_before_is_out_of_sight)
{
    static const int64_t ids[] = {7, 8, IMAGE, IMAGE, IMAGE, IMAGE}, other[] = {99, 8, IMAGE, IMAGE, IMAGE, IMAGE};
    enum { TOKENS = sizeof ids / sizeof *ids };
    char *folder = broken_copy("gemma3");
    broken_json(folder, "config.json", "text_config/sliding_window", "2");
    tn_model *m = test_model(folder, .dtype = "f32");
    float one[TOKENS * HIDDEN], two[TOKENS * HIDDEN];
    tn_error err = TN_ERROR_INIT;
    for (int i = 0; i < 2; i++) {
        float *hidden[LAYERS + 1] = {NULL, i ? two : one, NULL, NULL};
        const tn_outputs out = {.size = sizeof out, .hidden = hidden};
        ck_assert_int_eq(feed(test_session(m, .context = TOKENS), 1, TOKENS, i ? other : ids, NULL, &out, &err), TN_OK);
    }
    ck_assert_mem_ne(one, two, 2 * HIDDEN * sizeof *one);
    ck_assert_mem_eq(one + 2 * HIDDEN, two + 2 * HIDDEN, PICTURE * HIDDEN * sizeof *one);
}
END_TEST

START_TEST(rows_with_padding)
{
    static const int64_t ids[] = {99, 8, IMAGE, IMAGE, IMAGE, IMAGE, 9, 0, 0, IMAGE, IMAGE, IMAGE, IMAGE, 9};
    static const int64_t mask[] = {1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1};
    float both[2 * VOCAB], first[VOCAB], second[VOCAB];
    tn_model *m = test_model("gemma3", .dtype = "f32");
    tn_error err = TN_ERROR_INIT;
    const tn_outputs two = {.size = sizeof two, .last_logits = both}, one = {.size = sizeof one, .last_logits = first},
                     other = {.size = sizeof other, .last_logits = second};
    ck_assert_msg(feed(test_session(m, .context = 7, .rows = 2), 2, 7, ids, mask, &two, &err) == TN_OK, "%s",
                  err.message);
    ck_assert_int_eq(feed(test_session(m, .context = 7), 1, 7, ids, NULL, &one, &err), TN_OK);
    ck_assert_int_eq(feed(test_session(m, .context = 5), 1, 5, ids + 9, NULL, &other, &err), TN_OK);
    for (int i = 0; i < VOCAB; i++) {
        ck_assert_float_eq_tol(both[i], first[i], 1e-5f);
        ck_assert_float_eq_tol(both[VOCAB + i], second[i], 1e-5f);
    }
}
END_TEST

/* Kernels give what eager gives where a picture is longer than their tiles and the window. */
START_TEST(kernels_see_the_same)
{
    int64_t ids[LONG + 24];
    enum { TOKENS = sizeof ids / sizeof *ids };
    float eager[VOCAB], fused[VOCAB];
    char plugins[4200], json[4300];
    ck_assert(realpath(process_build(), plugins) != NULL);
    snprintf(json, sizeof json, "{\"plugins\": [\"%s/plugins\"], \"verify\": \"never\"}", plugins);
    tn_config *config = test_config(json);
    tn_error err = TN_ERROR_INIT;
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = i >= 12 && i < 12 + LONG ? IMAGE : 10 + i % 100;
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s", err.message);
    for (int i = 0; i < 2; i++) {
        tn_model *m = test_model("gemma3", .dtype = "f32");
        if (i)
            test_model_apply(m, config, "auto");
        ck_assert_int_eq(test_model_bound(m) > 0, i);
        const tn_outputs out = {.size = sizeof out, .last_logits = i ? fused : eager};
        ck_assert_msg(feed(test_session(m, .context = TOKENS), 1, TOKENS, ids, NULL, &out, &err) == TN_OK, "%s",
                      err.message);
    }
    for (int i = 0; i < VOCAB; i++)
        ck_assert_float_eq_tol(fused[i], eager[i], 1e-4f);
}
END_TEST

static void expect_refused(tn_session *s, int64_t rows, int64_t tokens, const int64_t *ids, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(feed(s, rows, tokens, ids, NULL, NULL, &err), TN_E_INPUT);
    suite_expect_in(err.message, words);
}

START_TEST(parts_of_a_picture)
{
    static const int64_t ids[] = {9, IMAGE, IMAGE, IMAGE, IMAGE, 9, IMAGE, IMAGE, IMAGE, IMAGE};
    static const int64_t shifted[] = {9, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, 9};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("gemma3", .dtype = "f32");
    tn_session *s = test_session(m, .context = 16);
    ck_assert_int_eq(feed(s, 1, 3, ids, NULL, NULL, &err), TN_OK);
    expect_refused(s, 1, 2, ids + 3, "give them in one call");
    tn_session_reset(s);
    ck_assert_int_eq(feed(s, 1, 4, ids + 1, NULL, NULL, &err), TN_OK);
    ck_assert_int_eq(feed(s, 1, 5, ids + 5, NULL, NULL, &err), TN_OK);
    expect_refused(test_session(m, .context = 16, .chunk = 3), 1, 5, ids, "its 4 tokens see each other");
    expect_refused(test_session(m, .context = 16, .rows = 2), 2, 5, shifted, "at the same columns");
}
END_TEST

/* Where all of a prompt sees itself, that is the first call. */
START_TEST(a_prompt_is_one_call)
{
    static const int64_t ids[] = {IMAGE, IMAGE, IMAGE, IMAGE, 9, 10}, text[] = {9, 10, 11};
    float whole[VOCAB], parts[VOCAB];
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("paligemma", .dtype = "f32");
    tn_session *s = test_session(m, .context = 16);
    expect_refused(test_session(m, .context = 16, .chunk = 5), 1, 6, ids, "its 6 tokens see each other");
    ck_assert_int_eq(feed(s, 1, 3, text, NULL, &(tn_outputs){.size = sizeof(tn_outputs), .last_logits = whole}, &err),
                     TN_OK);
    expect_refused(s, 1, 6, ids, "pictures belong to the first call");
    tn_session_reset(s);
    ck_assert_int_eq(feed(s, 1, 2, text, NULL, NULL, &err), TN_OK);
    ck_assert_int_eq(tn_session_rewind(s, 1, &err), TN_DECLINED);
    ck_assert_int_eq(
        feed(s, 1, 1, text + 2, NULL, &(tn_outputs){.size = sizeof(tn_outputs), .last_logits = parts}, &err), TN_OK);
    ck_assert_mem_ne(whole, parts, sizeof whole); /* two tokens do not see the third                  */
}
END_TEST

START_TEST(going_back)
{
    static const int64_t ids[] = {9, IMAGE, IMAGE, IMAGE, IMAGE, 10, 11};
    tn_error err = TN_ERROR_INIT;
    tn_session *s = test_session(test_model("gemma3", .dtype = "f32"), .context = 16);
    ck_assert_int_eq(feed(s, 1, 7, ids, NULL, NULL, &err), TN_OK);
    ck_assert_int_eq(tn_session_rewind(s, 5, &err), TN_OK);
    ck_assert_int_eq(tn_session_rewind(s, 4, &err), TN_DECLINED);
    suite_expect_in(err.message, "see each other; reset it");
    ck_assert_int_eq(feed(s, 1, 2, ids + 5, NULL, NULL, &err), TN_OK);
}
END_TEST

int main(void)
{
    fill();
    TCase *c = suite_open("pictures whose tokens see each other", 120);
    suite_add(c, a_window_shorter_than_the_picture, what_lies_before_is_out_of_sight, rows_with_padding,
              kernels_see_the_same, parts_of_a_picture, a_prompt_is_one_call, going_back);
    return suite_run();
}
