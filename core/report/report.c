/* Reports: who has which site, what every kernel said, and one line about it all. */
#include "report/report.h"

#include "base/structs.h"
#include "base/text.h"
#include "select/first_calls.h"
#include "select/measure.h"
#include "select/overlap.h"
#include "select/plan.h"
#include "select/why.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the caller sees comes first. */
typedef struct report {
    tn_report seen;
    tn_site_report **sites;
    tn_verdict **verdicts; /* [site][candidate]; reasons are owned                               */
    size_t verdict_count;
    tn_kernel_report **kernels;
    tn_overlap **overlaps;
    text_list texts; /* what notes, kernels and overlaps say                                      */
} report;

void tn_report_free(tn_report *seen)
{
    report *r = (report *)seen;
    if (!r)
        return;
    for (size_t i = 0; i < r->verdict_count; i++) {
        free((char *)r->verdicts[i]->reason);
        free((char *)r->verdicts[i]->measured);
    }
    free(r->verdicts);
    free(r->sites);
    free(r->kernels);
    free(r->overlaps);
    free((void *)(uintptr_t)r->seen.notes);
    text_list_clear(&r->texts);
    free(r);
}

static report *report_new(const apply_target *target, size_t verdicts, tn_error *err)
{
    size_t sites = target->graph->site_count;
    report *r = calloc(1, sizeof *r);
    if (r) {
        r->sites = structs_list(sites, sizeof **r->sites);
        r->verdicts = structs_list(verdicts, sizeof **r->verdicts);
    }
    if (!r || !r->sites || !r->verdicts) {
        tn_report_free((tn_report *)r);
        plan_no_memory(err);
        return NULL;
    }
    r->seen.size = sizeof r->seen;
    r->seen.site_count = sites;
    r->seen.sites = (const tn_site_report *const *)r->sites;
    r->seen.first_calls = first_calls_count(target);
    r->seen.first_calls_now = target->first_now;
    return r;
}

/* ---- the summary ------------------------------------------------------------------------------------------ */

typedef struct line {
    char *text;
    size_t used, size;
} line;

__attribute__((format(printf, 2, 3))) static void append(line *l, const char *format, ...)
{
    if (l->used + 1 >= l->size)
        return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->text + l->used, l->size - l->used, format, args);
    va_end(args);
    l->used = n < 0 ? l->used : l->used + (size_t)n < l->size ? l->used + (size_t)n : l->size - 1;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

/* Sites of one operation: those of a kernel (NULL: eager), and all that nobody covers. */
static size_t count_sites(const report *r, const char *kernel, tn_op op, size_t *all)
{
    size_t has = 0;
    *all = 0;
    for (size_t i = 0; i < r->seen.site_count; i++) {
        if (r->sites[i]->site->op != op || r->sites[i]->covered_by)
            continue;
        *all += 1;
        has += same_text(r->sites[i]->kernel, kernel);
    }
    return has;
}

static size_t append_kernel(line *l, const report *r, const char *kernel, size_t items)
{
    for (int op = 1; op < TN_OP_FIRST_STEP; op++) {
        size_t all, has = count_sites(r, kernel, (tn_op)op, &all);
        if (has == 0)
            continue;
        append(l, "%s", items++ ? ", " : "");
        if (kernel)
            append(l, "%s %zu/%zu %s", kernel, has, all, tn_op_name((tn_op)op));
        else
            append(l, "%zu %s", has, tn_op_name((tn_op)op));
    }
    return items;
}

/* Whether an earlier site has the same kernel. */
static bool seen_before(const report *r, size_t site)
{
    for (size_t i = 0; i < site; i++)
        if (same_text(r->sites[i]->kernel, r->sites[site]->kernel))
            return true;
    return false;
}

/* Why an implementation was refused at the first shape or site where it was, or NULL. */
static const char *refused_reason(const plan *p, size_t candidate, uint32_t impl)
{
    for (size_t shape = 0; shape < p->shape_count; shape++) {
        const plan_fit *fit = plan_fit_at(p, candidate, shape, impl);
        for (size_t i = 0; !fit->refused && i < p->bar_count; i++)
            if (p->bars[i].fit == fit)
                return p->bars[i].reason;
        if (fit->refused)
            return fit->reason;
    }
    return NULL;
}

static void append_refused(line *l, const plan *p)
{
    size_t items = 0;
    for (size_t i = 0; p && i < p->candidate_count; i++)
        for (uint32_t j = 0; j < p->candidates[i].kernel->kernel.impl_count; j++) {
            const tn_kernel *kernel = &p->candidates[i].kernel->kernel;
            const char *reason = refused_reason(p, i, j);
            if (reason)
                append(l, "%s%s at %s (%s)", items++ ? ", " : "; refused: ", kernel->id,
                       tn_op_name(kernel->impls[j].op), reason);
        }
}

/* Kernels between which nothing but a name decides, and those that have no site for the others'. */
static void append_overlaps(line *l, const report *r, const plan_overlap *overlaps, size_t count)
{
    size_t ties = 0, losers = 0;
    for (size_t i = 0; i < count; i++)
        if (overlaps[i].tie)
            append(l, "%s%s before %s (%zu sites, by %s)", ties++ ? ", " : "; tie: ", overlaps[i].winner->kernel.id,
                   r->seen.overlaps[i]->kernel, overlaps[i].sites,
                   strstr(overlaps[i].reason, "by id") ? "id" : "file name");
    for (size_t i = 0; i < count; i++) {
        const char *id = r->seen.overlaps[i]->kernel;
        bool first = i == 0 || overlaps[i].loser != overlaps[i - 1].loser;
        for (size_t j = 0; first && !overlaps[i].tie && j < r->seen.kernel_count; j++)
            if (r->seen.kernels[j]->sites == 0 && !strcmp(r->seen.kernels[j]->kernel, id))
                append(l, "%s%s (%s has its sites)", losers++ ? ", " : "; without a site: ", id,
                       overlaps[i].winner->kernel.id);
    }
}

/* Kernels that auto leaves out because of what it measured, and how a summary says so. */
static void append_unused(line *l, const report *r, const char *reason, const char *words)
{
    size_t items = 0;
    for (size_t i = 0; i < r->seen.kernel_count; i++) {
        const tn_kernel_report *k = r->seen.kernels[i];
        if (k->sites == 0 && strncmp(k->reason, reason, strlen(reason)) == 0)
            append(l, "%s%s", items++ ? ", " : words, k->kernel);
    }
}

static void summarise(report *r, const plan *p, const plan_overlap *overlaps, size_t overlap_count)
{
    line l = {r->seen.summary, 0, sizeof r->seen.summary};
    size_t items = 0;
    for (size_t i = 0; i < r->seen.site_count; i++)
        if (r->sites[i]->kernel && !seen_before(r, i))
            items = append_kernel(&l, r, r->sites[i]->kernel, items);
    if (items == 0)
        append(&l, "no kernels");
    append_overlaps(&l, r, overlaps, overlap_count);
    append_unused(&l, r, "measured: slower", "; slower here: ");
    append_unused(&l, r, "measured: no clear gain", "; no clear gain here: ");
    append_refused(&l, p);
    line eager = l;
    append(&l, "; eager: ");
    if (append_kernel(&l, r, NULL, 0) == 0) {
        eager.text[eager.used] = '\0';
        append(&eager, "; nothing is left to eager");
    }
}

/* ---- making ------------------------------------------------------------------------------------------------- */

/* What was measured of a candidate that takes the site, or would but for that. */
static void measured_text(const plan *p, size_t candidate, size_t site, char *text)
{
    const plan_candidate *c = &p->candidates[candidate];
    text[0] = '\0';
    for (uint32_t i = 0; i < c->kernel->kernel.impl_count && !text[0]; i++)
        plan_times_text(plan_fit_at(p, candidate, p->shape_of[site], i), text);
}

static bool is_refused(const plan *p, size_t candidate, size_t site)
{
    size_t shape = p->shape_of[site];
    const tn_kernel *kernel = &p->candidates[candidate].kernel->kernel;
    for (uint32_t i = 0; i < kernel->impl_count; i++)
        if (kernel->impls[i].op == p->shapes[shape]->site.op && plan_fit_at(p, candidate, shape, i)->refused)
            return !plan_taking_fit(p, candidate, site);
    return false;
}

static bool add_verdict(report *r, const plan *p, size_t candidate, size_t site)
{
    char text[PLAN_TEXT], measured[PLAN_TEXT];
    plan_verdict(p, candidate, site, text);
    measured_text(p, candidate, site, measured);
    tn_verdict *v = r->verdicts[r->verdict_count++];
    *v = (tn_verdict){.size = sizeof *v,
                      .kernel = p->candidates[candidate].kernel->kernel.id,
                      .taken = p->choices[site].candidate == (int32_t)candidate,
                      .reason = strdup(text),
                      .measured = strdup(measured),
                      .refused = is_refused(p, candidate, site)};
    return v->reason && v->measured;
}

/* A text of the report's own; NULL: no memory. */
static const char *keep(report *r, const char *text)
{
    return text_list_add(&r->texts, text) ? r->texts.items[r->texts.count - 1] : NULL;
}

static bool add_notes(report *r, const plan *p)
{
    const char **notes = calloc(p->notes.count + 1, sizeof *notes);
    r->seen.notes = notes;
    for (size_t i = 0; notes && i < p->notes.count; i++) {
        if (!(notes[i] = keep(r, p->notes.items[i])))
            return false;
        r->seen.note_count++;
    }
    return notes;
}

static bool add_kernels(report *r, const plan *p)
{
    char reason[PLAN_TEXT];
    r->kernels = structs_list(p->candidate_count, sizeof **r->kernels);
    r->seen.kernels = (const tn_kernel_report *const *)r->kernels;
    for (size_t i = 0; r->kernels && i < p->candidate_count; i++) {
        if (p->candidates[i].silent)
            continue;
        tn_kernel_report *k = r->kernels[r->seen.kernel_count];
        k->kernel = p->candidates[i].kernel->kernel.id;
        k->sites = (int64_t)plan_site_count(p, i);
        reason[0] = '\0';
        if (k->sites == 0)
            plan_reason(p, i, reason);
        if (!(k->reason = keep(r, reason)))
            return false;
        r->seen.kernel_count++;
    }
    return r->kernels;
}

static bool add_overlaps(report *r, const plan *p, const plan_overlap *overlaps, size_t count)
{
    r->overlaps = structs_list(count, sizeof **r->overlaps);
    r->seen.overlaps = (const tn_overlap *const *)r->overlaps;
    for (size_t i = 0; r->overlaps && i < count; i++) {
        tn_overlap *o = r->overlaps[i];
        o->kernel = p->candidates[overlaps[i].loser].kernel->kernel.id;
        o->winner = overlaps[i].winner->kernel.id;
        o->sites = (int64_t)overlaps[i].sites;
        if (!(o->reason = keep(r, overlaps[i].reason)))
            return false;
        r->seen.overlap_count++;
    }
    return r->overlaps;
}

static bool add_sites(report *r, const plan *p)
{
    const graph *g = p->target->graph;
    bool fine = true;
    for (size_t i = 0; i < g->site_count; i++) {
        const plan_choice *choice = &p->choices[i];
        *r->sites[i] = (tn_site_report){.size = sizeof **r->sites,
                                        .site = &g->sites[i]->site,
                                        .kernel = choice->kernel ? choice->kernel->kernel.id : NULL,
                                        .covered_by = choice->covered_by ? choice->covered_by->site.path : NULL,
                                        .verdict_count = p->candidate_count,
                                        .verdicts = (const tn_verdict *const *)r->verdicts + i * p->candidate_count};
        for (size_t j = 0; j < p->candidate_count && fine; j++)
            fine = add_verdict(r, p, j, i);
    }
    return fine;
}

tn_report *report_of_plan(const plan *p, tn_error *err)
{
    size_t sites = p->target->graph->site_count, count = 0;
    plan_overlap *overlaps = NULL;
    report *r = report_new(p->target, sites * p->candidate_count, err);
    if (!r)
        return NULL;
    bool fine = plan_overlaps(p, &overlaps, &count, err) == TN_OK && add_sites(r, p) && add_notes(r, p) &&
                add_kernels(r, p) && add_overlaps(r, p, overlaps, count);
    if (fine)
        summarise(r, p, overlaps, count);
    free(overlaps);
    if (fine)
        return &r->seen;
    tn_report_free(&r->seen);
    plan_no_memory(err);
    return NULL;
}

tn_report *report_of_target(const apply_target *target, tn_error *err)
{
    const graph *g = target->graph;
    report *r = report_new(target, 0, err);
    if (!r)
        return NULL;
    for (size_t i = 0; i < g->site_count; i++) {
        const graph_site *s = g->sites[i], *outer = s->outer;
        while (outer && !outer->bound.impl)
            outer = outer->outer;
        *r->sites[i] = (tn_site_report){.size = sizeof **r->sites,
                                        .site = &s->site,
                                        .kernel = s->bound.impl ? s->bound.kernel->kernel.id : NULL,
                                        .covered_by = outer ? outer->site.path : NULL};
    }
    summarise(r, NULL, NULL, 0);
    return &r->seen;
}
