/* Reports: who has which site, what every kernel said, and one line about it all. */
#include "apply/report.h"

#include "base/structs.h"

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
    free(r);
}

static report *report_new(size_t sites, size_t verdicts, tn_error *err)
{
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

/* The first shape for which an implementation was refused, or NULL. */
static const plan_fit *refused_fit(const plan *p, size_t candidate, uint32_t impl)
{
    for (size_t shape = 0; shape < p->shape_count; shape++) {
        const plan_fit *fit = plan_fit_at(p, candidate, shape, impl);
        if (fit->refused)
            return fit;
    }
    return NULL;
}

static void append_refused(line *l, const plan *p)
{
    size_t items = 0;
    for (size_t i = 0; p && i < p->candidate_count; i++)
        for (uint32_t j = 0; j < p->candidates[i].kernel->kernel.impl_count; j++) {
            const plan_fit *fit = refused_fit(p, i, j);
            if (fit)
                append(l, "%s%s at %s (%s)", items++ ? ", " : "; refused: ", p->candidates[i].kernel->kernel.id,
                       tn_op_name(fit->impl->op), fit->reason);
        }
}

static void summarise(report *r, const plan *p)
{
    line l = {r->seen.summary, 0, sizeof r->seen.summary};
    size_t items = 0;
    for (size_t i = 0; i < r->seen.site_count; i++)
        if (r->sites[i]->kernel && !seen_before(r, i))
            items = append_kernel(&l, r, r->sites[i]->kernel, items);
    if (items == 0)
        append(&l, "no kernels");
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
                      .measured = strdup(measured)};
    return v->reason && v->measured;
}

tn_report *report_of_plan(const plan *p, tn_error *err)
{
    const graph *g = p->target->graph;
    report *r = report_new(g->site_count, g->site_count * p->candidate_count, err);
    if (!r)
        return NULL;
    for (size_t i = 0; i < g->site_count; i++) {
        const plan_choice *choice = &p->choices[i];
        *r->sites[i] = (tn_site_report){.size = sizeof **r->sites,
                                        .site = &g->sites[i]->site,
                                        .kernel = choice->kernel ? choice->kernel->kernel.id : NULL,
                                        .covered_by = choice->covered_by ? choice->covered_by->site.path : NULL,
                                        .verdict_count = p->candidate_count,
                                        .verdicts = (const tn_verdict *const *)r->verdicts + i * p->candidate_count};
        for (size_t j = 0; j < p->candidate_count; j++)
            if (!add_verdict(r, p, j, i)) {
                tn_report_free(&r->seen);
                plan_no_memory(err);
                return NULL;
            }
    }
    summarise(r, p);
    return &r->seen;
}

tn_report *report_of_target(const apply_target *target, tn_error *err)
{
    const graph *g = target->graph;
    report *r = report_new(g->site_count, 0, err);
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
    summarise(r, NULL);
    return &r->seen;
}
