/* The first call of each size: what a kernel computes with a size that no check drew is compared with eager before it
 * is used, once, also by later runs; a wrong kernel changes no result and is refused the next time. The kernels are
 * those of tests/bad_kernels, which read their fault at each call: right while they are checked, wrong after. */
#include "open/model.h"
#include "plugin/registry.h"
#include "plugin_box.h"
#include "process.h"
#include "select/check_cache.h"
#include "select/first_calls.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 160 };

static void setup(void)
{
    plugin_box_open();
    unsetenv("BAD_KERNEL");
    unsetenv("BAD_GUEST");
}

static void add_plugin(const char *name)
{
    char from[64], file[64];
    snprintf(from, sizeof from, "../bad_kernels/%s", name);
    snprintf(file, sizeof file, "%s.so", name);
    plugin_box_add(from, file);
}

/* A configuration with these plugins and that key "verify", until the test ends. */
static tn_config *configure(const char *verify)
{
    tn_error err = TN_ERROR_INIT;
    char text[128];
    snprintf(text, sizeof text, "{\"verify\": \"%s\"}", verify);
    tn_config *config = plugin_box_config(text);
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s", err.message);
    return config;
}

static tn_status apply(tn_model *m, const char *verify, const char *spec, tn_report **report, tn_error *err)
{
    return tn_apply_kernels(m, configure(verify), spec, report, err);
}

static void apply_well(tn_model *m, const char *verify, const char *spec)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(apply(m, verify, spec, NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
}

/* Logits of the last token of so many, and of `steps` single ones behind them. Owned. */
static float *logits_of(tn_model *m, tn_session *s, int64_t tokens, int64_t steps)
{
    int64_t ids[CONTEXT];
    tn_error err = TN_ERROR_INIT;
    for (int64_t i = 0; i < tokens + steps; i++)
        ids[i] = 1 + i * 5 % 17;
    float *logits = calloc((size_t)((steps + 1) * m->info.vocab), sizeof *logits);
    tn_session_reset(s);
    for (int64_t i = 0; i <= steps; i++) {
        tn_batch batch = {
            .size = sizeof batch, .rows = 1, .tokens = i ? 1 : tokens, .ids = i ? ids + tokens + i - 1 : ids};
        tn_outputs outputs = {.size = sizeof outputs, .last_logits = logits + i * m->info.vocab};
        ck_assert_msg(tn_session_run(s, &batch, &outputs, &err) == TN_OK, "%s: %s", err.where, err.message);
    }
    return logits;
}

static void run(tn_model *m, int64_t tokens, int64_t steps)
{
    tn_session *s = test_model_session(m, .context = CONTEXT, .chunk = 0);
    free(logits_of(m, s, tokens, steps));
    tn_session_free(s);
}

static int64_t compared(tn_model *m, int64_t *now)
{
    tn_report *report = tn_model_report(m, NULL);
    ck_assert_ptr_nonnull(report);
    int64_t all = report->first_calls;
    *now = report->first_calls_now;
    tn_report_free(report);
    return all;
}

/* ---- wrong with a size ---------------------------------------------------------------------------------------- */

static const struct {
    const char *model, *plugin, *kernel, *variable, *fault;
    int64_t right, wrong; /* prompts with which it is right, and that one                                    */
    const char *told;
} faults[] = {
    {"qwen3", "bad_guest", "npu_bad_guest", "BAD_GUEST", "wrong with 77 tokens", 76, 77, " with 77 tokens: "},
    {"qwen3", "bad_guest", "npu_bad_guest", "BAD_GUEST", "wrong with 7 over blocks of 9", 78, 79, " with 79 tokens: "},
    {"qwen3", "bad_guest", "npu_bad_guest", "BAD_GUEST", "wrong with 64 tokens", 63, 64, " with 64 tokens: "},
    {"qwen3", "bad_attention", "bad_attention", "BAD_KERNEL", "whole blocks of keys", 64, 65,
     " with 65 tokens with 65 keys: "},
    {"llama", "bad_mlp", "bad_mlp", "BAD_KERNEL", "last of a block", 64, 150, " with 150 tokens: "},
    {"qwen3_moe", "bad_experts", "bad_experts", "BAD_KERNEL", "64 tokens of an expert", 10, 150, " with 150 tokens: "},
};
enum { FAULTS = sizeof faults / sizeof *faults };

/* In one session, whose arena is that of the kernel, too small for eager's experts and MLP: the results are eager's,
 * with one notice, and go on to be. */
START_TEST(a_wrong_size_changes_nothing)
{
    tn_model *plain = test_model(faults[_i].model, .dtype = "f32", .threads = 2),
             *m = test_model(faults[_i].model, .dtype = "f32", .threads = 2);
    add_plugin(faults[_i].plugin);
    apply_well(m, "first-use", faults[_i].kernel);
    ck_assert_uint_gt(test_model_bound(m), 0);
    tn_session *eager = test_session(plain, .context = CONTEXT, .chunk = faults[_i].wrong),
               *s = test_model_session(m, .context = CONTEXT, .chunk = faults[_i].wrong);
    free(logits_of(m, s, faults[_i].right, 0));
    setenv(faults[_i].variable, faults[_i].fault, 1);
    free(logits_of(m, s, faults[_i].right, 0));
    ck_assert_uint_eq(tn_notice_count(), 0);
    float *wanted = logits_of(plain, eager, faults[_i].wrong, 4), *got = logits_of(m, s, faults[_i].wrong, 4);
    ck_assert_mem_eq(got, wanted, (size_t)(5 * m->info.vocab) * sizeof *got);
    ck_assert_uint_eq(test_model_bound(m), 0);
    ck_assert_uint_eq(tn_notice_count(), 1);
    ck_assert_msg(strstr(tn_notice_get(0), faults[_i].told) != NULL, "%s", tn_notice_get(0));
    ck_assert_ptr_nonnull(strstr(tn_notice_get(0), ", eager has "));
    free(wanted);
    free(got);
    /* All of it by eager, in this session and in a new one. */
    wanted = logits_of(plain, eager, faults[_i].wrong - 1, 4);
    for (int i = 0; i < 2; i++) {
        got = logits_of(m, s, faults[_i].wrong - 1, 4);
        ck_assert_mem_eq(got, wanted, (size_t)(5 * m->info.vocab) * sizeof *got);
        free(got);
        tn_session_free(s);
        s = test_model_session(m, .context = CONTEXT, .chunk = faults[_i].wrong);
    }
    free(wanted);
    tn_session_free(s);
}
END_TEST

/* Not compared where nothing is verified: the fault shows. */
START_TEST(never_is_never)
{
    int64_t now;
    tn_model *plain = test_model(faults[_i].model, .dtype = "f32", .threads = 2),
             *m = test_model(faults[_i].model, .dtype = "f32", .threads = 2);
    add_plugin(faults[_i].plugin);
    apply_well(m, "never", faults[_i].kernel);
    tn_session *eager = test_session(plain, .context = CONTEXT, .chunk = 0),
               *s = test_session(m, .context = CONTEXT, .chunk = 0);
    setenv(faults[_i].variable, faults[_i].fault, 1);
    float *right = logits_of(plain, eager, faults[_i].wrong, 0), *got = logits_of(m, s, faults[_i].wrong, 0);
    double apart = 0;
    for (int64_t i = 0; i < m->info.vocab; i++)
        apart = fmax(apart, fabs((double)got[i] - (double)right[i]));
    ck_assert_double_gt(apart, 1e-3);
    ck_assert_int_eq(compared(m, &now), 0);
    ck_assert_int_eq(now, 0);
    free(right);
    free(got);
}
END_TEST

/* ---- many keys, and one site on its own -------------------------------------------------------------------- */

/* One query behind so many keys, at a site alone. Owned. */
static float *attend(tn_model *m, int64_t keys, tn_status *status, tn_error *err)
{
    const graph_site *site = NULL;
    for (size_t i = 0; i < m->target.graph->site_count && !site; i++)
        site = m->target.graph->sites[i]->site.op == TN_OP_ATTENTION ? m->target.graph->sites[i] : NULL;
    int64_t heads = site->site.dim[TN_DIM_Q_HEADS], kv = site->site.dim[TN_DIM_KV_HEADS];
    int64_t d = site->site.dim[TN_DIM_HEAD];
    float *numbers = malloc((size_t)(heads * d + keys * kv * d) * sizeof *numbers);
    int32_t *index = malloc((size_t)keys * sizeof *index), last = (int32_t)keys - 1;
    for (int64_t i = 0; i < heads * d + keys * kv * d; i++)
        numbers[i] = sinf((float)i) / 4;
    for (int32_t i = 0; i < keys; i++)
        index[i] = i;
    float *out = calloc((size_t)(heads * d), sizeof *out);
    tn_tensor in[5] = {tn_tensor_dense(numbers, TN_F32, 4, (int64_t[]){1, 1, heads, d}),
                       tn_tensor_dense(numbers + heads * d, TN_F32, 4, (int64_t[]){1, keys, kv, d}),
                       tn_tensor_dense(numbers + heads * d, TN_F32, 4, (int64_t[]){1, keys, kv, d}),
                       tn_tensor_dense(&last, TN_I32, 2, (int64_t[]){1, 1}),
                       tn_tensor_dense(index, TN_I32, 2, (int64_t[]){1, keys})};
    tn_tensor to = tn_tensor_dense(out, TN_F32, 4, (int64_t[]){1, 1, heads, d});
    *status = tn_site_forward(m, site->site.path, TN_OP_ATTENTION, in, 5, &to, 1, err);
    free(numbers);
    free(index);
    return out;
}

START_TEST(many_keys)
{
    tn_error err = TN_ERROR_INIT;
    tn_status status[3];
    tn_model *plain = test_model("qwen3", .dtype = "f32", .threads = 2),
             *m = test_model("qwen3", .dtype = "f32", .threads = 2);
    add_plugin("bad_attention");
    apply_well(m, "first-use", "bad_attention");
    setenv("BAD_KERNEL", "16384 keys", 1);
    float *near = attend(m, 16384, &status[0], &err), *far = attend(m, 17000, &status[1], &err);
    float *wanted = attend(plain, 17000, &status[2], &err);
    ck_assert_msg(status[0] == TN_OK && status[1] == TN_OK && status[2] == TN_OK, "%s", err.message);
    ck_assert_mem_eq(far, wanted, sizeof *far);
    ck_assert_uint_eq(tn_notice_count(), 1);
    ck_assert_msg(strstr(tn_notice_get(0), " with 1 token with 17000 keys: "), "%s", tn_notice_get(0));
    ck_assert_uint_eq(test_model_bound(m), 0);
    free(near);
    free(far);
    free(wanted);
}
END_TEST

/* ---- remembered --------------------------------------------------------------------------------------------- */

static int64_t compared_in(const char *verify, const char *spec, int32_t threads, int64_t tokens, int64_t steps,
                           int64_t *all)
{
    int64_t now;
    tn_model *m = test_model_open_with("qwen3", .dtype = "f32", .threads = threads);
    apply_well(m, verify, spec);
    run(m, tokens, steps);
    *all = compared(m, &now);
    tn_model_close(m);
    return now;
}

/* Checks the kernel until all of that is remembered: what is found on a busy machine is not, which a note says. */
static void check_kept(const char *spec, int32_t threads)
{
    bool busy = true;
    for (int i = 0; i < 40 && busy; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_report *report = NULL;
        tn_model *m = test_model_open_with("qwen3", .dtype = "f32", .threads = threads);
        ck_assert_msg(apply(m, "first-use", spec, &report, &err) == TN_OK, "%s: %s", err.where, err.message);
        busy = false;
        for (size_t k = 0; k < report->note_count; k++)
            busy |= process_was_busy(report->notes[k]);
        tn_report_free(report);
        tn_model_close(m);
    }
    ck_assert(!busy);
}

START_TEST(right_sizes_are_remembered)
{
    int64_t all, before;
    add_plugin("bad_guest");
    check_kept("npu_bad_guest", 2);
    int64_t now = compared_in("first-use", "npu_bad_guest", 2, 20, 3, &all);
    ck_assert_int_gt(now, 0);
    ck_assert_int_eq(all, now);
    ck_assert_int_eq(compared_in("first-use", "npu_bad_guest", 2, 20, 3, &before), 0);
    ck_assert_int_eq(before, now);
    ck_assert_int_gt(compared_in("first-use", "npu_bad_guest", 2, 21, 3, &all), 0); /* another size             */
    ck_assert_int_gt(all, before);
    ck_assert_int_eq(compared_in("first-use", "npu_bad_guest", 2, 20, 3, &all), 0); /* which took nothing away   */
    ck_assert_int_eq(compared_in("first-use", "npu_bad_guest", 2, 21, 0, &all), 0);
    ck_assert_int_eq(compared_in("first-use", "npu_bad_guest", 3, 20, 3, &all), now); /* other parts for threads */
    ck_assert_int_eq(compared_in("all", "npu_bad_guest", 2, 20, 3, &all), now);
}
END_TEST

/* In one process and model, and with another number of threads there. */
START_TEST(what_is_known_costs_nothing)
{
    int64_t now, again;
    tn_model *m = test_model("qwen3", .dtype = "f32", .threads = 2);
    add_plugin("bad_attention");
    apply_well(m, "first-use", "bad_attention");
    run(m, 20, 5);
    compared(m, &now);
    /* 20 keys for 20 queries and, in the last layer, for one; 21 to 25 for one. The layers share a shape. */
    ck_assert_int_eq(now, 7);
    run(m, 20, 5);
    compared(m, &again);
    ck_assert_int_eq(again, now);
    apply_well(m, "first-use", "bad_attention");
    run(m, 20, 5);
    compared(m, &again);
    ck_assert_int_eq(again, now);
    test_model("qwen3", .dtype = "f32", .threads = 3);
    run(m, 20, 5);
    compared(m, &again);
    ck_assert_int_eq(again, 2 * now);
}
END_TEST

START_TEST(a_wrong_size_is_refused_the_next_time)
{
    int64_t all, now;
    tn_error err = TN_ERROR_INIT;
    tn_report *report = NULL;
    add_plugin("bad_guest");
    setenv("BAD_GUEST", "wrong with 77 tokens", 1);
    compared_in("first-use", "npu_bad_guest", 2, 20, 0, &all);
    ck_assert_uint_eq(tn_notice_count(), 0);
    compared_in("first-use", "npu_bad_guest", 2, 77, 0, &all);
    ck_assert_uint_eq(tn_notice_count(), 1);
    tn_model *m = test_model_open_with("qwen3", .dtype = "f32", .threads = 2);
    ck_assert_int_eq(apply(m, "first-use", "npu_bad_guest", NULL, &err), TN_E_VERIFY);
    ck_assert_msg(strstr(err.message, "wrong in an earlier run at model.layers.0.input_layernorm with 77 tokens: ") &&
                      strstr(err.message, "`tenon cache clear` tries it again"),
                  "%s", err.message);
    tn_error_clear(&err);
    ck_assert_msg(apply(m, "first-use", "auto", &report, &err) == TN_OK, "%s", err.message);
    ck_assert_uint_eq(test_model_bound(m), 0);
    suite_expect_in(report->summary, "wrong in an earlier run at");
    tn_report_free(report);
    run(m, 77, 0);
    ck_assert_int_eq(compared(m, &now), 0);
    tn_model_close(m);
    /* Whoever has everything checked anew gets the same answer anew. */
    compared_in("all", "npu_bad_guest", 2, 77, 0, &all);
    ck_assert_int_eq(apply(m = test_model_open_with("qwen3", .dtype = "f32", .threads = 2), "first-use",
                           "npu_bad_guest", NULL, &err),
                     TN_E_VERIFY);
    tn_model_close(m);
}
END_TEST

/* ---- what is no first call ------------------------------------------------------------------------------------ */

/* Comparisons of the whole model see the kernel as it is, verify and measure it, and note nothing. */
START_TEST(verifying_is_no_first_call)
{
    int64_t ids[80], now;
    tn_error err = TN_ERROR_INIT;
    tn_text_report *text = NULL;
    tn_verify_row **rows = NULL;
    size_t count = 0;
    for (int64_t i = 0; i < 80; i++)
        ids[i] = 1 + i % 17;
    tn_model *m = test_model("qwen3", .dtype = "f32", .threads = 2);
    add_plugin("bad_guest");
    apply_well(m, "first-use", "npu_bad_guest");
    size_t bound = test_model_bound(m);
    ck_assert_int_eq(tn_verify(m, &rows, &count, &err), TN_OK);
    free(rows);
    setenv("BAD_GUEST", "wrong with 1 tokens", 1);
    tn_text_options o = {.size = sizeof o, .max_tokens = 80, .window = 80, .no_search = true};
    ck_assert_int_eq(tn_compare_text(m, ids, 80, &o, &text, &err), TN_E_VERIFY);
    tn_text_report_free(text);
    ck_assert_uint_eq(tn_notice_count(), 0);
    ck_assert_uint_eq(test_model_bound(m), bound);
    ck_assert_int_eq(compared(m, &now), 0);
    /* And sessions are watched again afterwards. */
    run(m, 1, 0);
    ck_assert_uint_eq(tn_notice_count(), 1);
    ck_assert_uint_eq(test_model_bound(m), 0);
}
END_TEST

/* The arena is no larger for it. */
START_TEST(no_arena_is_larger)
{
    add_plugin("bad_mlp");
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        tn_model *m = test_model_open_with("llama", .dtype = "f32", .threads = 2);
        apply_well(m, i ? "first-use" : "never", "bad_mlp");
        tn_session *s = test_model_session(m, .context = CONTEXT, .chunk = 0);
        bytes[i] = tn_session_arena_bytes(s);
        tn_session_free(s);
        tn_model_close(m);
    }
    ck_assert_uint_eq(bytes[0], bytes[1]);
}
END_TEST

/* What a busy machine let pass is forgotten; a call that was wrong on it is not. */
START_TEST(a_busy_machine_remembers_what_was_wrong)
{
    static const char key[] = "a key of this test";
    const struct registry_kernel *kernel = (const struct registry_kernel *)key; /* only told apart             */
    apply_target target = {0};
    tn_error err = TN_ERROR_INIT;
    first_calls *f = first_calls_open(&target, kernel, strdup(key), true, NULL, &err);
    ck_assert_msg(f != NULL, "%s", err.message);
    f->busy = f->grown = true;
    first_calls_keep(&target);
    ck_assert_ptr_null(check_cache_recall(key));
    first_calls_failed(&target, kernel, "with 7 tokens");
    char *known = check_cache_recall(key);
    ck_assert_ptr_nonnull(known);
    ck_assert_str_eq(first_calls_reason(known), "with 7 tokens");
    free(known);
    first_calls_close(&target);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("first calls", 300);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_loop_test(tc, a_wrong_size_changes_nothing, 0, FAULTS);
    tcase_add_loop_test(tc, never_is_never, 0, FAULTS);
    suite_add(tc, many_keys, right_sizes_are_remembered, what_is_known_costs_nothing,
              a_wrong_size_is_refused_the_next_time, a_busy_machine_remembers_what_was_wrong,
              verifying_is_no_first_call, no_arena_is_larger);
    return suite_run();
}
