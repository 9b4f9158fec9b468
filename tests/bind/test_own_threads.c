/* Kernels that have threads in this process: a child that tries them later has none of those. What OpenMP keeps is put
 * to rest first; whoever keeps others is told apart (tests/bad_kernels/threads_kernel.c). */
#include "plugin_box.h"
#include "process.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static tn_config *config;

static void setup(void)
{
    plugin_box_open();
    plugin_box_add("../bad_kernels/threads_kernel", "threads.so");
    config = plugin_box_config(NULL);
    ck_assert_int_eq(tn_scan(config, NULL), TN_OK);
}

static void teardown(void)
{
    unsetenv("BAD_KERNEL");
}

/* A few tokens in a session for chunks of that size. */
static tn_status run(tn_model *m, int64_t chunk, tn_error *err)
{
    static const int64_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    tn_session_options o = {.size = sizeof o, .context = chunk + 8, .chunk = chunk};
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 8, .ids = ids};
    *err = (tn_error)TN_ERROR_INIT;
    tn_session *s = tn_session_new(m, &o, err);
    tn_status status = s ? tn_session_run(s, &batch, NULL, err) : err->code;
    tn_session_free(s);
    return status;
}

static tn_status apply(tn_model *m, tn_error *err)
{
    *err = (tn_error)TN_ERROR_INIT;
    return tn_apply_kernels(m, config, "test_threads", NULL, err);
}

/* Used here with threads, tried again with larger calls, and for another model. */
START_TEST(openmp_is_no_obstacle)
{
    tn_error err;
    tn_model *m = test_model("qwen3", .dtype = "f32", .threads = 2),
             *other = test_model("llama", .dtype = "f32", .threads = 2);
    for (int turn = 0; turn < 2; turn++) {
        ck_assert_msg(apply(m, &err) == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_msg(run(m, 8, &err) == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_msg(run(m, 700, &err) == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_msg(apply(other, &err) == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_msg(run(other, 8, &err) == TN_OK, "%s: %s", err.where, err.message);
        setenv("ANOTHER", "environment", 1); /* in which nothing is remembered                          */
    }
}
END_TEST

START_TEST(threads_of_its_own_are_told)
{
    tn_error err;
    setenv("BAD_KERNEL", "a thread of its own", 1);
    tn_model *m = test_model("qwen3", .dtype = "f32", .threads = 2),
             *other = test_model("llama", .dtype = "f32", .threads = 2);
    ck_assert_msg(apply(m, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_msg(run(m, 8, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_int_eq(run(m, 700, &err), TN_E_KERNEL);
    suite_expect_in(err.message, "did not finish within 5 s: it keeps threads of its own in this process");
    ck_assert_int_eq(apply(other, &err), TN_E_KERNEL);
    suite_expect_in(err.message, "cannot be tried: it keeps threads of its own in this process");
}
END_TEST

/* What such a thread does wrong is told like anything else. */
START_TEST(faults_of_its_own_threads_are_told)
{
    tn_error err;
    setenv("BAD_KERNEL", "a thread of its own that writes too far", 1);
    tn_model *m = test_model("qwen3", .dtype = "f32", .threads = 2);
    ck_assert_int_eq(apply(m, &err), TN_E_KERNEL);
    suite_expect_in(err.message, "forward: wrote outside its outputs");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("threads of kernels", 240);
    tcase_add_checked_fixture(tc, setup, teardown);
    suite_add(tc, openmp_is_no_obstacle, threads_of_its_own_are_told, faults_of_its_own_threads_are_told);
    return suite_run();
}
