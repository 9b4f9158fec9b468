/* Measured choice: what is slower than eager, or than another kernel, is not applied where it is; noise and the next
 * run change nothing. Kernels that are slow sleep for so long that no machine is slower. */
#include "open/model.h"
#include "select/measure.h"
#include "suite.h"
#include "tempdir.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <glob.h>
#include <op/op.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* A machine that others leave alone, and one that they do not. */
static double never_waits(void)
{
    return 0;
}

static double always_waits(void)
{
    static double so_far;
    return so_far += 1000;
}

static tn_model *open_model(void)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    setenv("TENON_MEASURE", "yes", 1);
    setenv("XDG_CACHE_HOME", "/nonexistent", 1);
    return m;
}

static size_t bound(const tn_model *m, const char *id, uint32_t used_at)
{
    size_t n = 0;
    for (size_t i = 0; i < m->target.graph->site_count; i++) {
        const graph_binding *b = &m->target.graph->sites[i]->bound;
        n += b->impl && !strcmp(b->kernel->kernel.id, id) && (~b->not_at & used_at);
    }
    return n;
}

/* The verdict on the last site. */
static const tn_verdict *verdict_of(const tn_report *report, const char *path, const char *id)
{
    for (size_t i = report->site_count; i-- > 0;)
        for (size_t j = 0; !strcmp(report->sites[i]->site->path, path) && j < report->sites[i]->verdict_count; j++)
            if (!strcmp(report->sites[i]->verdicts[j]->kernel, id))
                return report->sites[i]->verdicts[j];
    ck_abort_msg("no verdict of %s", id);
}

/* ---- kernels that are slow with some calls ---------------------------------------------------------------- */

static tn_status slow_at(const tn_call *call, uint32_t sizes, tn_error *err)
{
    if (sizes >> graph_size_of(op_tokens(call)) & 1)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return test_kernel_forward(call, err);
}

static tn_status slow_always(const tn_call *call, tn_error *err)
{
    return slow_at(call, 7, err);
}

static tn_status slow_with_one(const tn_call *call, tn_error *err)
{
    return slow_at(call, 1u << GRAPH_ONE, err);
}

static tn_status slow_with_some(const tn_call *call, tn_error *err)
{
    return slow_at(call, 1u << GRAPH_SOME, err);
}

static tn_status slow_with_many(const tn_call *call, tn_error *err)
{
    return slow_at(call, 1u << GRAPH_MANY, err);
}

START_TEST(what_is_slower_than_eager_is_not_applied)
{
    tn_model *m = open_model();
    test_kernel_add(&(test_kernel){.id = "slow", .op = TN_OP_RMS_NORM, .forward = slow_always});
    tn_report *report = test_report(m, NULL, "auto");
    ck_assert_uint_eq(bound(m, "slow", 7), 0);
    const tn_verdict *v = verdict_of(report, "model.norm", "slow");
    ck_assert(!v->taken);
    ck_assert_msg(strstr(v->reason, "measured: slower") && strstr(v->measured, "512 tokens "), "%s", v->reason);
    char *text = tn_model_describe(m, report, TN_GRAPH_TEXT, false, NULL);
    suite_expect_in(text, "measured:\n  slow RMS_NORM (4): 1 token ");
    free(text);
    text = tn_model_describe(m, report, TN_GRAPH_JSON, false, NULL);
    ck_assert_ptr_nonnull(
        strstr(text, "{\"kernel\": \"slow\", \"op\": \"RMS_NORM\", \"sites\": 4, \"taken\": false, \"times\": \"1 t"));
    free(text);
    ck_assert_ptr_nonnull(strstr(report->summary, "no kernels; slower here: slow; eager: "));
    /* Nor is it planned. */
    report = test_plan(m, NULL, "auto");
    ck_assert_ptr_null(report->sites[0]->kernel);
}
END_TEST

START_TEST(what_is_slower_at_one_size_is_not_used_at_that_size)
{
    static tn_status (*const forwards[])(const tn_call *, tn_error *) = {slow_with_one, slow_with_some, slow_with_many};
    tn_model *m = open_model();
    test_kernel_add(&(test_kernel){.id = "slow", .op = TN_OP_ROPE, .forward = forwards[_i]});
    test_model_apply(m, NULL, "auto");
    ck_assert_uint_eq(bound(m, "slow", 1u << _i), 0);
}
END_TEST

START_TEST(what_is_asked_for_by_name_is_applied_however_slow)
{
    tn_model *m = open_model();
    test_kernel_add(&(test_kernel){.id = "slow", .op = TN_OP_RMS_NORM, .forward = slow_always});
    test_model_apply(m, NULL, "slow");
    ck_assert_uint_eq(bound(m, "slow", 7), 9);
}
END_TEST

START_TEST(it_can_be_turned_off)
{
    tn_model *m = open_model();
    test_kernel_add(&(test_kernel){.id = "slow", .op = TN_OP_RMS_NORM, .forward = slow_always});
    tn_config *config = test_config("{\"measure\": false}");
    tn_report *report = test_report(m, config, "auto");
    ck_assert_uint_eq(bound(m, "slow", 7), 9);
    ck_assert_str_eq(verdict_of(report, "model.norm", "slow")->measured, "");
    ck_assert_int_eq(tn_config_set_measure(config, true, NULL), TN_OK);
    test_model_apply(m, config, "auto");
    ck_assert_uint_eq(bound(m, "slow", 7), 0);
    setenv("TENON_MEASURE", "no", 1);
    test_model_apply(m, NULL, "auto");
    ck_assert_uint_eq(bound(m, "slow", 7), 9);
    tn_error err = TN_ERROR_INIT;
    setenv("TENON_MEASURE", "maybe", 1);
    ck_assert_ptr_null(tn_model_open("tests/data/models/qwen3", NULL, &err));
    ck_assert_msg(strstr(err.where, "TENON_MEASURE") && strstr(err.message, "maybe"), "%s: %s", err.where, err.message);
}
END_TEST

/* The faster one has it, whatever they declare: priority and file order only settle what measuring does not. */
START_TEST(a_slower_kernel_of_higher_priority_is_left_out)
{
    tn_model *m = open_model();
    test_kernel_add(&(test_kernel){.id = "slow", .op = TN_OP_RMS_NORM, .forward = slow_always, .priority = 9});
    test_kernel_add(&(test_kernel){.id = "other", .op = TN_OP_RMS_NORM});
    test_model_apply(m, NULL, "auto");
    ck_assert_uint_eq(bound(m, "slow", 7), 0);
}
END_TEST

/* More calls of 16 tokens, one behind the other, than a check makes. */
static tn_status dies_when_timed(const tn_call *call, tn_error *err)
{
    static int calls;
    calls = op_tokens(call) == 16 ? calls + 1 : 0;
    if (calls > 12)
        abort();
    return test_kernel_forward(call, err);
}

START_TEST(what_dies_when_it_is_timed_is_refused)
{
    tn_model *m = open_model();
    test_kernel_add(&(test_kernel){.id = "dies", .op = TN_OP_RMS_NORM, .forward = dies_when_timed});
    tn_report *report = test_report(m, NULL, "auto");
    ck_assert_uint_eq(bound(m, "dies", 7), 0);
    ck_assert_msg(strstr(verdict_of(report, "model.norm", "dies")->reason, "when it was timed"), "%s",
                  verdict_of(report, "model.norm", "dies")->reason);
}
END_TEST

/* The same where the team has so many threads, all of which the program has when it goes on. */
static int32_t deadly;

static tn_status dies_when_timed_on(const tn_call *call, tn_error *err)
{
    static int calls;
    calls = op_tokens(call) == 16 && tn_thread_count() == deadly ? calls + 1 : 0;
    if (calls > 12)
        abort();
    return test_kernel_forward(call, err);
}

START_TEST(all_threads_take_part)
{
    open_model();
    tn_model *m = test_model("qwen3", .threads = 2);
    deadly = _i;
    test_kernel_add(&(test_kernel){.id = "dies", .op = TN_OP_RMS_NORM, .forward = dies_when_timed_on});
    tn_report *report = test_report(m, NULL, "auto");
    const char *reason = verdict_of(report, "model.norm", "dies")->reason;
    ck_assert_msg((strstr(reason, "when it was timed") != NULL) == (_i == 2), "%s", reason);
}
END_TEST

static int calls_at[GRAPH_SIZES];

static tn_status counts(const tn_call *call, tn_error *err)
{
    calls_at[graph_size_of(op_tokens(call))]++;
    return test_kernel_forward(call, err);
}

/* Memory is enough for both ways, and both give the same. */
START_TEST(a_session_leaves_out_the_sizes)
{
    tn_model *m = open_model();
    tn_error err = TN_ERROR_INIT;
    int64_t ids[40] = {0};
    test_kernel_add(&(test_kernel){.id = "counts", .op = TN_OP_MLP, .forward = counts});
    test_model_apply(m, NULL, "counts");
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        m->target.graph->sites[i]->bound.not_at = 1u << _i;
    tn_session *s = test_model_session(m, .context = 64);
    static const int64_t tokens[] = {1, 16, 40, 1};
    for (size_t i = 0; i < 4; i++) {
        tn_batch b = {.size = sizeof b, .ids = ids, .rows = 1, .tokens = tokens[i]};
        ck_assert_msg(tn_session_run(s, &b, NULL, &err) == TN_OK, "%s", err.message);
    }
    for (int size = 0; size < GRAPH_SIZES; size++)
        ck_assert_msg((calls_at[size] == 0) == (size == _i), "%d calls of size %d", calls_at[size], size);
    tn_session_free(s);
}
END_TEST

static tn_status takes_much(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->scratch_bytes = 4 << 20;
    return TN_OK;
}

/* A kernel that needs more memory than eager and has only calls of one token: the last of many goes on alone, unless
 * features of pictures are added to all of them behind the last layer. */
START_TEST(few_tokens_have_room_behind_many)
{
    static const struct {
        const char *path;
        tn_op op;
    } models[] = {{"qwen3", TN_OP_MLP}, {"qwen3_vl", TN_OP_MLP}, {"qwen3_omni_moe_thinker", TN_OP_MOE_BLOCK}};
    int64_t ids[40] = {0};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model(models[_i].path, .dtype = NULL);
    int64_t vocab = test_model_vocab(m);
    test_kernel_add(&(test_kernel){.id = "much", .op = models[_i].op, .plan = takes_much});
    test_model_apply(m, NULL, "much");
    ck_assert_uint_gt(bound(m, "much", 7), 0);
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        m->target.graph->sites[i]->bound.not_at = 1u << GRAPH_SOME | 1u << GRAPH_MANY;
    tn_session *s = test_session(m, .context = 64);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    tn_batch b = {.size = sizeof b, .ids = ids, .rows = 1, .tokens = 40};
    tn_outputs outputs = {.size = sizeof outputs, .last_logits = logits};
    ck_assert_msg(tn_session_run(s, &b, &outputs, &err) == TN_OK, "%s: %s", err.where, err.message);
    free(logits);
}
END_TEST

/* ---- whole steps ------------------------------------------------------------------------------------------ */

static bool other_came;

/* Computes nothing, so no kernel is faster, as long as nothing else was called. */
static tn_status instant(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    if (other_came)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    return TN_OK;
}

static tn_status comes_between(const tn_call *call, tn_error *err)
{
    other_came = true;
    return test_kernel_forward(call, err);
}

/* By itself it gains; among other calls, as in a model, it loses. */
START_TEST(what_gains_by_itself_and_not_in_a_step_is_left_out)
{
    tn_model *m = open_model();
    tn_config *config = test_config("{\"verify\": \"never\", \"kernels\": [\"auto\", \"between\"]}");
    test_kernel_add(&(test_kernel){.id = "instant", .op = TN_OP_RMS_NORM, .forward = instant});
    test_kernel_add(&(test_kernel){.id = "between", .op = TN_OP_ROPE, .forward = comes_between});
    tn_report *report = test_report(m, config, NULL);
    /* Steps of many tokens take so long on a busy machine that they are not timed. */
    ck_assert_uint_eq(bound(m, "instant", 1u << GRAPH_ONE | 1u << GRAPH_SOME), 0);
    ck_assert_uint_eq(bound(m, "between", 7), 1);
    const tn_verdict *v = verdict_of(report, "model.norm", "instant");
    suite_expect_in(v->measured, ", used: no gain in a step");
}
END_TEST

static tn_status dies_among_others(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    if (other_came)
        abort();
    return TN_OK;
}

START_TEST(what_dies_in_a_step_is_refused)
{
    tn_model *m = open_model();
    tn_config *config = test_config("{\"verify\": \"never\", \"kernels\": [\"auto\", \"between\"]}");
    test_kernel_add(&(test_kernel){.id = "dies", .op = TN_OP_RMS_NORM, .forward = dies_among_others});
    test_kernel_add(&(test_kernel){.id = "between", .op = TN_OP_ROPE, .forward = comes_between});
    tn_report *report = test_report(m, config, NULL);
    ck_assert_uint_eq(bound(m, "dies", 7), 0);
    const tn_verdict *v = verdict_of(report, "model.norm", "dies");
    suite_expect_in(v->reason, "when whole steps were timed: crashed with SIGABRT");
}
END_TEST

/* ---- a busy machine --------------------------------------------------------------------------------------- */

static void write_schedstat(const char *folder, const char *thread, const char *text)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, thread);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/schedstat", folder, thread);
    tempdir_write(path, text, strlen(text));
}

START_TEST(waiting_for_processors_is_added_up)
{
    char *folder = tempdir_new();
    write_schedstat(folder, "71", "9000000000 1500000000 40\n");
    write_schedstat(folder, "72", "5 500000000 1\n");
    write_schedstat(folder, "73", "what\n");
    ck_assert_double_eq_tol(measure_waited_in(folder), 2.0, 1e-9);
    ck_assert_double_eq(measure_waited_in("/nonexistent"), 0);
    ck_assert(!measure_is_busy(0, 1) && !measure_is_busy(0.04, 1));
    ck_assert(measure_is_busy(0.06, 1) && measure_is_busy(2, 1));
}
END_TEST

/* ---- remembering --------------------------------------------------------------------------------------------- */

static size_t files(const char *folder)
{
    char pattern[4200];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/tenon/measured-*", folder);
    size_t n = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return n;
}

/* What is said of the norm's kernel by a model opened anew. */
static char *measured(const tn_config *config, int32_t threads, double (*waited)(void))
{
    tn_model *m = test_model_open_with("qwen3", .threads = threads);
    m->target.waited = waited;
    tn_report *report = test_model_report(m, config, "auto");
    char *text = strdup(verdict_of(report, "model.norm", "npu_fused_rmsnorm")->measured);
    tn_report_free(report);
    tn_model_close(m);
    return text;
}

static void spoil(const char *folder, const char *content)
{
    char pattern[4200];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/tenon/measured-*", folder);
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        FILE *f = fopen(found.gl_pathv[i], "r+");
        ck_assert_ptr_nonnull(f);
        ck_assert_int_eq(fseek(f, -30, SEEK_END), 0);
        fputs(content, f);
        fclose(f);
    }
    globfree(&found);
}

START_TEST(the_next_run_remembers)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = tempdir_new();
    setenv("TENON_MEASURE", "yes", 1);
    setenv("XDG_CACHE_HOME", folder, 1);
    const char *build = getenv("TENON_BUILD");
    char plugins[4200];
    snprintf(plugins, sizeof plugins, "%s/plugins", build ? build : "build");
    char *absolute = realpath(plugins, NULL);
    tn_config *config = tn_config_new();
    ck_assert_int_eq(tn_config_set_plugins(config, absolute, NULL), TN_OK);
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s", err.message);
    /* What was measured on a busy machine counts for this run only. */
    char *busy = measured(config, 1, always_waits);
    ck_assert_msg(strstr(busy, "512 tokens") && strstr(busy, "; on a busy machine, not kept"), "%s", busy);
    ck_assert_uint_eq(files(folder), 0);
    free(busy);
    char *first = measured(config, 1, never_waits);
    size_t kept = files(folder);
    ck_assert_msg(strstr(first, "512 tokens") && !strstr(first, "busy"), "%s", first);
    ck_assert_uint_gt(kept, 2);
    char *second = measured(config, 1, never_waits);
    ck_assert_str_eq(first, second);
    ck_assert_uint_eq(files(folder), kept);
    /* As many threads is part of the question. */
    char *third = measured(config, 2, never_waits);
    ck_assert_uint_gt(files(folder), kept);
    /* What is not a measurement is made again. */
    spoil(folder, "nan nan x");
    char *fourth = measured(config, 1, never_waits);
    suite_expect_in(fourth, "512 tokens");
    free(first);
    free(second);
    free(third);
    free(fourth);
    free(absolute);
    tn_config_free(config);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("measure", 60); /* of a busy machine; measuring takes a second or two                     */
    suite_add(all, what_is_slower_than_eager_is_not_applied);
    tcase_add_loop_test(all, what_is_slower_at_one_size_is_not_used_at_that_size, 0, GRAPH_SIZES);
    tcase_add_loop_test(all, a_session_leaves_out_the_sizes, 0, GRAPH_SIZES);
    tcase_add_loop_test(all, few_tokens_have_room_behind_many, 0, 3);
    suite_add(all, what_is_asked_for_by_name_is_applied_however_slow, it_can_be_turned_off,
              a_slower_kernel_of_higher_priority_is_left_out, what_dies_when_it_is_timed_is_refused);
    tcase_add_loop_test(all, all_threads_take_part, 1, 3);
    suite_add(all, what_gains_by_itself_and_not_in_a_step_is_left_out, what_dies_in_a_step_is_refused,
              waiting_for_processors_is_added_up, the_next_run_remembers);
    return suite_run();
}
