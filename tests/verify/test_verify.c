/* tn_verify_kernels: every kernel that matches is tried at its sites, and none that fails is left out, whoever would
 * have the sites. */
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One row per kernel and operation, the first that is named so; NULL: none. */
static const tn_verify_row *find(tn_verify_row *const *rows, size_t count, const char *id, const char *gradient)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(rows[i]->kernel, id) && !strcmp(rows[i]->gradient, gradient))
            return rows[i];
    return NULL;
}

static tn_verify_row **verify(tn_model *m, const char *spec, tn_status wanted, size_t *count)
{
    tn_verify_row **rows = NULL;
    tn_error err = TN_ERROR_INIT;
    tn_status status = tn_verify_kernels(m, NULL, spec, NULL, &rows, count, &err);
    ck_assert_msg(status == wanted, "%d: %s: %s", (int)status, err.where, err.message);
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        ck_assert_ptr_null(m->target.graph->sites[i]->bound.impl);
    suite_keep(rows, free);
    return rows;
}

static void expect_row(const tn_verify_row *row, bool passed, int64_t sites, int64_t applied, const char *reason)
{
    ck_assert_ptr_nonnull(row);
    ck_assert_msg(row->passed == passed, "%s: %s", row->kernel, row->reason);
    ck_assert_int_eq(row->sites, sites);
    ck_assert_int_eq(row->applied_sites, applied);
    const char *text = passed ? row->not_applied : row->reason;
    ck_assert_msg(strstr(text, reason) && (reason[0] || !text[0]), "no '%s' in '%s'", reason, text);
}

static tn_status wrong(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (tn_tensor_count(&call->out[0]) > 0)
        ((float *)call->out[0].data)[0] += 1;
    return status;
}

static tn_status wrong_at_layer_1(const tn_call *call, tn_error *err)
{
    return (strstr(call->site->path, "layers.1.") ? wrong : test_kernel_forward)(call, err);
}

static tn_status crashes(const tn_call *call, tn_error *err)
{
    raise(SIGSEGV);
    return test_kernel_forward(call, err);
}

static tn_status failing_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)plan;
    return tn_fail(err, TN_E_INTERNAL, site->path, "the plan cannot be made");
}

static tn_status crashing_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    raise(SIGSEGV);
    return failing_plan(site, plan, err);
}

/* ---- failures are rows -------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    tn_status (*forward)(const tn_call *, tn_error *);
    tn_status (*plan)(const tn_site *, tn_plan *, tn_error *);
    const char *reason;
} faults[] = {
    {"wrong numbers", wrong, NULL, "wrong numbers with"},
    {"wrong at one layer", wrong_at_layer_1, NULL, "wrong numbers with 16 tokens"},
    {"a crash", crashes, NULL, "crashed with SIGSEGV"},
    {"a plan that fails", NULL, failing_plan, "plan failed: the plan cannot be made"},
    {"a plan that crashes", NULL, crashing_plan, "plan crashed with SIGSEGV"},
};

START_TEST(what_fails_is_a_failed_row)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    size_t count;
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    test_kernel_add(
        &(test_kernel){.id = "bad", .op = TN_OP_RMS_NORM, .forward = faults[_i].forward, .plan = faults[_i].plan});
    static const char *const specs[] = {"auto", "bad", "bad,rope"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        tn_verify_row **rows = verify(m, specs[i], TN_E_VERIFY, &count);
        ck_assert_uint_eq(count, i == 1 ? 1 : 2);
        expect_row(find(rows, count, "bad", ""), false, 9, 0, faults[_i].reason);
        ck_assert(strstr(find(rows, count, "bad", "")->not_applied, "refused: "));
        if (i != 1)
            expect_row(find(rows, count, "rope", ""), true, 1, 1, "");
    }
}
END_TEST

START_TEST(what_lost_its_sites_is_tried_too)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    size_t count;
    test_kernel_add(&(test_kernel){.id = "first", .op = TN_OP_RMS_NORM, .priority = 5});
    test_kernel_add(&(test_kernel){.id = "second", .op = TN_OP_RMS_NORM});
    tn_verify_row **rows = verify(m, "auto", TN_OK, &count);
    expect_row(find(rows, count, "first", ""), true, 9, 9, "");
    expect_row(find(rows, count, "second", ""), true, 9, 0, "priority: first has 5");
    ck_assert(find(rows, count, "second", "")->kernel_seconds > 0);
    test_kernel_add(&(test_kernel){.id = "third", .op = TN_OP_RMS_NORM, .forward = wrong});
    rows = verify(m, "auto", TN_E_VERIFY, &count);
    ck_assert_uint_eq(count, 3);
    expect_row(find(rows, count, "third", ""), false, 9, 0, "wrong numbers");
    expect_row(find(rows, count, "second", ""), true, 9, 0, "priority");
}
END_TEST

/* The winner is refused: the next one has the sites. */
START_TEST(the_next_takes_what_a_refused_one_lost)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    size_t count;
    test_kernel_add(&(test_kernel){.id = "first", .op = TN_OP_RMS_NORM, .priority = 5, .forward = wrong});
    test_kernel_add(&(test_kernel){.id = "second", .op = TN_OP_RMS_NORM});
    tn_report *report = NULL;
    tn_verify_row **rows;
    ck_assert_int_eq(tn_verify_kernels(m, NULL, "auto", &report, &rows, &count, NULL), TN_E_VERIFY);
    expect_row(find(rows, count, "first", ""), false, 9, 0, "wrong numbers");
    expect_row(find(rows, count, "second", ""), true, 9, 9, "");
    suite_expect_in(report->summary, "second 9/9 RMS_NORM; refused: first at RMS_NORM (wrong");
    free(rows);
    tn_report_free(report);
}
END_TEST

START_TEST(covered_sites_are_tried)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    size_t count;
    test_kernel_add(&(test_kernel){.id = "sum", .op = TN_OP_ADD_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_at_layer_1});
    tn_verify_row **rows = verify(m, "auto", TN_E_VERIFY, &count);
    expect_row(find(rows, count, "norm", ""), false, 9, 0, "wrong numbers");
    const tn_verify_row *sum = find(rows, count, "sum", "");
    expect_row(sum, true, sum->sites, sum->sites, "");
}
END_TEST

START_TEST(a_covered_kernel_says_so)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    size_t count;
    test_kernel_add(&(test_kernel){.id = "sum", .op = TN_OP_ADD_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    tn_verify_row **rows = verify(m, "auto", TN_OK, &count);
    const tn_verify_row *sum = find(rows, count, "sum", "");
    expect_row(find(rows, count, "norm", ""), true, 9, 9 - sum->sites, "covered: sum has the ADD_RMS_NORM around");
}
END_TEST

START_TEST(selection_errors_are_no_rows)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    size_t count;
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "relu", .op = TN_OP_MLP, .acts = TN_TAKES(TN_ACT_RELU)});
    verify(m, "nrom", TN_E_KERNEL, &count);
    verify(m, "relu", TN_E_KERNEL, &count);
    verify(m, "norm,relu", TN_E_KERNEL, &count);
    verify(m, "auto", TN_OK, &count);
    ck_assert_uint_eq(count, 1);
}
END_TEST

START_TEST(options_limit_what_is_tried)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    tn_config *config = test_config("{\"options\": {\"norm\": {\"modules\": [\"*.0.*\"]}}}");
    size_t count;
    tn_verify_row **rows;
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_at_layer_1});
    ck_assert_int_eq(tn_verify_kernels(m, config, "auto", NULL, &rows, &count, NULL), TN_OK);
    expect_row(find(rows, count, "norm", ""), true, 4, 4, "");
    free(rows);
}
END_TEST

START_TEST(rows_say_what_was_tried)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    size_t count;
    char threads[32];
    snprintf(threads, sizeof threads, tn_thread_count() > 1 ? "1 and %d threads" : "%d thread", (int)tn_thread_count());
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    tn_verify_row **rows = verify(m, "norm", TN_OK, &count);
    bool busy = strstr(rows[0]->coverage, " threads that this busy machine never ran at one time");
    ck_assert_msg(strstr(rows[0]->coverage, " tokens, ") && (busy || strstr(rows[0]->coverage, threads)), "%s",
                  rows[0]->coverage);
}
END_TEST

/* ---- gradients ----------------------------------------------------------------------------------------------- */

static tn_status wrong_weight(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    const tn_param *w = &call->grads->param[TN_ROLE_WEIGHT];
    if (w->count > 0 && strstr(call->site->path, "layers.1."))
        ((float *)w->tensors[0].data)[2] *= 1.5f;
    return status;
}

START_TEST(gradients_have_rows_of_their_own)
{
    tn_model *m = test_model("qwen3", .dtype = "f32", .training = true);
    size_t count;
    test_kernel_add(&(test_kernel){.id = "right", .op = TN_OP_RMS_NORM, .backward = test_kernel_backward});
    test_kernel_add(
        &(test_kernel){.id = "wrong", .op = TN_OP_RMS_NORM, .backward = wrong_weight, .gradient_ulps = 128});
    tn_verify_row **rows = verify(m, "auto", TN_E_VERIFY, &count);
    ck_assert_uint_eq(count, 6);
    for (size_t i = 0; i < count; i++) {
        bool weight = !strcmp(rows[i]->gradient, "weight"), bad = !strcmp(rows[i]->kernel, "wrong");
        ck_assert(i % 3 == 0 ? !rows[i]->gradient[0] : weight || !strcmp(rows[i]->gradient, "input 0"));
        ck_assert_int_eq(rows[i]->kind, i % 3 == 0 ? TN_VERIFY_RESULTS
                                        : weight   ? TN_VERIFY_PARAM_GRADIENT
                                                   : TN_VERIFY_INPUT_GRADIENT);
        ck_assert(rows[i]->tolerance_ulps == (bad && i % 3 ? 128 : 64));
        ck_assert_msg(rows[i]->passed == (!bad || !strcmp(rows[i]->gradient, "input 0")), "%s %s", rows[i]->kernel,
                      rows[i]->gradient);
        ck_assert(!bad || !weight || (rows[i]->largest_error > 1 && rows[i]->largest_ulps > 128));
        ck_assert(!bad || !weight || strstr(rows[i]->worst_site, "layers.1."));
        ck_assert(!bad || !weight || strstr(rows[i]->reason, "gradient of weight"));
        ck_assert(strstr(rows[i]->coverage, "gradients"));
    }
}
END_TEST

/* ---- planning says the same ---------------------------------------------------------------------------------- */

START_TEST(plans_refuse_what_applying_would)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    test_kernel_add(&(test_kernel){.id = "bad", .op = TN_OP_ROPE, .forward = _i ? crashes : wrong});
    static const char *const specs[] = {"auto", "bad"};
    for (size_t i = 0; i < 2; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_report *report = tn_model_plan(m, NULL, specs[i], &err);
        ck_assert_msg(report != NULL, "%s: %s", err.where, err.message);
        suite_expect_in(report->summary, "refused: bad at ROPE");
        char *text = tn_model_describe(m, report, TN_GRAPH_TEXT, true, &err);
        ck_assert_msg(strstr(text, "- bad: refused: ") && !strstr(text, "takes it"), "%s", text);
        free(text);
        tn_report_free(report);
    }
}
END_TEST

int main(void)
{
    TCase *c = suite_open("verify", 120);
    tcase_add_loop_test(c, what_fails_is_a_failed_row, 0, sizeof faults / sizeof *faults);
    suite_add(c, what_lost_its_sites_is_tried_too, the_next_takes_what_a_refused_one_lost, covered_sites_are_tried,
              a_covered_kernel_says_so, selection_errors_are_no_rows, options_limit_what_is_tried,
              rows_say_what_was_tried, gradients_have_rows_of_their_own);
    tcase_add_loop_test(c, plans_refuse_what_applying_would, 0, 2);
    return suite_run();
}
