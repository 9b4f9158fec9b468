/* The example out of the tree, from file to figures: built by its own Makefile, dropped into a folder, listed, applied,
 * measured; and its broken relatives, refused when applied. */
#include "plugin_box.h"
#include "process.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static tn_config *config;

static void setup(void)
{
    plugin_box_open();
    config = plugin_box_config(NULL);
    plugin_box_add("../hello_kernel/hello_kernel", "hello_kernel.so");
    plugin_box_add("wrong_numbers", "wrong_numbers.so");
    plugin_box_add("writes_outside", "writes_outside.so");
    ck_assert_int_eq(tn_scan(config, NULL), TN_OK);
}

/* Sites that the kernel has now. */
static size_t sites_of(tn_model *model, const char *id)
{
    tn_error err = TN_ERROR_INIT;
    tn_report *report = tn_model_report(model, &err);
    ck_assert_msg(report != NULL, "%s", err.message);
    size_t count = test_model_sites_of(report, id);
    tn_report_free(report);
    return count;
}

START_TEST(it_is_listed)
{
    tn_kernel_info **list;
    size_t count;
    ck_assert_int_eq(tn_kernels_available("cpu", &list, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(list[0]->id, "example_fused_rmsnorm");
    ck_assert_str_eq(list[0]->summary, "RMS norm in plain C");
    ck_assert(list[0]->available);
    free(list);
}
END_TEST

START_TEST(it_is_applied_and_measured)
{
    static const char *const dtypes[] = {"f32", "bf16"};
    tn_error err = TN_ERROR_INIT;
    tn_model *model = test_model("qwen3", .dtype = dtypes[_i], .device = "cpu", .threads = 2);
    test_model_apply(model, config, "example_fused_rmsnorm");
    size_t sites = sites_of(model, "example_fused_rmsnorm"), count;
    ck_assert_uint_gt(sites, 0);
    tn_verify_row **rows;
    ck_assert_msg(tn_verify(model, &rows, &count, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(rows[0]->kernel, "example_fused_rmsnorm");
    ck_assert_int_eq(rows[0]->sites, (int64_t)sites);
    ck_assert(rows[0]->passed);
    ck_assert(rows[0]->kernel_seconds > 0 && rows[0]->eager_seconds > 0);
    free(rows);
    ck_assert_int_eq(tn_revert_kernel(model, "example_fused_rmsnorm", &err), TN_OK);
    ck_assert_uint_eq(sites_of(model, "example_fused_rmsnorm"), 0);
}
END_TEST

START_TEST(it_declines_what_it_does_not_take)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *model = test_model("qwen3", .dtype = "f16", .device = "cpu", .threads = 2);
    ck_assert_int_eq(tn_apply_kernels(model, config, "example_fused_rmsnorm", NULL, &err), TN_E_KERNEL);
    suite_expect_in(err.message, "dtype: site has f16, kernel takes f32, bf16");
}
END_TEST

START_TEST(broken_kernels_are_refused_when_applied)
{
    static const char *const ids[] = {"test_wrong_numbers", "test_writes_outside"};
    tn_error err = TN_ERROR_INIT;
    tn_model *model = test_model("qwen3", .dtype = "f32", .device = "cpu", .threads = 2);
    ck_assert_int_lt(tn_apply_kernels(model, config, ids[_i], NULL, &err), 0);
    ck_assert_msg(strstr(err.where, ids[_i]) || strstr(err.message, ids[_i]), "%s: %s", err.where, err.message);
    ck_assert_uint_eq(sites_of(model, ids[_i]), 0);
}
END_TEST

/* examples/check_kernel.c, the test to copy: what it says of a plugin. */
static int check_kernel(const char *file, char *out, size_t size)
{
    char line[8400];
    snprintf(line, sizeof line, "%s/examples/check_kernel %s/tests/%s", process_build(), process_build(), file);
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    out[fread(out, 1, size - 1, pipe)] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

START_TEST(its_own_test_passes_and_can_fail)
{
    char out[4096];
    ck_assert_int_eq(check_kernel("hello_kernel/hello_kernel.so", out, sizeof out), 0);
    ck_assert_str_eq(out, "RMS_NORM f32: right\nRMS_NORM bf16: right\n");
    ck_assert_int_eq(check_kernel("bad_plugins/wrong_numbers.so", out, sizeof out), -TN_E_VERIFY);
    suite_expect_in(out, "test_wrong_numbers, f32, norm w, width 1: forward: wrong numbers, ");
    suite_expect_in(out, "RMS_NORM f32: NOT RIGHT\n");
    ck_assert_int_eq(check_kernel("bad_kernels/bad_rope.so", out, sizeof out), -TN_E_VERIFY); /* no such kernel */
}
END_TEST

START_TEST(the_guide_shows_its_own_test)
{
    size_t size;
    char *guide = tempdir_read("docs/writing-a-kernel.md", &size), *shown = strstr(guide, "```c\nstatic const char");
    char *example = tempdir_read("examples/check_kernel.c", &size);
    ck_assert_ptr_nonnull(shown);
    *strstr(shown + 5, "```") = '\0';
    ck_assert_ptr_nonnull(strstr(example, shown + 5));
    free(example);
    free(guide);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("hello_kernel", 240);
    tcase_add_checked_fixture(tc, setup, NULL);
    suite_add(tc, it_is_listed);
    tcase_add_loop_test(tc, it_is_applied_and_measured, 0, 2);
    suite_add(tc, it_declines_what_it_does_not_take, its_own_test_passes_and_can_fail, the_guide_shows_its_own_test);
    tcase_add_loop_test(tc, broken_kernels_are_refused_when_applied, 0, 2);
    return suite_run();
}
