/* The one call that opens, applies and generates: the text of the single steps, and every step's error. */
#include "broken.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "models/demo"
#define PROMPT "And it came to pass"

static const tn_model_options f32 = {.size = sizeof f32, .dtype = "f32"};

typedef struct watch {
    char text[4096], summary[512];
    size_t length, pieces, stop_after;
} watch;

static void on_report(void *ctx, const tn_report *report)
{
    watch *w = ctx;
    ck_assert_uint_eq(w->pieces, 0);
    snprintf(w->summary, sizeof w->summary, "%s", report->summary);
}

static int on_text(void *ctx, const char *text, size_t length)
{
    watch *w = ctx;
    ck_assert(length > 0 && strlen(text) == length && w->length + length < sizeof w->text);
    memcpy(w->text + w->length, text, length + 1);
    w->length += length;
    return ++w->pieces == w->stop_after;
}

static tn_continue_options watched(watch *w)
{
    return (tn_continue_options){.size = sizeof(tn_continue_options),
                                 .kernels = "none",
                                 .model = &f32,
                                 .max_tokens = 48,
                                 .on_report = on_report,
                                 .on_text = on_text,
                                 .ctx = w};
}

static void continue_text(const char *prompt, const tn_continue_options *o)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(tn_continue_text(MODEL, prompt, o, &err) == TN_OK, "%s: %s", err.where, err.message);
}

START_TEST(the_text_is_the_expected_one)
{
    json_t *root = json_load_file(MODEL "/expected.json", 0, NULL), *one;
    size_t i;
    json_array_foreach (json_object_get(root, "greedy"), i, one) {
        watch w = {0};
        tn_generate_result result = {.size = sizeof result};
        tn_continue_options o = watched(&w);
        o.result = &result;
        continue_text(json_string_value(json_object_get(one, "prompt")), &o);
        ck_assert_str_eq(w.text, json_string_value(json_object_get(one, "greedy_text")));
        ck_assert_msg(strncmp(w.summary, "no kernels", 10) == 0, "%s", w.summary);
        ck_assert_int_eq(result.stop, TN_STOP_LENGTH);
        ck_assert_int_eq(result.count, 48);
    }
    ck_assert_uint_gt(i, 0);
    json_decref(root);
}
END_TEST

START_TEST(kernels_are_applied)
{
    const char *build = getenv("TENON_BUILD");
    char *absolute = realpath(build ? build : "build", NULL), *plugins = tempdir_at(absolute, "plugins");
    watch w = {0}, plain = {0};
    tn_continue_options o = watched(&w), without = watched(&plain);
    o.plugins = plugins;
    o.kernels = "npu_fused_rmsnorm";
    continue_text(PROMPT, &o);
    continue_text(PROMPT, &without);
    ck_assert_str_eq(w.text, plain.text);
    suite_expect_in(w.summary, "npu_fused_rmsnorm 9/9 RMS_NORM");
    free(absolute);
}
END_TEST

START_TEST(tokens_are_drawn_and_end)
{
    watch w = {0}, same = {0}, other = {0}, few = {.stop_after = 2}, last = {0};
    watch *const all[] = {&w, &same, &other, &few};
    tn_generate_result result = {.size = sizeof result};
    for (uint64_t i = 0; i < 4; i++) {
        tn_continue_options o = watched(all[i]);
        o.temperature = 2;
        o.top_k = 40;
        o.top_p = 0.9;
        o.seed = i == 2 ? 8 : 7;
        o.result = &result;
        continue_text(PROMPT, &o);
    }
    ck_assert_str_eq(w.text, same.text);
    ck_assert_str_ne(w.text, other.text);
    ck_assert_int_eq(result.stop, TN_STOP_CALLBACK);
    ck_assert(few.length > 0 && few.length < w.length && strncmp(few.text, w.text, few.length) == 0);
    tn_continue_options o = watched(&last);
    o.max_tokens = 100000;
    o.on_text = NULL;
    o.result = &result;
    continue_text(PROMPT, &o);
    ck_assert(result.stop == TN_STOP_EOS || result.count == 512 - 5 + 1); /* the model's positions            */
    continue_text(PROMPT, NULL);
}
END_TEST

static void expect(const char *folder, const char *prompt, const tn_continue_options *o, tn_status code,
                   const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_continue_text(folder, prompt, o, &err), code);
    broken_expect(&err, code, words, NULL);
    ck_assert_int_eq(tn_continue_text(folder, prompt, o, NULL), code);
}

START_TEST(each_step_has_its_error)
{
    watch w = {0};
    tn_continue_options good = watched(&w), o = good;
    expect(NULL, PROMPT, &good, TN_E_USAGE, "folder");
    expect(MODEL, NULL, &good, TN_E_USAGE, "prompt");
    expect(MODEL, PROMPT, &(tn_continue_options){.size = 0}, TN_E_USAGE, "tn_continue_options");
    expect("/nonexistent", PROMPT, &good, TN_E_INPUT, "/nonexistent");
    expect("tests/data/models/llama", PROMPT, &good, TN_E_INPUT, "tokenizer");
    expect(MODEL, "", &good, TN_E_INPUT, "the prompt is empty");
    o.plugins = "";
    expect(MODEL, PROMPT, &o, TN_E_KERNEL, "no folder given");
    o = good;
    o.kernels = "nobody";
    expect(MODEL, PROMPT, &o, TN_E_KERNEL, "nobody");
    o = good;
    o.max_tokens = -1;
    expect(MODEL, PROMPT, &o, TN_E_USAGE, "max_tokens");
    o = good;
    o.temperature = -1;
    expect(MODEL, PROMPT, &o, TN_E_USAGE, "temperature");
    o = good;
    o.result = &(tn_generate_result){.size = 0};
    expect(MODEL, PROMPT, &o, TN_E_USAGE, "tn_generate_result");
    size_t length;
    char *book = tempdir_read(MODEL "/heldout.txt", &length);
    expect(MODEL, book, &good, TN_E_INPUT, "7144 tokens do not fit into the context of 512");
    free(book);
    ck_assert_uint_eq(w.pieces, 0);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("one call", 120);
    suite_add(tc, the_text_is_the_expected_one, kernels_are_applied, tokens_are_drawn_and_end, each_step_has_its_error);
    return suite_run();
}
