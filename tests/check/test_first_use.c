/* What a first use tries: kernels that are wrong in one way each are refused at a real model's sites, and the right
 * ones beside them are taken. The faults are those of tests/bad_kernels. */
#include "check/check.h"
#include "open/model.h"
#include "plugin/folders.h"
#include "plugin/registry.h"
#include "process.h"
#include "sanitizer.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fault {
    const char *file, *name, *says;
} fault;

/* Sizes: rows, keys, tokens of an expert, and none at all. */
static const fault sizes[] = {
    {"bad_kernel", "many rows", "wrong numbers with"},
    {"bad_kernel", "256 rows", "wrong numbers with"},
    {"bad_kernel", "300 rows", "wrong numbers with"},
    {"bad_kernel", "511 rows", "wrong numbers with"},
    {"bad_kernel", "odd rows", "wrong numbers with"},
    {"bad_kernel", "block", "wrong numbers with"},
    {"bad_kernel", "no tokens", "crashed with SIGFPE (0 tokens)"},
    {"bad_add_norm", "256 rows", "was never written"},
    {"bad_add_norm", "511 rows", "with 512 tokens"},
    {"bad_add_norm", "odd rows", "was never written"},
    {"bad_add_norm", "division by rows", " (0 tokens)"}, /* a sanitizer ends the process in its own way      */
    {"bad_mlp", "last of a block", "wrong numbers with 66 tokens"},
    {"bad_mlp", "whole blocks", "wrong numbers with 512 tokens"},
    {"bad_rope", "first 300", "was never written"},
    {"bad_rope", "one row of tables", "wrong numbers with 66 tokens"},
    {"bad_rope", "tables of length one", "wrong numbers with"},
    {"bad_attention", "no rescaling", "wrong numbers with"},
    {"bad_attention", "whole blocks of keys", "wrong numbers with"},
    {"bad_attention", "many keys", "wrong numbers with 2 tokens"},
    {"bad_attention", "window edge", "wrong numbers with"},
    {"bad_attention", "slots are positions", "wrong numbers with"},
    {"bad_route", "many tokens", "wrong numbers with 512 tokens"},
    {"bad_experts", "64 tokens of an expert", "wrong numbers with"},
    {"bad_experts", "200 tokens of an expert", "wrong numbers with 512 tokens"},
    {"bad_experts", "whole blocks of an expert", "wrong numbers with"},
};

static const fault threads[] = {
    {"bad_kernel", "thread number", "on 2 threads"},
    {"bad_kernel", "threads", "on 2 threads"},
    {"bad_kernel", "sums by threads", "on 2 threads"},
    {"bad_kernel", "scratch of one thread", "scratch"},
    {"bad_kernel", "barrier in a branch", "did not finish within 5 s (1 tokens), 2 threads"},
#if defined(__x86_64__)
    {"bad_kernel", "control of a worker", "left the floating-point control changed"},
#endif
    {"bad_mlp", "scratch of one thread", "scratch"},
    {"bad_mlp", "static scratch", "keeps state between calls: its variable 'shared"},
    {"bad_mlp", "sum by threads", "on 2 threads"},
};

static const fault state[] = {
    {"bad_kernel", "first weights", "keeps state between calls: its variable 'kept"},
    {"bad_kernel", "second call", "keeps state between calls: its variable 'calls"},
    {"bad_kernel", "rows of the call before", "keeps state between calls: its variable 'before"},
    {"bad_mlp", "kept weights", "after calls with other weights"},
    {"bad_rope", "tokens of the call before", "keeps state between calls: its variable 'most"},
};

/* What is kept where no result shows it yet. */
static const fault kept[] = {
    {"bad_kernel", "byte counter", "keeps state between calls: its variable 'byte"},
    {"bad_kernel", "counter of a thread", "keeps state between calls: a thread-local variable"},
    {"bad_kernel", "weights of the call before", "keeps state between calls: its variable 'weights"},
    {"bad_kernel", "buffer in a mapping", "keeps state between calls: what its variable points to, 'mapped"},
#ifndef __SANITIZE_ADDRESS__ /* its heap is another one                                             */
    {"bad_kernel", "counter behind a pointer", "keeps state between calls: what its variable points to, 'behind"},
    {"bad_kernel", "buffer two steps away", "keeps state between calls: what its variable points to, 'record"},
    {"bad_kernel", "block of a worker", "keeps state between calls: what its variable points to, 'block"},
#endif
    {"bad_kernel", "number of a plan", "keeps state between calls: its variable 'eps_of_plan"},
    {"bad_session", "no lock", "called by two sessions at the same time"},
};

/* What is lost with each call. */
static const fault lost[] = {
    {"bad_kernel", "a file with each call", "leaves 1 files open with each call"},
    {"bad_kernel", "a thread with each call", "with each call"}, /* its stack is more than itself             */
    {"bad_kernel", "a process with each call", "left a process behind"},
#ifndef __SANITIZE_ADDRESS__ /* its allocator does not count                                        */
    {"bad_kernel", "a block with each call", "of memory more with each call"},
    {"bad_kernel", "a block with many rows", "of memory more with each call"},
    {"bad_kernel", "a block with each plan", "of memory more with each plan"},
#endif
};

/* What is taken for granted. */
static const fault granted[] = {
    {"bad_kernel", "waits on its scratch", "did not finish within"},
    {"bad_kernel", "aligned rows", "crashed with SIGSEGV"},
    {"bad_kernel", "aligned weights", "crashed with SIGSEGV"},
    {"bad_kernel", "assertion on values", "crashed with SIGABRT (7 tokens)"},
    {"bad_kernel", "no NaN", "wrong numbers with 7 tokens"},
    {"bad_kernel", "one layer", "wrong numbers with 3 tokens"},
    {"bad_kernel", "seven of eight rows", "wrong numbers with"},
    {"bad_kernel", "32 rows", "wrong numbers with"},
    {"bad_kernel", "64 rows", "wrong numbers with"},
    {"bad_kernel", "128 rows", "wrong numbers with"},
};

static const fault numbers[] = {
    {"bad_kernel", "eps", "wrong numbers with"},
    {"bad_kernel", "capped sum", "wrong numbers with"},
    {"bad_kernel", "no zero row", "nan, eager has 0"},
    {"bad_kernel", "squares of 16 bits", "wrong numbers with"},
    {"bad_add_norm", "capped sum", "wrong numbers with"},
    {"bad_add_norm", "no eps", "wrong numbers with"},
    {"bad_add_norm", "large eps", "wrong numbers with"},
    {"bad_mlp", "clamped gates", "wrong numbers with"},
    {"bad_mlp", "sigmoid of large numbers", "nan, eager has"},
    {"bad_attention", "no maximum", "wrong numbers with"},
    {"bad_attention", "NaN where nothing is seen", "nan, eager has 0"},
    {"bad_route", "less than the best", "wrong numbers with"},
    {"bad_route", "ties twice", "twice"},
    {"bad_experts", "clamped gates", "wrong numbers with"},
};

static const struct {
    const char *file, *id, *model;
} kernels[] = {
    {"bad_kernel", "npu_fused_rmsnorm", "qwen3"},
    {"bad_add_norm", "bad_add_norm", "qwen3"},
    {"bad_mlp", "bad_mlp", "qwen3"},
    {"bad_rope", "bad_rope", "qwen3"},
    {"bad_attention", "bad_attention", "qwen3_win"},
    {"bad_route", "bad_route", "qwen3_moe"},
    {"bad_experts", "bad_experts", "qwen3_moe"},
    {"bad_session", "bad_session", "qwen3"}, /* right, and with state behind a lock, without a fault   */
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

static int kernel_of(const char *file)
{
    int i = 0;
    while (strcmp(kernels[i].file, file))
        i++;
    return i;
}

/* Applies the file's kernel to its model, opened for two threads; other errors than those of applying end the test. */
static tn_status apply(int kernel, bool training, tn_error *err)
{
    char path[4300], model[64];
    const char *loaded;
    snprintf(path, sizeof path, "%s/tests/bad_kernels/%s.so", process_build(), kernels[kernel].file);
    tn_error why = TN_ERROR_INIT;
    ck_assert_msg(folders_load_file(path, &loaded, &why) == TN_OK, "%s: %s", path, why.message);
    snprintf(model, sizeof model, "tests/data/models/%s", kernels[kernel].model);
    threads_set(2);
    tn_model *m = test_model_open_with(model, .dtype = "f32", .training = training);
    tn_status status = tn_apply_kernels(m, NULL, kernels[kernel].id, NULL, err);
    tn_model_close(m);
    return status;
}

static void expect_refusal(const fault *f, bool training)
{
    tn_error err = TN_ERROR_INIT;
    setenv("BAD_KERNEL", f->name, 1);
    tn_status status = apply(kernel_of(f->file), training, &err);
    ck_assert_msg(status == TN_E_VERIFY || status == TN_E_KERNEL, "%s, %s: taken", f->file, f->name);
    ck_assert_msg(strstr(err.message, f->says) != NULL, "%s, %s: no '%s' in: %s", f->file, f->name, f->says,
                  err.message);
}

START_TEST(wrong_at_a_size_is_refused)
{
    expect_refusal(&sizes[_i], false);
}
END_TEST

START_TEST(wrong_between_threads_is_refused)
{
    expect_refusal(&threads[_i], false);
}
END_TEST

START_TEST(wrong_by_what_it_kept_is_refused)
{
    expect_refusal(&state[_i], false);
}
END_TEST

START_TEST(what_is_kept_is_refused)
{
    expect_refusal(&kept[_i], false);
}
END_TEST

START_TEST(what_is_lost_is_refused)
{
    expect_refusal(&lost[_i], false);
}
END_TEST

START_TEST(what_is_taken_for_granted_is_refused)
{
    expect_refusal(&granted[_i], false);
}
END_TEST

START_TEST(wrong_for_some_numbers_is_refused)
{
    expect_refusal(&numbers[_i], false);
}
END_TEST

/* Contract parts of gradients that an ordinary call does not try. */
static const fault gradients_faults[] = {
    {"bad_kernel", "unwanted", "backward: c"},
    {"bad_kernel", "absent upstream", "backward: c"},
    {"bad_kernel", "adds up", "was never written"},
    {"bad_kernel", "no weight gradient", "was never written"},
    {"bad_kernel", "gradient", "backward: wrong gradients with"},
};

START_TEST(wrong_gradients_are_refused)
{
    expect_refusal(&gradients_faults[_i], true);
}
END_TEST

START_TEST(right_kernels_are_taken)
{
    tn_error err = TN_ERROR_INIT;
    unsetenv("BAD_KERNEL");
    ck_assert_msg(apply(_i, false, &err) == TN_OK, "%s: %s: %s", kernels[_i].id, err.where, err.message);
    if (_i == 0)
        ck_assert_msg(apply(_i, true, &err) == TN_OK, "with gradients: %s: %s", err.where, err.message);
}
END_TEST

/* No false alarm: those of this tree, in every type, with gradients, at the shapes of every architecture. */
START_TEST(the_tree_s_own_are_taken)
{
    static const char *const files[] = {"cpu_attention", "cpu_delta_rule", "cpu_linear", "npu_moe",
                                        "npu_rmsnorm",   "npu_rope",       "npu_swiglu", "cpu_selective_scan"};
    static const char *const models[] = {"qwen3",      "gemma2",    "mixtral",    "qwen3_moe",
                                         "llama_gelu", "qwen3_odd", "qwen3_next", "mamba2"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    char path[4300], model[64];
    const char *loaded;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        tn_error err = TN_ERROR_INIT;
        snprintf(path, sizeof path, "%s/plugins/%s.so", process_build(), files[i]);
        ck_assert_msg(folders_load_file(path, &loaded, &err) == TN_OK, "%s: %s", path, err.message);
    }
    snprintf(model, sizeof model, "tests/data/models/%s", models[_i]);
    for (int i = 0; i < 6; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_model_options o = {.size = sizeof o, .dtype = dtypes[i % 3], .training = i >= 3};
        tn_model *m = tn_model_open(model, &o, &err);
        ck_assert_msg(m != NULL, "%s: %s", model, err.message);
        tn_report *report = test_model_report(m, NULL, "auto");
        ck_assert_msg(!strstr(report->summary, "refused"), "%s, %s: %s", model, o.dtype, report->summary);
        ck_assert_msg(strstr(report->summary, "npu_fused_rmsnorm") != NULL, "%s: %s", model, report->summary);
        tn_report_free(report);
        tn_model_close(m);
    }
}
END_TEST

/* ---- what was covered, in words -------------------------------------------------------------------------------- */

START_TEST(coverage_is_told)
{
    char text[256];
    check_coverage c = {0};
    check_coverage_text(&c, text, sizeof text);
    ck_assert_str_eq(text, "nothing");
    check_coverage_add(&c, &(check_coverage){.least_tokens = 1, .most_tokens = 512, .threads = 2, .any = true});
    check_coverage_add(
        &c,
        &(check_coverage){.most_tokens = 66, .most_cached = 4200, .threads = 1, .other_weights = true, .any = true});
    check_coverage_text(&c, text, sizeof text);
    ck_assert_str_eq(text, "0 to 512 tokens, up to 4200 cached positions, 1 and 2 threads, normal, scaled and outlying "
                           "inputs");
    c = (check_coverage){0};
    check_coverage_add(
        &c, &(check_coverage){.most_tokens = 600, .threads = 2, .other_weights = true, .gradients = true, .any = true});
    check_coverage_text(&c, text, sizeof text);
    ck_assert_str_eq(text, "0 to 600 tokens, 1 and 2 threads, normal, scaled and outlying inputs, after other weights, "
                           "gradients");
}
END_TEST

/* What a check at a model's site adds: every size down to none, and other weights that were made up. */
START_TEST(a_check_adds_what_it_tried)
{
    char text[256];
    tn_error err = TN_ERROR_INIT;
    unsetenv("BAD_KERNEL");
    ck_assert_msg(apply(0, false, &err) == TN_OK, "%s", err.message);
    tn_model_options o = {.size = sizeof o, .dtype = "f32"};
    tn_model *m = tn_model_open("tests/data/models/qwen3", &o, &err);
    const tn_site *site = NULL;
    for (size_t i = 0; !site && i < m->target.graph->site_count; i++)
        if (m->target.graph->sites[i]->site.op == TN_OP_RMS_NORM)
            site = &m->target.graph->sites[i]->site;
    check_case cases[CHECK_FIRST_USE];
    check_coverage coverage = {0};
    check_subject subject = {.device = m->target.device,
                             .site = site,
                             .impl = &registry_find("cpu", "npu_fused_rmsnorm")->kernel.impls[0],
                             .coverage = &coverage};
    size_t count = check_first_use_cases(site, cases);
    ck_assert_msg(check_site(&subject, cases, count, NULL, &err) == TN_OK, "%s", err.message);
    coverage.busy = false; /* whether the machine was is not asked                                       */
    check_coverage_text(&coverage, text, sizeof text);
    ck_assert_str_eq(text,
                     "0 to 8195 tokens, 1 and 2 threads, normal, scaled and outlying inputs, after other weights");
    check_coverage none = {0};
    subject.coverage = &none;
    setenv("BAD_KERNEL", "inaccurate", 1);
    ck_assert_int_eq(check_site(&subject, cases, count, NULL, NULL), TN_E_VERIFY);
    ck_assert(!none.any);
    tn_model_close(m);
}
END_TEST

/* One token alone up to a chunk, whatever the shape: what is heavy loses the middle and never the ends. */
START_TEST(a_chunk_is_always_tried)
{
    for (int heavy = 0; heavy < 2; heavy++) {
        tn_site site = {.size = sizeof site, .op = TN_OP_MLP};
        check_case cases[CHECK_FIRST_USE];
        int64_t most = 0, least = INT64_MAX;
        site.meaning[TN_AXIS_DTYPE] = TN_BF16;
        site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
        site.dim[TN_DIM_HIDDEN] = heavy ? 8192 : 64;
        site.dim[TN_DIM_INTER] = heavy ? 28672 : 128;
        size_t count = check_first_use_cases(&site, cases);
        for (size_t i = 0; i < count; i++) {
            int64_t tokens = cases[i].batch * cases[i].tokens;
            most = tokens > most ? tokens : most;
            least = tokens < least ? tokens : least;
        }
        ck_assert_int_eq(most, 512);
        ck_assert_int_eq(least, 0);
        ck_assert_int_eq(cases[0].tokens, 1);
        ck_assert_uint_eq(count, heavy ? 13 : 27);
    }
}
END_TEST

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

int main(void)
{
    TCase *c = suite_open("first use", 120);
    tcase_add_loop_test(c, right_kernels_are_taken, 0, KERNELS);
    ADD_SLOW_LOOP(c, the_tree_s_own_are_taken, 8);
    ADD_SLOW_LOOP(c, wrong_at_a_size_is_refused, COUNT(sizes));
    ADD_SLOW_LOOP(c, wrong_between_threads_is_refused, COUNT(threads));
    ADD_SLOW_LOOP(c, wrong_by_what_it_kept_is_refused, COUNT(state));
    ADD_SLOW_LOOP(c, what_is_kept_is_refused, COUNT(kept));
    ADD_SLOW_LOOP(c, what_is_lost_is_refused, COUNT(lost));
    ADD_SLOW_LOOP(c, what_is_taken_for_granted_is_refused, COUNT(granted));
    ADD_SLOW_LOOP(c, wrong_for_some_numbers_is_refused, COUNT(numbers));
    ADD_SLOW_LOOP(c, wrong_gradients_are_refused, COUNT(gradients_faults));
    suite_add(c, coverage_is_told, a_check_adds_what_it_tried, a_chunk_is_always_tried);
    return process_main();
}
