/* Where no process can be started to try a kernel in, that is an error which says so, and no verdict on the kernel:
 * once there are processes again it is chosen. Pipes to a child are among what a limit of open files holds off. */
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static tn_model *open_model(void)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    setenv("XDG_CACHE_HOME", "/nonexistent", 1);
    return m;
}

/* Returns how many there could be before. */
static rlim_t allow_files(rlim_t most)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = most;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

static void expect_no_process(tn_status status, const tn_error *err)
{
    ck_assert_int_eq(status, TN_E_MEMORY);
    ck_assert_int_eq(err->code, TN_E_MEMORY);
    ck_assert_msg(strstr(err->message, "no process can be started for it: Too many open files; end other programs"),
                  "%s: %s", err->where, err->message);
}

static tn_status is_available(tn_error *err)
{
    (void)err;
    return TN_OK;
}

static tn_status plans(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)plan;
    (void)err;
    return TN_OK;
}

/* The first child that is needed: for available, for plan, for the check, for its times. */
static const struct {
    test_kernel kernel;
    const char *measure, *config;
} firsts[] = {
    {{.id = "norm", .op = TN_OP_RMS_NORM, .available = is_available}, "no", "{\"kernels\": \"auto\"}"},
    {{.id = "norm", .op = TN_OP_RMS_NORM, .plan = plans}, "no", "{\"kernels\": \"auto\"}"},
    {{.id = "norm", .op = TN_OP_RMS_NORM}, "no", "{\"kernels\": \"auto\"}"},
    {{.id = "norm", .op = TN_OP_RMS_NORM}, "yes", "{\"kernels\": \"auto\", \"verify\": \"never\"}"},
};

START_TEST(it_is_an_error_and_no_verdict)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_model();
    tn_config *config = test_config(firsts[_i].config);
    setenv("TENON_MEASURE", firsts[_i].measure, 1);
    test_kernel_add(&firsts[_i].kernel);
    rlim_t before = allow_files(0);
    expect_no_process(tn_apply_kernels(m, config, NULL, NULL, &err), &err);
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_ptr_null(tn_model_plan(m, config, NULL, &err));
    expect_no_process(err.code, &err);
    ck_assert_uint_eq(test_model_bound(m), 0);
    allow_files(before);
    tn_error_clear(&err);
    tn_report *report = tn_model_plan(m, config, "norm", &err);
    ck_assert_msg(report && strstr(report->summary, "norm 9/9 RMS_NORM"), "%s", err.message);
    tn_report_free(report);
    test_model_apply(m, config, "norm");
    ck_assert_uint_gt(test_model_bound(m), 0);
}
END_TEST

START_TEST(verify_says_so)
{
    tn_error err = TN_ERROR_INIT;
    tn_verify_row **rows;
    size_t count;
    tn_model *m = open_model();
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    rlim_t before = allow_files(0);
    expect_no_process(tn_verify_kernels(m, NULL, "auto", NULL, &rows, &count, &err), &err);
    allow_files(before);
    tn_error_clear(&err);
    ck_assert_msg(tn_verify_kernels(m, NULL, "auto", NULL, &rows, &count, &err) == TN_OK, "%s", err.message);
    free(rows);
    test_model_apply(m, NULL, "norm");
    before = allow_files(0);
    expect_no_process(tn_verify(m, &rows, &count, &err), &err);
    allow_files(before);
}
END_TEST

/* The kernel at a part of what is timed dies while the whole is timed without any kernel: nobody's turn. It computes
 * nothing, so that it is the faster one of its site however busy the machine is. */

static bool whole_called;

static tn_status whole(const tn_call *call, tn_error *err)
{
    whole_called = true;
    return test_kernel_forward(call, err);
}

static tn_status part(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    if (whole_called)
        abort();
    return TN_OK;
}

START_TEST(what_cannot_be_timed_is_chosen_without)
{
    tn_model *m = open_model();
    tn_report *report = NULL;
    tn_error err = TN_ERROR_INIT;
    setenv("TENON_MEASURE", "yes", 1);
    test_kernel_add(&(test_kernel){.id = "part", .op = TN_OP_RMS_NORM, .forward = part});
    test_kernel_add(&(test_kernel){.id = "whole", .op = TN_OP_ADD_RMS_NORM, .forward = whole});
    tn_config *config = test_config("{\"kernels\": \"auto\", \"verify\": \"never\"}");
    ck_assert_msg(tn_apply_kernels(m, config, NULL, &report, &err) == TN_OK, "%s: %s", err.where, err.message);
    bool told = false;
    for (size_t i = 0; i < report->note_count; i++)
        told |= strstr(report->notes[i], "not all could be timed: crashed with SIGABRT") != NULL;
    ck_assert(told);
    suite_expect_in(report->summary, "whole 4/4 ADD_RMS_NORM");
    tn_report_free(report);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("no_process", 0);
    tcase_add_loop_test(all, it_is_an_error_and_no_verdict, 0, sizeof firsts / sizeof *firsts);
    suite_add(all, verify_says_so, what_cannot_be_timed_is_chosen_without);
    return suite_run();
}
