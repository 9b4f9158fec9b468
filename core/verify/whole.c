/* The whole model with its kernels and without, on text: is the difference rounding? Behind tn_compare_text. */
#include "verify/whole.h"

#include "base/structs.h"
#include "base/text.h"
#include "bind/apply.h"
#include "bind/shadow.h"
#include "check/compare.h"
#include "plugin/registry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A whole chunk of a session as a prompt, and single tokens behind it. */
enum { USUAL_TOKENS = 576, MOST_ROWS = 2 };

/* What the caller sees comes first. */
typedef struct whole_report {
    tn_text_report seen;
    tn_text_row **rows;
    tn_text_site **sites;
} whole_report;

void tn_text_report_free(tn_text_report *seen)
{
    whole_report *r = (whole_report *)seen;
    if (!r)
        return;
    free(r->rows);
    free(r->sites);
    free(r);
}

/* One comparison at work. */
typedef struct whole_work {
    tn_model *model, *twin, *full, *narrow; /* twin is full or narrow, and model the other one            */
    whole_text text;
    whole_progress progress;
    bool no_search;
    float *truth, *rounded, *with; /* logits: eager in f32, eager in 16 bits, with kernels                */
    double *yard, *each, *scrap;
    double yard_rms;
    whole_rule rules[MOST_ROWS];
    tn_model *row_model[MOST_ROWS];
    int64_t tokens[MOST_ROWS]; /* the worst one of each row                                            */
    whole_report *report;
    tn_error *err;
} whole_work;

static size_t applied_sites(const tn_model *model)
{
    size_t count = 0;
    for (size_t i = 0; i < model->target.graph->site_count; i++)
        count += model->target.graph->sites[i]->bound.impl != NULL;
    return count;
}

/* The largest tolerance in f32 that one of the kernels grants itself. */
static double largest_ulps(const tn_model *model)
{
    double ulps = 0;
    for (size_t i = 0; i < model->target.graph->site_count; i++) {
        const tn_impl *impl = model->target.graph->sites[i]->bound.impl;
        ulps = impl ? fmax(ulps, compare_ulps(&impl->tolerance, TN_F32)) : ulps;
    }
    return ulps;
}

/* ---- preparing ------------------------------------------------------------------------------------------------- */

static tn_status take_options(whole_work *w, const tn_text_options *given, int64_t count)
{
    tn_text_options o = {0};
    tn_status status = given ? structs_take(&o, sizeof o, given, "tn_text_options", w->err) : TN_OK;
    if (status != TN_OK)
        return status;
    int64_t most = w->model->info.max_positions;
    int64_t window = o.window ? o.window : most > 0 && most < USUAL_TOKENS ? most : USUAL_TOKENS;
    int64_t tokens = o.max_tokens ? o.max_tokens : USUAL_TOKENS;
    if (window < 1 || tokens < 1)
        return tn_fail(w->err, TN_E_USAGE, "tn_text_options", "%lld tokens in windows of %lld cannot be; use more",
                       (long long)tokens, (long long)window);
    w->no_search = o.no_search;
    w->progress = (whole_progress){o.progress, o.progress_ctx};
    w->text.count = count < tokens ? count : tokens;
    w->text.window = window < w->text.count ? window : w->text.count;
    return TN_OK;
}

static tn_status check_input(const whole_work *w)
{
    if (w->text.count < 1)
        return tn_fail(w->err, TN_E_INPUT, "text", "there are no tokens; give some text");
    for (int64_t i = 0; i < w->text.count; i++)
        if (w->text.ids[i] < 0 || w->text.ids[i] >= w->model->info.vocab)
            return tn_fail(w->err, TN_E_INPUT, "text", "token id %lld is outside the vocabulary of %lld",
                           (long long)w->text.ids[i], (long long)w->model->info.vocab);
    if (applied_sites(w->model) == 0)
        return tn_fail(w->err, TN_E_USAGE, "verify", "no kernel is applied to the model; apply some first");
    return TN_OK;
}

/* The same checkpoint in f32, or for a model in f32 in bf16. */
static tn_status open_twin(whole_work *w)
{
    char unit[REGISTRY_NAME + 16];
    bool wide = w->model->dtype == TN_F32;
    snprintf(unit, sizeof unit, "%s:%d", w->model->info.device, (int)w->model->info.device_ordinal);
    tn_model_options o = {.size = sizeof o,
                          .dtype = wide ? "bf16" : "f32",
                          .device = unit,
                          .threads = tn_thread_count(),
                          .lock = w->model->lock ? w->model->lock->path : NULL};
    tn_status status = whole_tell(&w->progress, "opening the model again", 0, 1, w->err);
    if (status != TN_OK)
        return status;
    w->twin = tn_model_open(w->model->folder, &o, w->err);
    w->full = wide ? w->model : w->twin;
    w->narrow = wide ? w->twin : w->model;
    return w->twin ? TN_OK : w->err && w->err->code != TN_OK ? w->err->code : TN_E_INPUT;
}

static tn_status allocate(whole_work *w)
{
    int64_t vocab = w->model->info.vocab;
    size_t count = (size_t)whole_run_count(&w->text);
    whole_calls calls = whole_run_calls(&w->text);
    w->truth = whole_run_alloc(&w->text, vocab, w->err);
    w->rounded = w->truth ? whole_run_alloc(&w->text, vocab, w->err) : NULL;
    w->with = w->rounded ? whole_run_alloc(&w->text, vocab, w->err) : NULL;
    w->yard = malloc(count * sizeof *w->yard);
    w->each = malloc(count * sizeof *w->each);
    w->scrap = malloc(count * sizeof *w->scrap);
    w->report = calloc(1, sizeof *w->report);
    if (w->report) {
        w->report->rows = structs_list(MOST_ROWS, sizeof **w->report->rows);
        w->report->sites = structs_list(w->model->target.graph->site_count, sizeof **w->report->sites);
    }
    if (!w->with || !w->yard || !w->each || !w->scrap || !w->report || !w->report->rows || !w->report->sites)
        return whole_no_memory(w->err);
    w->report->seen = (tn_text_report){.size = sizeof w->report->seen,
                                       .passed = true,
                                       .complete = true,
                                       .tokens = w->text.count,
                                       .window = w->text.window,
                                       .single_tokens = calls.steps,
                                       .few_tokens = calls.few,
                                       .most_few = calls.most_few,
                                       .batch_rows = calls.rows,
                                       .rows = (const tn_text_row *const *)w->report->rows,
                                       .sites = (const tn_text_site *const *)w->report->sites};
    return TN_OK;
}

/* Eager in both types. */
static tn_status measure_yardstick(whole_work *w)
{
    tn_status status = whole_tell(&w->progress, "without kernels", 0, 4, w->err);
    if (status == TN_OK)
        status = whole_run(w->full, &w->text, true, w->truth, w->err);
    if (status == TN_OK)
        status = whole_tell(&w->progress, "without kernels", 1, 4, w->err);
    if (status == TN_OK)
        status = whole_run(w->narrow, &w->text, true, w->rounded, w->err);
    whole_distance yard = {0};
    if (status == TN_OK)
        status = whole_distance_of(w->truth, w->rounded, whole_run_count(&w->text), w->model->info.vocab, w->yard,
                                   &yard, w->err);
    w->yard_rms = yard.rms;
    return status;
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

/* A model with kernels against itself without, and against the truth. */
static tn_status add_row(whole_work *w, tn_model *model)
{
    int64_t count = whole_run_count(&w->text), vocab = model->info.vocab;
    size_t at = w->report->seen.row_count;
    const float *eager = model == w->full ? w->truth : w->rounded;
    tn_status status = whole_tell(&w->progress, "with kernels", 2 + (int64_t)at, 4, w->err);
    shadow_unbind(&model->target); /* what is wrong must show, and not be put right                        */
    if (status == TN_OK)
        status = whole_run(model, &w->text, false, w->with, w->err);
    shadow_bind(&model->target);
    if (status == TN_OK)
        status =
            whole_rule_init(&w->rules[at], model, &w->text, w->yard, w->narrow->dtype, largest_ulps(model), w->err);
    whole_distance between, apart;
    double perplexity[2];
    if (status == TN_OK)
        status = whole_distance_of(eager, w->with, count, vocab, w->scrap, &between, w->err);
    if (status == TN_OK)
        status = whole_distance_of(w->truth, w->with, count, vocab, w->each, &apart, w->err);
    if (status == TN_OK)
        status = whole_distance_perplexity(eager, &w->text, vocab, &perplexity[0], w->err);
    if (status == TN_OK)
        status = whole_distance_perplexity(w->with, &w->text, vocab, &perplexity[1], w->err);
    if (status != TN_OK)
        return status;
    tn_text_row *row = w->report->rows[at];
    *row = (tn_text_row){.size = sizeof *row,
                         .dtype = model->dtype,
                         .sites = (int64_t)applied_sites(model),
                         .rms = between.rms,
                         .largest = between.largest,
                         .kl_mean = between.kl_mean,
                         .kl_max = between.kl_max,
                         .top1 = between.top1,
                         .perplexity_eager = perplexity[0],
                         .perplexity_kernels = perplexity[1],
                         .distance_eager = w->yard_rms,
                         .distance_kernels = apart.rms,
                         .worst = whole_rule_worst(&w->rules[at], w->yard, w->each, count, &w->tokens[at])};
    if (isnan(row->worst))
        return whole_no_memory(w->err);
    row->passed = row->worst <= 1;
    if (!row->passed)
        text_cut(row->reason, sizeof row->reason,
                 "the logits in %s are %.3g times as far from those without kernels as rounding explains, first of all "
                 "at token %lld, %s",
                 tn_dtype_name(model->dtype), row->worst, (long long)whole_run_position(&w->text, w->tokens[at]),
                 whole_run_manner(&w->text, w->tokens[at]));
    w->row_model[at] = model;
    w->report->seen.row_count++;
    w->report->seen.passed = w->report->seen.passed && row->passed;
    return TN_OK;
}

static tn_status add_rows(whole_work *w)
{
    size_t sites = 0;
    tn_status status = add_row(w, w->model);
    if (status == TN_OK && w->model != w->full)
        status = apply_like(&w->full->target, &w->model->target, &sites, w->err);
    return status == TN_OK && sites > 0 ? add_row(w, w->full) : status;
}

/* ---- searching ------------------------------------------------------------------------------------------------- */

/* In the type that shows it best: that of the last row that failed. */
static tn_status find_sites(whole_work *w)
{
    const graph *g = w->model->target.graph;
    whole_report *r = w->report;
    size_t at = r->seen.row_count - 1;
    at -= r->rows[at]->passed;
    whole_search s = {.model = w->row_model[at],
                      .truth = w->full,
                      .rule = &w->rules[at],
                      .yard = w->yard,
                      .text = w->text,
                      .token = whole_run_position(&w->text, w->tokens[at]),
                      .progress = w->progress,
                      .found = calloc(g->site_count + 1, sizeof *s.found)};
    if (!s.found)
        return whole_no_memory(w->err);
    tn_status status = whole_search_run(&s, w->err);
    r->seen.complete = s.complete;
    for (size_t i = 0; i < g->site_count && status == TN_OK; i++)
        if (s.found[i])
            *r->sites[r->seen.site_count++] = (tn_text_site){
                .size = sizeof **r->sites, .kernel = g->sites[i]->bound.kernel->kernel.id, .site = &g->sites[i]->site};
    free(s.found);
    return status;
}

static tn_status failed(const whole_work *w)
{
    const tn_text_report *r = &w->report->seen;
    const tn_text_row *row = r->rows[r->row_count - 1]->passed ? r->rows[0] : r->rows[r->row_count - 1];
    char where[128] = "";
    if (r->site_count > 0)
        text_cut(where, sizeof where, "; it comes from %s at %s", r->sites[0]->kernel, r->sites[0]->site->path);
    if (r->site_count > 1)
        text_cut(where + strlen(where), sizeof where - strlen(where), " and %zu more sites", r->site_count - 1);
    return tn_fail(w->err, TN_E_VERIFY, "verify", "%s%s", row->reason, where);
}

static void close_work(whole_work *w)
{
    tn_model_close(w->twin);
    free(w->truth);
    free(w->rounded);
    free(w->with);
    free(w->yard);
    free(w->each);
    free(w->scrap);
}

tn_status tn_compare_text(tn_model *model, const int64_t *ids, int64_t count, const tn_text_options *options,
                          tn_text_report **report, tn_error *err)
{
    if (!model || !ids || !report)
        return structs_missing(!model ? "model" : !ids ? "ids" : "report", err);
    tn_error own = TN_ERROR_INIT;
    whole_work w = {.model = model, .text = {.ids = ids}, .err = err ? err : &own};
    *report = NULL;
    tn_status status = take_options(&w, options, count);
    if (status == TN_OK)
        status = check_input(&w);
    if (status == TN_OK)
        status = open_twin(&w);
    if (status == TN_OK)
        status = allocate(&w);
    if (status == TN_OK)
        status = measure_yardstick(&w);
    if (status == TN_OK)
        status = add_rows(&w);
    if (status == TN_OK && !w.report->seen.passed && !w.no_search)
        status = find_sites(&w);
    if (status == TN_OK) {
        *report = &w.report->seen;
        status = (*report)->passed ? TN_OK : failed(&w);
    } else if (w.report)
        tn_text_report_free(&w.report->seen);
    close_work(&w);
    return status;
}
