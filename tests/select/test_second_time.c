/* Kernels whose plan or pack is right in the child that tries it and fails when it is asked again: `auto` never gives
 * up, and a kernel that was asked for by name is an error that names it. */
#include "plugin_box.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Of the test model's 9 norms: those that an honest kernel below the bad one gets, and what is said. */
static const struct {
    const char *id;
    int64_t sites;
    const char *reason, *named;
} bad[] = {
    {"plan_declines", 0, "plan failed: when it is asked again: not twice", "when it is asked again: not twice"},
    {"plan_fails", 0, "plan failed: when it is asked again: its table is used up", "its table is used up"},
    {"plan_sizes", 0, "plan failed: it answers in two ways: 4096 bytes of scratch", "it answers in two ways"},
    {"plan_crashes", 0, "plan crashed with SIGABRT", "plan crashed with SIGABRT"},
    {"plan_declines_here", 0, "plan declined: not in this process", "cannot be applied at model.layers.0."},
    {"plan_fails_here", 0, "no memory for its table", "cannot be applied at model.layers.0."},
    {"plan_sizes_here", 0, "it answers in two ways: 4096 bytes", "cannot be applied at model.layers.0."},
    {"pack_fails_here", 0, "the weight does not fold", "the weight does not fold"},
    {"pack_declines_here", 0, "not today", "not today"},
    {"pack_fails_there", 8, "pack failed", "cannot be applied at model.layers.1.input_layernorm: pack failed"},
    {"right_packed", 9, "", NULL},
    {"right_table", 9, "", NULL},
};
enum { BAD = sizeof bad / sizeof *bad, NORMS = 9 };

static tn_config *config;
static tn_model *model;

static void setup(void)
{
    plugin_box_open();
    plugin_box_add("second_time", "second_time.so");
    plugin_box_add("good", "zz_good.so");
    config = plugin_box_config(NULL);
    ck_assert_int_eq(tn_scan(config, NULL), TN_OK);
    model = test_model("qwen3", .dtype = "f32", .threads = 2);
}

/* "auto" without the other bad ones, and without the good one or not. Owned. */
static char *spec_for(size_t only, bool good)
{
    char *spec = malloc(1024);
    strcpy(spec, "auto");
    for (size_t i = 0; i < BAD; i++)
        if (i != only)
            strcat(strcat(spec, ",-"), bad[i].id);
    return good ? spec : strcat(spec, ",-test_rms_norm");
}

static void expect_auto(size_t which, bool good)
{
    tn_error err = TN_ERROR_INIT;
    tn_report *report = NULL;
    char *spec = spec_for(which, good);
    tn_status status = tn_apply_kernels(model, config, spec, &report, &err);
    ck_assert_msg(status == TN_OK, "%s: %s: %s", bad[which].id, err.where, err.message);
    ck_assert_msg(test_model_sites_of(report, bad[which].id) == bad[which].sites, "%s: %s", bad[which].id,
                  report->summary);
    ck_assert_int_eq(test_model_sites_of(report, "test_rms_norm"), good ? NORMS - bad[which].sites : 0);
    suite_expect_in(report->summary, bad[which].reason);
    tn_report_free(report);
    free(spec);
}

/* With eager below it, then with another kernel; twice, since the plugin counts. */
START_TEST(auto_goes_on)
{
    for (int turn = 0; turn < 2; turn++) {
        expect_auto((size_t)_i, false);
        expect_auto((size_t)_i, true);
    }
}
END_TEST

START_TEST(what_was_named_is_told)
{
    tn_error err = TN_ERROR_INIT;
    tn_report *report = NULL;
    tn_status status = tn_apply_kernels(model, config, bad[_i].id, &report, &err);
    if (!bad[_i].named) {
        ck_assert_msg(status == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_int_eq(test_model_sites_of(report, bad[_i].id), NORMS);
        tn_report_free(report);
        return;
    }
    ck_assert_int_eq(status, TN_E_KERNEL);
    ck_assert_ptr_null(report);
    ck_assert_str_eq(err.where, bad[_i].id);
    suite_expect_in(err.message, bad[_i].named);
    report = tn_model_report(model, NULL);
    ck_assert_int_eq(test_model_sites_of(report, bad[_i].id), 0);
    tn_report_free(report);
}
END_TEST

/* All together: every one that fails leaves its sites to the next. */
START_TEST(one_after_the_other)
{
    tn_error err = TN_ERROR_INIT;
    tn_report *report = NULL;
    ck_assert_int_eq(tn_apply_kernels(model, config, "auto,-right_packed,-right_table", &report, &err), TN_OK);
    ck_assert_int_eq(test_model_sites_of(report, "test_rms_norm") + test_model_sites_of(report, "pack_fails_there"),
                     NORMS);
    ck_assert_int_eq(test_model_sites_of(report, "pack_fails_there"), NORMS - 1);
    tn_report_free(report);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("second time", 240);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_loop_test(tc, auto_goes_on, 0, BAD);
    tcase_add_loop_test(tc, what_was_named_is_told, 0, BAD);
    suite_add(tc, one_after_the_other);
    return suite_run();
}
