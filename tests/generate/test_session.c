/* Sessions: the same results for any number of threads, any chunking and step by step; padding; windows; errors. */
#include "device/device.h"
#include "sanitizer.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

#define DATA "tests/data/models/"

static void fill_ids(int64_t *ids, int64_t n, int64_t vocab)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (i * 37 + 11) % vocab;
}

/* Logits of all tokens, fed in pieces of step tokens through a session with that chunk. */
static float *logits_of(tn_model *m, const int64_t *ids, int64_t tokens, int64_t chunk, int64_t step)
{
    int64_t vocab = test_model_vocab(m);
    float *logits = malloc((size_t)(tokens * vocab) * sizeof *logits);
    tn_session *s = test_model_session(m, .context = tokens, .chunk = chunk);
    for (int64_t i = 0; i < tokens; i += step) {
        test_model_run(s, tokens - i < step ? tokens - i : step, ids + i, .logits = logits + i * vocab);
    }
    ck_assert_int_eq(tn_session_length(s), tokens);
    tn_session_free(s);
    return logits;
}

static double largest_difference(const float *a, const float *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        worst = d <= worst ? worst : d;
    }
    return worst;
}

static const char *const cases[] = {"llama", "llama_llama3_rope", "qwen2_sliding", "qwen3", "qwen3_moe"};
static const char *const dtypes[] = {"f32", "bf16", "f16"};

/* Gives the model every kernel of this build that fits. */
static void apply_auto(tn_model *m)
{
    tn_error err = TN_ERROR_INIT;
    const char *build = getenv("TENON_BUILD");
    char plugins[4096], absolute[4096];
    snprintf(plugins, sizeof plugins, "%s/plugins", build ? build : "build");
    tn_config *config = tn_config_new();
    ck_assert_msg(realpath(plugins, absolute) != NULL, "%s is not there", plugins);
    ck_assert_int_eq(tn_config_set_plugins(config, absolute, &err), TN_OK);
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s", err.message);
    tn_report *report = test_model_report(m, config, "auto");
    ck_assert_msg(strncmp(report->summary, "no kernels", 10) != 0, "%s", report->summary);
    tn_report_free(report);
    tn_config_free(config);
}

enum { TOKENS = 45 };

/* Logits of a prompt, then of the same tokens one by one, on a model opened with this many threads. */
static float *logits_with(int32_t threads, int test, int64_t *n)
{
    int64_t ids[TOKENS];
    threads_set(threads);
    tn_model *m = test_model_open(cases[test / 6], dtypes[test / 2 % 3]);
    threads_set(threads); /* opening set the default */
    if (test % 2)
        apply_auto(m);
    *n = TOKENS * test_model_vocab(m);
    fill_ids(ids, TOKENS, test_model_vocab(m));
    float *whole = logits_of(m, ids, TOKENS, 512, TOKENS), *steps = logits_of(m, ids, TOKENS, 512, 1);
    float *both = malloc(2 * (size_t)*n * sizeof *both);
    memcpy(both, whole, (size_t)*n * sizeof *both);
    memcpy(both + *n, steps, (size_t)*n * sizeof *both);
    free(whole);
    free(steps);
    tn_model_close(m);
    return both;
}

/* Every case and dtype, with kernels (odd) and without. */
START_TEST(threads_change_nothing)
{
    int64_t n;
    float *one = logits_with(1, _i, &n);
    for (int32_t threads = 2; threads <= 3; threads++) {
        float *more = logits_with(threads, _i, &n);
        ck_assert_msg(!memcmp(one, more, (size_t)n * sizeof *one), "%d threads: prompt", threads);
        ck_assert_msg(!memcmp(one + n, more + n, (size_t)n * sizeof *one), "%d threads: decode", threads);
        free(more);
    }
    threads_set(0);
    free(one);
}
END_TEST

/* The number of threads may change after kernels were planned and a session was made: memory is not outrun. */
START_TEST(threads_may_change_later)
{
    int64_t ids[TOKENS], n;
    threads_set(1);
    tn_model *m = test_model("qwen3_moe", .dtype = dtypes[_i]);
    threads_set(1);
    apply_auto(m);
    n = TOKENS * test_model_vocab(m);
    fill_ids(ids, TOKENS, test_model_vocab(m));
    float *one = logits_of(m, ids, TOKENS, 512, TOKENS);
    tn_error err = TN_ERROR_INIT;
    tn_session_options o = {.size = sizeof o, .context = TOKENS};
    tn_session *s = tn_session_new(m, &o, &err);
    threads_set(3);
    float *three = malloc((size_t)n * sizeof *three);
    test_model_run(s, TOKENS, ids, .logits = three);
    ck_assert(!memcmp(one, three, (size_t)n * sizeof *one));
    tn_session_free(s);
    threads_set(0);
    free(one);
    free(three);
}
END_TEST

START_TEST(chunks_and_steps_agree)
{
    tn_model *m = test_model(cases[_i], .dtype = "f32");
    int64_t ids[TOKENS], n = TOKENS * test_model_vocab(m);
    fill_ids(ids, TOKENS, test_model_vocab(m));
    float *whole = logits_of(m, ids, TOKENS, 512, TOKENS);
    static const struct {
        int64_t chunk, step;
    } ways[] = {{7, TOKENS}, {1, TOKENS}, {512, 1}, {512, 9}, {4, 13}, {TOKENS, TOKENS}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        float *other = logits_of(m, ids, TOKENS, ways[i].chunk, ways[i].step);
        double d = largest_difference(whole, other, n);
        ck_assert_msg(d <= 1e-4, "chunk %lld, step %lld: %g", (long long)ways[i].chunk, (long long)ways[i].step, d);
        free(other);
    }
    free(whole);
}
END_TEST

/* What the last token alone gives is what it gives among all: the last layers of these have experts, latent attention,
 * a gate, a window, halves side by side, pieces of their own, keys of another layer. */
static const char *const lasts[] = {"llama",   "qwen3_moe",   "deepseek_v2", "qwen3_next",  "qwen2_sliding",
                                    "cohere2", "gemma4_text", "lfm2",        "gemma3n_text"};

START_TEST(last_logits_alone_agree)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model(lasts[_i / 2], .dtype = "f32");
    if (_i % 2)
        apply_auto(m);
    int64_t ids[2 * TOKENS], vocab = test_model_vocab(m);
    fill_ids(ids, TOKENS, vocab);
    memcpy(ids + TOKENS, ids, TOKENS * sizeof *ids);
    float *whole = logits_of(m, ids, TOKENS, 512, TOKENS), *last = malloc((size_t)(2 * vocab) * sizeof *last);
    static const int64_t chunks[] = {512, 11, TOKENS - 1, 1};
    for (int i = 0; i < 8; i++) {
        int64_t rows = 1 + i / 4;
        tn_session *s = test_model_session(m, .rows = rows, .context = TOKENS, .chunk = chunks[i % 4]);
        tn_batch b = {.size = sizeof b, .rows = rows, .tokens = TOKENS, .ids = ids};
        tn_outputs out = {.size = sizeof out, .last_logits = last};
        ck_assert_msg(tn_session_run(s, &b, &out, &err) == TN_OK, "%s: %s", err.where, err.message);
        for (int64_t row = 0; row < rows; row++) {
            double d = largest_difference(whole + (TOKENS - 1) * vocab, last + row * vocab, vocab);
            ck_assert_msg(d <= 1e-4, "%s, chunk %lld: %g", lasts[_i / 2], (long long)chunks[i % 4], d);
        }
        tn_session_free(s);
    }
    free(whole);
    free(last);
}
END_TEST

/* A row padded on the left gives what the row alone gives. */
START_TEST(padding_changes_nothing)
{
    tn_model *m = test_model(cases[_i], .dtype = "f32");
    tn_error err = TN_ERROR_INIT;
    enum { PAD = 5 };
    int64_t ids[2 * TOKENS], mask[2 * TOKENS], vocab = test_model_vocab(m);
    fill_ids(ids, 2 * TOKENS, vocab);
    for (int i = 0; i < 2 * TOKENS; i++)
        mask[i] = i < TOKENS || i >= TOKENS + PAD;
    float *both = malloc((size_t)(2 * TOKENS * vocab) * sizeof *both);
    tn_session *s = test_model_session(m, .rows = 2, .context = TOKENS);
    tn_batch b = {.size = sizeof b, .rows = 2, .tokens = TOKENS, .ids = ids, .mask = mask};
    tn_outputs out = {.size = sizeof out, .logits = both};
    ck_assert_int_eq(tn_session_run(s, &b, &out, &err), TN_OK);
    tn_session_free(s);
    float *first = logits_of(m, ids, TOKENS, 512, TOKENS);
    float *second = logits_of(m, ids + TOKENS + PAD, TOKENS - PAD, 512, TOKENS);
    ck_assert(largest_difference(both, first, TOKENS * vocab) <= 1e-4);
    ck_assert(largest_difference(both + (TOKENS + PAD) * vocab, second, (TOKENS - PAD) * vocab) <= 1e-4);
    free(both);
    free(first);
    free(second);
}
END_TEST

static void expect_error(tn_session *s, const int64_t *ids, int64_t tokens, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    tn_batch b = {.size = sizeof b, .rows = 1, .tokens = tokens, .ids = ids};
    ck_assert_int_eq(tn_session_run(s, &b, NULL, &err), TN_E_INPUT);
    ck_assert_msg(strstr(err.message, words) != NULL, "'%s' lacks '%s'", err.message, words);
    ck_assert_int_eq(tn_session_length(s), 0);
}

START_TEST(bad_input_is_refused_and_leaves_the_session_usable)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    tn_error err = TN_ERROR_INIT;
    tn_session *s = test_session(m, .context = 8);
    int64_t ids[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    expect_error(s, ids, 0, "the prompt is empty");
    expect_error(s, ids, 9, "9 tokens do not fit into the context of 8; raise it (--context, ");
    ids[2] = -1;
    expect_error(s, ids, 4, "token id -1 at position 2 is outside the vocabulary of 264");
    ids[2] = 264;
    expect_error(s, ids, 4, "token id 264 at position 2");
    ids[2] = INT64_MAX;
    expect_error(s, ids, 4, "at position 2");
    ids[2] = 263;
    tn_batch b = {.size = sizeof b, .rows = 1, .tokens = 8, .ids = ids};
    ck_assert_int_eq(tn_session_run(s, &b, NULL, &err), TN_OK);
    b.tokens = 1;
    ck_assert_int_eq(tn_session_run(s, &b, NULL, &err), TN_E_INPUT);
    tn_session_reset(s);
    tn_error_clear(&err);
    ck_assert_int_eq(tn_session_run(s, &b, NULL, &err), TN_OK);
    b.rows = 2;
    ck_assert_int_eq(tn_session_run(s, &b, NULL, &err), TN_E_USAGE);
}
END_TEST

START_TEST(absurd_sessions_are_refused)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    static const tn_session_options bad[] = {
        {.rows = -1}, {.context = -5}, {.context = INT64_MAX}, {.chunk = -1}, {.rows = INT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_session_options o = bad[i];
        o.size = sizeof o;
        ck_assert_ptr_null(tn_session_new(m, &o, &err));
        ck_assert_int_eq(err.code, TN_E_USAGE);
    }
}
END_TEST

int main(void)
{
    threads_strict(true);
    setenv("TENON_MEASURE", "no", 1); /* what is measured differs between numbers of threads */
    TCase *tc = suite_open("session", 120);
    enum { CASES = sizeof cases / sizeof cases[0] };
    ADD_SLOW_LOOP(tc, threads_change_nothing, 6 * CASES);
    tcase_add_loop_test(tc, threads_may_change_later, 0, 3);
    ADD_SLOW_LOOP(tc, chunks_and_steps_agree, CASES);
    tcase_add_loop_test(tc, last_logits_alone_agree, 0, 2 * sizeof lasts / sizeof lasts[0]);
    ADD_SLOW_LOOP(tc, padding_changes_nothing, CASES);
    suite_add(tc, bad_input_is_refused_and_leaves_the_session_usable, absurd_sessions_are_refused);
    return suite_run();
}
