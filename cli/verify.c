/* tenon verify: every site of every applied kernel against the plain implementation, on the model's own weights. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static double speed_up(const tn_verify_row *row)
{
    return row->kernel_seconds > 0 ? row->eager_seconds / row->kernel_seconds : 0;
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
        table_cell(&t, "%s", r->kernel);
        table_cell(&t, "%s", tn_op_name(r->op));
        table_cell(&t, "%lld", (long long)r->sites);
        table_cell(&t, "%.3g ulp", r->largest_ulps);
        table_cell(&t, "%.3g ulp", r->tolerance_ulps);
        table_cell(&t, "%.0f %%", r->largest_error * 100);
        table_cell(&t, "%lld", (long long)r->tokens);
        table_cell(&t, "%.2fx", speed_up(r));
        table_cell(&t, "%s", r->passed ? "passed" : "FAILED");
    }
    tn_status status = table_print(&t, err);
    for (size_t i = 0; i < count && status == TN_OK; i++)
        if (!rows[i]->passed)
            printf("\n%s at %s: %s\n", rows[i]->kernel, rows[i]->worst_site, rows[i]->reason);
    return status;
}

static tn_status print_json(const workspace *w, tn_verify_row *const *rows, size_t count, bool passed, tn_error *err)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        const tn_verify_row *r = rows[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:I, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:I, s:b, s:s}", "kernel", r->kernel, "op",
                      tn_op_name(r->op), "sites", (json_int_t)r->sites, "largest_error", json_number(r->largest_error),
                      "largest_ulps", json_number(r->largest_ulps), "tolerance_ulps", json_number(r->tolerance_ulps),
                      "worst_site", r->worst_site, "eager_seconds", json_number(r->eager_seconds), "kernel_seconds",
                      json_number(r->kernel_seconds), "speedup", json_number(speed_up(r)), "tokens",
                      (json_int_t)r->tokens, "passed", (int)r->passed, "reason", r->reason));
    }
    if (json_array_size(list) != count) {
        json_decref(list);
        return json_print(NULL, false, err);
    }
    return json_print(json_pack("{s:s, s:s, s:s, s:b, s:o, s:o}", "model", w->info.folder, "dtype",
                                tn_dtype_name(w->info.dtype), "device", w->info.device, "passed", (int)passed,
                                "kernels", json_kernels(w), "results", list),
                      false, err);
}

static tn_status run_verify(const options *o, tn_error *err)
{
    workspace w = {0};
    tn_verify_row **rows = NULL;
    size_t count = 0;
    tn_error failure = TN_ERROR_INIT;
    tn_status status = workspace_model(&w, o, o->argument[0], err);
    if (status == TN_OK && strcmp(tn_config_kernels(w.config), "none") == 0)
        status = tn_fail(err, TN_E_USAGE, "verify", "there is nothing to verify with --kernels=none; choose kernels");
    if (status == TN_OK)
        status = workspace_apply(&w, err);
    if (status == TN_OK) {
        tn_status verdict = tn_verify(w.model, &rows, &count, &failure);
        if (verdict == TN_OK || verdict == TN_E_VERIFY) {
            if (count)
                status = option_given(o, OPT_JSON) ? print_json(&w, rows, count, verdict == TN_OK, err)
                                                   : print_table(rows, count, err);
            else
                status = tn_fail(err, TN_E_KERNEL, "verify",
                                 "no kernel took a site of this model; see tenon inspect --explain");
        }
        if (status == TN_OK && verdict)
            status = tn_fail(err, verdict, failure.where, "%s", failure.message);
    }
    free(rows);
    workspace_close(&w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    {OPT_TRAINING, "training", NULL, 0, OPTION_FLAG, 0, 0, "the gradients, too; only kernels that have them"},
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "an object instead of a table"},
};

const command command_verify = {
    .name = "verify",
    .arguments = "MODEL [--kernels SPEC] [--training] [--json]",
    .summary = "Runs every kernel on the model's own weights and compares it with the plain implementation.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = 1,
    .missing = "no model given",
    .notes =
        "Errors and tolerances are in units of the last place at the largest value of a row. The speed-up is that\n"
        "of all sites together, with the number of tokens shown. The exit status is 5 when a kernel fails.",
    .example = "  tenon verify models/demo\n  tenon verify models/demo --kernels=npu_fused_moe --dtype f32",
    .run = run_verify,
};
