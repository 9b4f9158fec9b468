/* tenon verify --text: the whole model with the kernels and without, on real text. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* Sites that are named one by one; JSON has them all. */
#define MOST_NAMED 12

static tn_status print_rows(const tn_text_report *r, tn_error *err)
{
    static const char *const heads[] = {"TYPE",     "SITES",      "RMS",     "LARGEST",  "KL MEAN", "KL MAX",
                                        "SAME TOP", "PERPLEXITY", "WITHOUT", "ROUNDING", "RESULT"};
    table t;
    table_start(&t, 11, 0x3FE);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        table_cell(&t, "%s", heads[i]);
    for (size_t i = 0; i < r->row_count; i++) {
        const tn_text_row *row = r->rows[i];
        table_cell(&t, "%s", tn_dtype_name(row->dtype));
        table_cell(&t, "%lld", (long long)row->sites);
        table_cell(&t, "%.3g", row->rms);
        table_cell(&t, "%.3g", row->largest);
        table_cell(&t, "%.2g", row->kl_mean);
        table_cell(&t, "%.2g", row->kl_max);
        table_cell(&t, "%.1f %%", row->top1 * 100);
        table_cell(&t, "%.5g", row->perplexity_kernels);
        table_cell(&t, "%.5g", row->perplexity_eager);
        table_cell(&t, row->worst < 10 ? "%.2fx" : "%.3gx", row->worst);
        table_cell(&t, "%s", row->passed ? "passed" : "FAILED");
    }
    return table_print(&t, err);
}

static void print_sites(const tn_text_report *r)
{
    for (size_t i = 0; i < r->row_count; i++)
        if (!r->rows[i]->passed)
            printf("\n%s\n", r->rows[i]->reason);
    if (r->site_count > 0)
        printf("\nIt comes from %zu site%s%s:\n", r->site_count, r->site_count == 1 ? "" : "s",
               r->complete ? "; without the kernel there all others pass" : ", and others: the search was ended");
    for (size_t i = 0; i < r->site_count && i < MOST_NAMED; i++)
        printf("  %s at %s\n", r->sites[i]->kernel, r->sites[i]->site->path);
    if (r->site_count > MOST_NAMED)
        printf("  and %zu more; --json names all\n", r->site_count - MOST_NAMED);
}

static void print_calls(const tn_text_report *r)
{
    printf("Prompts in a session's chunks; %lld single token%s", (long long)r->single_tokens,
           r->single_tokens == 1 ? "" : "s");
    if (r->few_tokens > 0)
        printf("; %lld tokens in calls of up to %lld", (long long)r->few_tokens, (long long)r->most_few);
    if (r->batch_rows > 0)
        printf("; a batch of %lld\n\n", (long long)r->batch_rows);
    else
        printf("; the text is too short for a batch\n\n");
}

static tn_status print_report(const tn_text_report *r, tn_error *err)
{
    printf("%lld tokens in windows of %lld; differences of logits between with and without kernels\n",
           (long long)r->tokens, (long long)r->window);
    print_calls(r);
    tn_status status = print_rows(r, err);
    if (status == TN_OK) {
        printf(
            "\nWithout kernels, logits in 16 bits are %.3g (rms) from those in f32; with kernels %.3g. ROUNDING: the "
            "difference in\nunits of what rounding explains, at most 1.\n",
            r->rows[0]->distance_eager, r->rows[0]->distance_kernels);
        print_sites(r);
    }
    return status;
}

static json_t *json_rows(const tn_text_report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->row_count; i++) {
        const tn_text_row *row = r->rows[i];
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:s}", "dtype",
                            tn_dtype_name(row->dtype), "sites", (json_int_t)row->sites, "rms", json_number(row->rms),
                            "largest", json_number(row->largest), "kl_mean", json_number(row->kl_mean), "kl_max",
                            json_number(row->kl_max), "top1", json_number(row->top1), "perplexity_kernels",
                            json_number(row->perplexity_kernels), "perplexity_eager",
                            json_number(row->perplexity_eager), "distance_eager", json_number(row->distance_eager),
                            "distance_kernels", json_number(row->distance_kernels), "worst", json_number(row->worst),
                            "passed", (int)row->passed, "reason", row->reason));
    }
    return list;
}

static tn_status print_json(const workspace *w, const tn_text_report *r, tn_error *err)
{
    json_t *sites = json_array(), *rows = json_rows(r);
    for (size_t i = 0; i < r->site_count; i++)
        json_array_append_new(sites, json_pack("{s:s, s:s, s:s}", "kernel", r->sites[i]->kernel, "op",
                                               tn_op_name(r->sites[i]->site->op), "site", r->sites[i]->site->path));
    if (json_array_size(sites) != r->site_count || json_array_size(rows) != r->row_count) {
        json_decref(sites);
        json_decref(rows);
        return json_print(NULL, false, err);
    }
    json_t *calls = json_pack("{s:I, s:I, s:I, s:I}", "single_tokens", (json_int_t)r->single_tokens, "few_tokens",
                              (json_int_t)r->few_tokens, "most_few", (json_int_t)r->most_few, "batch_rows",
                              (json_int_t)r->batch_rows);
    return json_print(json_pack("{s:s, s:s, s:s, s:b, s:o, s:I, s:I, s:o, s:o, s:o, s:b}", "model", w->info.folder,
                                "dtype", tn_dtype_name(w->info.dtype), "device", w->info.device, "passed",
                                (int)r->passed, "kernels", json_kernels(w), "tokens", (json_int_t)r->tokens, "context",
                                (json_int_t)r->window, "calls", calls, "results", rows, "sites", sites,
                                "search_complete", (int)r->complete),
                      false, err);
}

static int on_progress(void *ctx, const char *what, int64_t done, int64_t total)
{
    progress_update(ctx, what, done, total);
    return 0;
}

/* Kernels are applied as the configuration says: one that a check refuses takes no part, and none is refused where the
 * configuration says "verify": "never". */
tn_status verify_text(workspace *w, tn_error *err)
{
    const options *o = w->options;
    int64_t *ids = NULL;
    size_t count = 0;
    tn_text_report *report = NULL;
    tn_error failure = TN_ERROR_INIT;
    tn_text_options options = {.size = sizeof options,
                               .max_tokens = option_integer(o, OPT_MAX_TOKENS, 0),
                               .window = option_integer(o, OPT_CONTEXT, 0),
                               .progress = on_progress,
                               .progress_ctx = &w->progress};
    if (option_given(o, OPT_TRAINING))
        return tn_fail(err, TN_E_USAGE, "verify", "--training and --text do not go together; leave out one of them");
    tn_status status = read_ids(o->argument[0], o->text[OPT_TEXT], &ids, &count, err);
    if (status == TN_OK && count < 2)
        status = tn_fail(err, TN_E_INPUT, o->text[OPT_TEXT], "the text has %zu tokens; give at least two", count);
    if (status == TN_OK)
        status = workspace_apply(w, err);
    if (status == TN_OK && strncmp(w->report->summary, "no kernels", strlen("no kernels")) == 0)
        status =
            tn_fail(err, TN_E_KERNEL, "verify", "no kernel took a site of this model; see tenon inspect --explain");
    if (option_given(o, OPT_CONTEXT))
        workspace_check_context(w, options.window);
    progress_start(&w->progress, o);
    tn_status verdict =
        status == TN_OK ? tn_compare_text(w->model, ids, (int64_t)count, &options, &report, &failure) : TN_OK;
    progress_clear(&w->progress);
    if (report)
        status = option_given(o, OPT_JSON) ? print_json(w, report, err) : print_report(report, err);
    if (status == TN_OK && verdict != TN_OK)
        status = tn_fail(err, verdict, failure.where, "%s", failure.message);
    tn_text_report_free(report);
    free(ids);
    return status;
}
