/* tenon verify: every kernel that matches, at its sites, against the plain implementation, on the model's own weights;
 * verify_text.c has the whole model on text. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double speed_up(const tn_verify_row *row)
{
    return row->kernel_seconds > 0 ? row->eager_seconds / row->kernel_seconds : 0;
}

static const char *result_of(const tn_verify_row *row)
{
    if (!row->passed)
        return "FAILED";
    return row->kind != TN_VERIFY_RESULTS || row->applied_sites > 0 ? "passed" : "passed, not applied";
}

/* What the table has no room for: what was tried, who has the sites instead, and why a kernel failed. */
static void print_remarks(tn_verify_row *const *rows, size_t count)
{
    const char *before = "\n";
    for (size_t i = 0; i < count; i++)
        if (rows[i]->kind == TN_VERIFY_RESULTS && rows[i]->coverage[0]) {
            printf("%s%s %s: tried %s\n", before, rows[i]->kernel, tn_op_name(rows[i]->op), rows[i]->coverage);
            before = "";
        }
    for (size_t i = 0; i < count; i++) {
        const tn_verify_row *r = rows[i];
        const char *op = tn_op_name(r->op);
        if (r->kind != TN_VERIFY_RESULTS)
            continue;
        if (r->not_applied[0] && r->passed)
            printf("\n%s %s: not applied at %lld of %lld sites: %s\n", r->kernel, op,
                   (long long)(r->sites - r->applied_sites), (long long)r->sites, r->not_applied);
        if (!r->passed)
            printf("\n%s at %s: %s\n", r->kernel, r->worst_site, r->reason);
    }
}

/* One that crashed has none. */
static void add_figures(table *t, const tn_verify_row *r)
{
    bool any = isfinite(r->largest_error);
    table_cell(t, any ? "%.3g ulp" : "-", r->largest_ulps);
    table_cell(t, "%.3g ulp", r->tolerance_ulps);
    table_cell(t, any ? "%.0f %%" : "-", r->largest_error * 100);
}

/* The same figures of every gradient, where the model is for training. */
static tn_status print_gradients(tn_verify_row *const *rows, size_t count, tn_error *err)
{
    static const char *const heads[] = {"GRADIENT OF",   "KERNEL",    "OPERATION", "SITES",
                                        "LARGEST ERROR", "TOLERANCE", "USED",      "RESULT"};
    table t;
    bool any = false;
    for (size_t i = 0; i < count; i++)
        any = any || rows[i]->kind != TN_VERIFY_RESULTS;
    if (!any)
        return TN_OK;
    printf("\n");
    table_start(&t, 8, 0x78);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        table_cell(&t, "%s", heads[i]);
    for (size_t i = 0; i < count; i++) {
        const tn_verify_row *r = rows[i];
        if (r->kind == TN_VERIFY_RESULTS)
            continue;
        table_cell(&t, "%s", r->gradient);
        table_cell(&t, "%s", r->kernel);
        table_cell(&t, "%s", tn_op_name(r->op));
        table_cell(&t, "%lld", (long long)r->sites);
        add_figures(&t, r);
        table_cell(&t, "%s, worst at %s", result_of(r), r->worst_site);
    }
    return table_print(&t, err);
}

static tn_status print_table(tn_verify_row *const *rows, size_t count, tn_error *err)
{
    static const char *const heads[] = {"KERNEL", "OPERATION", "SITES",    "LARGEST ERROR", "TOLERANCE",
                                        "USED",   "TOKENS",    "SPEED-UP", "RESULT"};
    table t;
    table_start(&t, 9, 0xFC);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        table_cell(&t, "%s", heads[i]);
    for (size_t i = 0; i < count; i++) {
        const tn_verify_row *r = rows[i];
        if (r->kind != TN_VERIFY_RESULTS)
            continue;
        table_cell(&t, "%s", r->kernel);
        table_cell(&t, "%s", tn_op_name(r->op));
        table_cell(&t, "%lld", (long long)r->sites);
        add_figures(&t, r);
        table_cell(&t, "%lld", (long long)r->tokens);
        table_cell(&t, speed_up(r) > 0 ? "%.2fx" : "-", speed_up(r));
        table_cell(&t, "%s", result_of(r));
    }
    tn_status status = table_print(&t, err);
    if (status == TN_OK)
        status = print_gradients(rows, count, err);
    if (status == TN_OK)
        print_remarks(rows, count);
    return status;
}

/* ---- JSON ------------------------------------------------------------------------------------- */

static json_t *json_gradients(tn_verify_row *const *rows, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count && rows[i]->kind != TN_VERIFY_RESULTS; i++) {
        const tn_verify_row *r = rows[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:o, s:o, s:o, s:s, s:b, s:s}", "gradient", r->gradient, "largest_error",
                                        json_number(r->largest_error), "largest_ulps", json_number(r->largest_ulps),
                                        "tolerance_ulps", json_number(r->tolerance_ulps), "worst_site", r->worst_site,
                                        "passed", (int)r->passed, "reason", r->reason));
    }
    return list;
}

static json_t *json_row(tn_verify_row *const *rows, size_t count)
{
    const tn_verify_row *r = rows[0];
    return json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:I, s:s, s:b, s:s, s:s, s:o}", "kernel",
                     r->kernel, "op", tn_op_name(r->op), "sites", (json_int_t)r->sites, "applied_sites",
                     (json_int_t)r->applied_sites, "largest_error", json_number(r->largest_error), "largest_ulps",
                     json_number(r->largest_ulps), "tolerance_ulps", json_number(r->tolerance_ulps), "worst_site",
                     r->worst_site, "eager_seconds", json_number(r->eager_seconds), "kernel_seconds",
                     json_number(r->kernel_seconds), "speedup", json_number(speed_up(r)), "tokens",
                     (json_int_t)r->tokens, "coverage", r->coverage, "passed", (int)r->passed, "reason", r->reason,
                     "not_applied", r->not_applied, "gradients", json_gradients(rows + 1, count - 1));
}

static tn_status print_json(const workspace *w, tn_verify_row *const *rows, size_t count, bool passed, tn_error *err)
{
    json_t *list = json_array();
    bool whole = list;
    for (size_t i = 0; i < count; i++)
        if (rows[i]->kind == TN_VERIFY_RESULTS)
            whole = json_array_append_new(list, json_row(rows + i, count - i)) == 0 && whole;
    if (!whole) {
        json_decref(list);
        return json_print(NULL, false, err);
    }
    return json_print(json_pack("{s:s, s:s, s:s, s:b, s:o, s:o}", "model", w->info.folder, "dtype",
                                tn_dtype_name(w->info.dtype), "device", w->info.device, "passed", (int)passed,
                                "kernels", json_kernels(w), "results", list),
                      false, err);
}

/* ---- the command -------------------------------------------------------------------------------- */

static tn_status verify_sites(workspace *w, tn_error *err)
{
    tn_verify_row **rows = NULL;
    size_t count = 0;
    tn_error failure = TN_ERROR_INIT;
    tn_status status = TN_OK;
    tn_status verdict = tn_verify_kernels(w->model, w->config, NULL, &w->report, &rows, &count, &failure);
    if (verdict == TN_OK && count == 0)
        verdict = tn_fail(&failure, TN_E_KERNEL, "verify",
                          "no kernel took a site of this model; see tenon inspect --explain");
    else if (verdict == TN_OK || verdict == TN_E_VERIFY)
        status = option_given(w->options, OPT_JSON) ? print_json(w, rows, count, verdict == TN_OK, err)
                                                    : print_table(rows, count, err);
    if (status == TN_OK && verdict != TN_OK)
        status = tn_fail(err, verdict, failure.where, "%s", failure.message);
    free(rows);
    return status;
}

static tn_status run_verify(const options *o, tn_error *err)
{
    workspace w = {0};
    tn_status status = workspace_model(&w, o, o->argument[0], err);
    bool calls = option_given(o, OPT_BATCH);
    if (status == TN_OK && !calls && strcmp(tn_config_kernels(w.config), "none") == 0)
        status = tn_fail(err, TN_E_USAGE, "verify", "there is nothing to verify with --kernels=none; choose kernels");
    if (status == TN_OK)
        status = calls                       ? verify_calls(&w, err)
                 : option_given(o, OPT_TEXT) ? verify_text(&w, err)
                                             : verify_sites(&w, err);
    workspace_close(&w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    ADAPTER_OPTION,
    LOCK_OPTION,
    {OPT_TRAINING, "training", NULL, 0, OPTION_FLAG, 0, 0, "the gradients, too; only kernels that have them"},
    {OPT_TEXT, "text", "FILE", 0, OPTION_TEXT, 0, 0, "the whole model on this text instead; - for standard input"},
    {OPT_BATCH, "batch", NULL, 0, OPTION_FLAG, 0, 0,
     "the same bits for a token in any call: alone, in a prompt, beside others"},
    {OPT_MAX_TOKENS, "max-tokens", "N", 0, OPTION_INTEGER, 2, 1e9, "tokens of the text that are used; default 576"},
    {OPT_CONTEXT, "context", "N", 'c', OPTION_INTEGER, 2, 1e9, "tokens that are computed together; default 576"},
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "an object instead of a table"},
};

const command command_verify = {
    .name = "verify",
    .arguments = "MODEL [--kernels SPEC] [--training] [--text FILE] [--batch] [--json]",
    .summary = "Runs every kernel on the model's own weights and compares it with the plain implementation.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = 1,
    .missing = "no model given",
    .notes = "Every kernel that matches a site is tried there, whether it would have the site or not. Errors and "
             "tolerances\n"
             "are in units of the last place at the largest value of a row. The speed-up is that of all sites "
             "together, with\n"
             "the number of tokens shown. --text computes FILE with the kernels and without, and tells whether the "
             "difference\n"
             "is rounding; if not, which sites bring it. --batch computes tokens (of FILE, or made up) in calls of "
             "several\n"
             "sizes, beside others and behind padding, and compares the bits of every layer. The exit status is 5 when "
             "a\n"
             "kernel fails.",
    .example = "  tenon verify models/demo\n  tenon verify models/demo --kernels=npu_fused_moe --dtype f32\n"
               "  tenon verify models/demo --text models/demo/heldout.txt",
    .run = run_verify,
};
