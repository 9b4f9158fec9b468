/* Kernels against eager at every site of a model: those that are applied, or all that match. */
#include "verify/verify.h"

#include "base/structs.h"
#include "base/text.h"
#include "open/model.h"
#include "report/report.h"
#include "select/alike.h"
#include "select/choose.h"
#include "select/patterns.h"
#include "select/plan.h"
#include "select/select.h"
#include "select/why.h"

#include <stdlib.h>
#include <string.h>

#define VERIFYING "verifying kernels"

static tn_status cannot(tn_status status, tn_error *err)
{
    return tn_fail(err, status, "verify", "a check could not be made; free some memory");
}

/* ---- what is applied --------------------------------------------------------------------------------------- */

/* The first site of its shape that the same implementation has is tried with all the calls of a first use. */
static bool is_first(const graph *g, const graph_site *site)
{
    for (size_t i = 0; i < site->index; i++)
        if (g->sites[i]->bound.impl == site->bound.impl && plan_same_shape(&g->sites[i]->site, &site->site))
            return false;
    return true;
}

/* A site of another shape that it has, too. */
static const tn_site *unlike_applied(const graph *g, const graph_site *site)
{
    for (size_t i = 0; i < g->site_count; i++)
        if (g->sites[i]->bound.impl == site->bound.impl && !plan_same_shape(&g->sites[i]->site, &site->site))
            return &g->sites[i]->site;
    return NULL;
}

/* Every applied kernel at every site that it has. */
static tn_status verify_applied(apply_target *target, tn_verify_row ***rows, size_t *count, tn_error *err)
{
    const graph *g = target->graph;
    verify_records records = {0};
    plan p = {.target = target, .checks.what = VERIFYING}; /* for who is told how far it is */
    for (size_t i = 0; i < g->site_count; i++)
        p.checks.total += g->sites[i]->bound.impl != NULL;
    tn_status status = plan_tell(&p, &p.checks, 0, err);
    for (size_t i = 0; i < g->site_count && status == TN_OK; i++) {
        const graph_site *site = g->sites[i];
        if (!site->bound.impl)
            continue;
        verify_record *record = verify_rows_find(&records, site->bound.kernel, &site->site, site->bound.impl);
        verify_subject s = {target, site, site->bound.impl, &site->bound, is_first(g, site), unlike_applied(g, site)};
        tn_error why = TN_ERROR_INIT;
        tn_status how;
        status = record ? verify_site(&s, record, &how, &why) : TN_E_MEMORY;
        if (status != TN_OK && why.code != TN_OK)
            tn_fail(err, status, why.where, "%s", why.message);
        if (record)
            record->row.applied_sites = record->row.sites;
        if (status == TN_OK)
            status = plan_tell(&p, &p.checks, p.checks.done + 1, err);
    }
    status = status == TN_OK ? verify_rows_give(&records, rows, count, err) : cannot(status, err);
    verify_rows_close(&records);
    return status;
}

/* ---- what matches ------------------------------------------------------------------------------------------ */

/* Trusts an implementation nowhere any more: what crashes or writes where it must not. */
static void refuse_everywhere(plan *p, size_t candidate, const tn_impl *impl, const char *reason)
{
    uint32_t impls = p->candidates[candidate].kernel->kernel.impl_count;
    for (size_t shape = 0; shape < p->shape_count; shape++)
        for (uint32_t i = 0; i < impls; i++) {
            plan_fit *fit = plan_fit_at(p, candidate, shape, i);
            if (fit->takes && fit->impl == impl)
                plan_refuse(fit, reason);
        }
}

/* An example of another shape that the implementation takes. */
static const tn_site *unlike_taken(const plan *p, size_t candidate, const plan_fit *fit)
{
    uint32_t impls = p->candidates[candidate].kernel->kernel.impl_count;
    for (size_t shape = 0; shape < p->shape_count; shape++)
        for (uint32_t i = 0; i < impls; i++) {
            const plan_fit *other = plan_fit_at(p, candidate, shape, i);
            if (other != fit && other->impl == fit->impl && other->takes)
                return &p->shapes[shape]->site;
        }
    return NULL;
}

/* One implementation at one site that its match and plan take. *wrong: its numbers were, at another site of the shape;
 * the figures of this one are still wanted. */
static tn_status verify_fit(plan *p, size_t candidate, plan_fit *fit, bool *wrong, const graph_site *site,
                            verify_record *record, tn_error *err)
{
    verify_subject s = {p->target, site, fit->impl, NULL, !fit->trusted && !*wrong, unlike_taken(p, candidate, fit)};
    tn_error why = TN_ERROR_INIT;
    tn_status how, status = verify_site(&s, record, &how, &why);
    if (status != TN_OK)
        return tn_fail(err, status, why.where, "%s", why.message);
    *wrong = *wrong || how == TN_E_VERIFY;
    fit->trusted = how == TN_OK && !*wrong;
    if (how != TN_OK && how != TN_E_VERIFY)
        refuse_everywhere(p, candidate, fit->impl, why.message);
    if (how != TN_OK && !fit->refused)
        plan_refuse(fit, why.message);
    return TN_OK;
}

/* The kernel itself takes a site around this one and does its work there. */
static bool covers_itself(const plan *p, size_t candidate, const graph_site *site)
{
    const plan_candidate *c = &p->candidates[candidate];
    for (const graph_site *outer = site->outer; outer; outer = outer->outer)
        for (uint32_t i = 0; i < c->kernel->kernel.impl_count; i++)
            if (plan_fit_at(p, candidate, p->shape_of[outer->index], i)->takes &&
                plan_modules_match(c->modules, outer->site.path))
                return true;
    return false;
}

/* Is the implementation to be tried at the site? */
static bool is_subject(const plan *p, size_t candidate, const graph_site *site, uint32_t impl)
{
    const plan_fit *fit = plan_fit_at(p, candidate, p->shape_of[site->index], impl);
    return (fit->takes || fit->refused) && plan_modules_match(p->candidates[candidate].modules, site->site.path) &&
           !covers_itself(p, candidate, site);
}

/* What is known of a kernel's implementations while its sites are gone through. */
typedef struct progress {
    bool *wrong; /* [shape][impl]: wrong numbers                                                  */
    bool *done;  /* [site][impl]                                                                  */
    bool more;   /* one was refused: inner sites may be its kernel's now                               */
} progress;

static tn_status verify_at(plan *p, size_t candidate, const graph_site *site, uint32_t impl, progress *at,
                           verify_records *records, tn_error *err)
{
    const plan_candidate *c = &p->candidates[candidate];
    uint32_t impls = c->kernel->kernel.impl_count;
    bool *done = &at->done[site->index * impls + impl], *wrong = &at->wrong[p->shape_of[site->index] * impls + impl];
    plan_fit *fit = plan_fit_at(p, candidate, p->shape_of[site->index], impl);
    if (*done || !is_subject(p, candidate, site, impl))
        return TN_OK;
    verify_record *record = verify_rows_find(records, c->kernel, &site->site, fit->impl);
    if (!record)
        return TN_E_MEMORY;
    *done = true;
    if (fit->refused && !*wrong) {
        verify_site_refused(record, site, fit->reason);
        return TN_OK;
    }
    bool before = fit->refused;
    tn_status status = verify_fit(p, candidate, fit, wrong, site, record, err);
    at->more = at->more || fit->refused != before;
    return status == TN_OK ? plan_tell(p, &p->checks, p->checks.done + 1, err) : status;
}

static tn_status verify_candidate(plan *p, size_t candidate, verify_records *records, tn_error *err)
{
    const graph *g = p->target->graph;
    uint32_t impls = p->candidates[candidate].kernel->kernel.impl_count;
    progress at = {.wrong = calloc(p->shape_count * impls + 1, sizeof(bool)),
                   .done = calloc(g->site_count * impls + 1, sizeof(bool)),
                   .more = true};
    tn_status status = at.wrong && at.done ? TN_OK : TN_E_MEMORY;
    while (at.more && status == TN_OK) {
        at.more = false;
        for (size_t i = 0; i < g->site_count; i++)
            for (uint32_t j = 0; j < impls && status == TN_OK; j++)
                status = verify_at(p, candidate, g->sites[i], j, &at, records, err);
    }
    free(at.wrong);
    free(at.done);
    return status;
}

/* An error when a kernel that was asked for by name matches no site. */
static tn_status check_named(plan *p, const verify_records *records, tn_error *err)
{
    for (size_t i = 0; i < p->candidate_count; i++) {
        bool found = !p->candidates[i].named;
        for (size_t j = 0; j < records->count && !found; j++)
            found = records->list[j]->kernel == p->candidates[i].kernel;
        tn_status status = found ? TN_OK : plan_check_named(p, err);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

/* Who would have the sites now that the failed ones are refused, and why the others would not. */
static void tell_applied(const plan *p, size_t candidate, verify_record *record)
{
    char reason[PLAN_TEXT];
    tn_verify_row *row = &record->row;
    for (size_t i = 0; i < p->target->graph->site_count; i++) {
        const tn_site *site = &p->target->graph->sites[i]->site;
        if (site->op != row->op || !plan_modules_match(p->candidates[candidate].modules, site->path))
            continue;
        bool matches = false;
        for (uint32_t j = 0; j < record->kernel->kernel.impl_count; j++) {
            const plan_fit *fit = plan_fit_at(p, candidate, p->shape_of[i], j);
            matches = matches || fit->takes || fit->refused;
        }
        if (!matches || covers_itself(p, candidate, p->target->graph->sites[i]))
            continue;
        plan_verdict(p, candidate, i, reason);
        row->applied_sites += p->choices[i].candidate == (int32_t)candidate;
        if (!row->not_applied[0])
            text_cut(row->not_applied, sizeof row->not_applied, "%s", reason);
    }
}

/* Inner sites of what is refused come on top. */
static void count_subjects(plan *p)
{
    p->checks = (plan_progress){.what = VERIFYING};
    for (size_t i = 0; i < p->candidate_count; i++)
        for (uint32_t j = 0; !p->candidates[i].excluded[0] && j < p->candidates[i].kernel->kernel.impl_count; j++)
            for (size_t site = 0; site < p->target->graph->site_count; site++)
                p->checks.total += is_subject(p, i, p->target->graph->sites[site], j);
}

static tn_status verify_plan(plan *p, verify_records *records, tn_error *err)
{
    count_subjects(p);
    tn_status status = plan_tell(p, &p->checks, 0, err);
    for (size_t i = 0; i < p->candidate_count && status == TN_OK; i++) {
        if (p->candidates[i].excluded[0])
            continue;
        status = verify_candidate(p, i, records, err);
    }
    if (status == TN_OK)
        status = plan_tell(p, &p->checks, p->checks.total, err);
    if (status != TN_OK)
        return cannot(status, err);
    if ((status = check_named(p, records, err)) != TN_OK)
        return status;
    plan_choose(p);
    for (size_t i = 0; i < p->candidate_count; i++)
        for (size_t j = 0; j < records->count; j++)
            if (records->list[j]->kernel == p->candidates[i].kernel)
                tell_applied(p, i, records->list[j]);
    return TN_OK;
}

/* Every kernel of a SPEC at every site that it matches. */
static tn_status verify_kernels(apply_target *target, const tn_config *config, const char *spec, tn_report **report,
                                tn_verify_row ***rows, size_t *count, tn_error *err)
{
    plan p = {0};
    verify_records records = {0};
    tn_status status = select_plan(&p, target, config, &(plan_request){.spec = spec}, err);
    if (status == TN_OK)
        status = verify_plan(&p, &records, err);
    if (status == TN_OK && report && !(*report = report_of_plan(&p, err)))
        status = TN_E_MEMORY;
    if (status == TN_OK)
        status = verify_rows_give(&records, rows, count, err);
    verify_rows_close(&records);
    plan_close(&p);
    return status;
}

/* ---- the interface ---- */

static tn_status begin(const tn_model *model, tn_verify_row ***rows, size_t *count, tn_error *err)
{
    if (!model || !rows || !count)
        return structs_missing(!model ? "model" : !rows ? "rows" : "count", err);
    *rows = NULL;
    *count = 0;
    return TN_OK;
}

tn_status tn_verify(tn_model *model, tn_verify_row ***rows, size_t *count, tn_error *err)
{
    tn_status status = begin(model, rows, count, err);
    if (status != TN_OK)
        return status;
    return model_blame(model, verify_applied(&model->target, rows, count, err), err);
}

tn_status tn_verify_kernels(tn_model *model, const tn_config *config, const char *spec, tn_report **report,
                            tn_verify_row ***rows, size_t *count, tn_error *err)
{
    tn_status status = begin(model, rows, count, err);
    if (status != TN_OK)
        return status;
    if (report)
        *report = NULL;
    return model_blame(model, verify_kernels(&model->target, config, spec, report, rows, count, err), err);
}
