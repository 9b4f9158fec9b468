/* Checked apply: what a plan chooses is tried before it is trusted. */
#include "select/check_plan.h"

#include "base/clock.h"
#include "check/check.h"
#include "plugin/kernels_config.h"
#include "plugin/patience.h"
#include "plugin/registry.h"
#include "select/alike.h"
#include "select/check_cache.h"
#include "select/choose.h"
#include "select/first_calls.h"
#include "select/passed.h"
#include "select/plan.h"

#include <stdlib.h>

const device *plan_open_cpu(const apply_target *target, device *cpu)
{
    int32_t ordinal;
    const tn_device *built_in = registry_device(NULL, &ordinal, NULL);
    if (target->device->ops->host_memory || !built_in || device_open(cpu, built_in, ordinal, false, NULL) != TN_OK)
        return NULL;
    return cpu;
}

/* One failed check: refused, or an error where the kernel was asked for by name. */
static tn_status refuse(plan *p, const plan_choice *choice, tn_status status, const tn_error *why, tn_error *err)
{
    const plan_candidate *c = &p->candidates[choice->candidate];
    /* What is not the kernel's fault stops everything. */
    if (status == TN_E_MEMORY || status == TN_E_INTERNAL)
        return tn_fail(err, status, why->where, "%s", why->message);
    if (c->named && !p->tells)
        return tn_fail(err, status == TN_E_VERIFY ? TN_E_VERIFY : TN_E_KERNEL, c->kernel->kernel.id,
                       "is refused at %s: %s", why->where, why->message);
    if (status != TN_E_KERNEL) {
        plan_refuse(choice->fit, why->message);
        return TN_OK;
    }
    /* What crashes or writes where it must not is trusted nowhere. */
    for (size_t shape = 0; shape < p->shape_count; shape++)
        for (uint32_t i = 0; i < c->kernel->kernel.impl_count; i++) {
            plan_fit *fit = plan_fit_at(p, (size_t)choice->candidate, shape, i);
            if (fit->takes && fit->impl == choice->fit->impl)
                plan_refuse(fit, why->message);
        }
    return TN_OK;
}

/* A site of another shape that the same implementation has, or NULL. */
static const tn_site *find_unlike(const plan *p, const plan_fit *fit, size_t site)
{
    const graph *g = p->target->graph;
    for (size_t i = 0; i < g->site_count; i++) {
        const plan_choice *c = &p->choices[i];
        if (c->candidate >= 0 && c->fit->impl == fit->impl && p->shape_of[i] != p->shape_of[site])
            return &g->sites[i]->site;
    }
    return NULL;
}

/* The other sites of the shape, but for one that is tried anyway: weights of a deep layer may be unlike those of the
 * first. NULL: no memory; owned by the caller. */
static const tn_site **list_each(const plan *p, size_t site, const tn_site *but, size_t *count)
{
    const graph *g = p->target->graph;
    const tn_site **list = calloc(g->site_count + 1, sizeof *list);
    *count = 0;
    for (size_t i = 0; list && i < g->site_count; i++)
        if (i != site && &g->sites[i]->site != but && p->shape_of[i] == p->shape_of[site])
            list[(*count)++] = &g->sites[i]->site;
    return list;
}

bool plan_checks_all(const plan *p)
{
    return p->config && kernels_config_verify(p->config) == CONFIG_VERIFY_ALL;
}

/* What earlier runs know: TN_OK: it passed; TN_DECLINED: nothing, or nobody asks; TN_E_VERIFY: a call of it was wrong.
 */
static tn_status recall(plan *p, size_t candidate, plan_fit *fit, size_t site, tn_error *why)
{
    const tn_site *own = &p->target->graph->sites[site]->site;
    char *key = check_cache_key(p, candidate, fit, site);
    char *known = key && !plan_checks_all(p) ? check_cache_recall(key) : NULL;
    const char *reason = known ? first_calls_reason(known) : NULL;
    tn_status status = known ? TN_OK : TN_DECLINED;
    if (reason)
        status = tn_fail(why, TN_E_VERIFY, own->path, "%s; `tenon cache clear` tries it again", reason);
    fit->trusted = status == TN_OK;
    if (!reason && !fit->first) {
        bool kept = key != NULL;
        key = kept ? key : first_calls_key(fit->impl, plan_shape_hash(own));
        fit->first = first_calls_open(p->target, p->candidates[candidate].kernel, key, kept, known, why);
        key = NULL;
        status = fit->first ? status : TN_E_MEMORY;
    }
    free(key);
    free(known);
    if (status == TN_DECLINED && !plan_checks_all(p) && passed_before(p, fit, own)) {
        fit->trusted = true;
        status = TN_OK;
    }
    return status;
}

/* It passed. What a busy machine could not show, and what the kernel loads from elsewhere, must be looked at again. */
static tn_status trust(plan *p, size_t candidate, plan_fit *fit, const tn_site *site, bool busy, bool loads,
                       tn_error *err)
{
    fit->trusted = true;
    if (!loads)
        passed_note(p, fit, site);
    if (fit->first && loads)
        fit->first->kept = false;
    if (fit->first && busy)
        fit->first->busy = true;
    if (fit->first && fit->first->kept && !busy)
        check_cache_remember(fit->first->key, "");
    if (!busy || p->told_busy)
        return TN_OK;
    p->told_busy = true;
    return plan_note(
        p, err,
        "other programs had the processors while kernels were checked: threads of %s never ran at one time, "
        "so what goes wrong between them was not seen; it is checked again at the next start",
        p->candidates[candidate].kernel->kernel.id);
}

/* While a child is at work. false: the caller has had enough. */
static bool go_on(void *ctx)
{
    plan *p = ctx;
    return plan_tell(p, &p->checks, p->checks.done, NULL) == TN_OK;
}

/* The check itself. TN_E_VERIFY, TN_E_KERNEL: it fails; err is then about the site. */
static tn_status try_fit(plan *p, size_t candidate, plan_fit *fit, size_t site, tn_error *err)
{
    const tn_site *own = &p->target->graph->sites[site]->site, *other = plan_other_weights(p->target, site);
    check_case cases[CHECK_FIRST_USE];
    check_coverage coverage = {0};
    device cpu;
    bool loads = false;
    double patience = patience_most() - patience_spent(p->candidates[candidate].kernel->file), left = patience;
    size_t count = check_first_use_cases(own, cases), each_count;
    const tn_site **each = list_each(p, site, other, &each_count);
    if (!each)
        return plan_no_memory(err);
    check_subject subject = {.device = p->target->device,
                             .site = own,
                             .impl = fit->impl,
                             .gradients = p->target->training,
                             .cut = p->target->cut,
                             .other = other,
                             .unlike = find_unlike(p, fit, site),
                             .each = each,
                             .each_count = each_count,
                             .coverage = &coverage,
                             .loads = &loads,
                             .patience = &left,
                             .go_on = go_on,
                             .go_on_ctx = p,
                             .cpu = plan_open_cpu(p->target, &cpu)};
    tn_status status = check_site(&subject, cases, count, NULL, err);
    free(each);
    patience_spend(p->candidates[candidate].kernel->file, patience - left, NULL);
    if (subject.cpu)
        device_close(&cpu);
    return status == TN_OK ? trust(p, candidate, fit, own, coverage.busy, loads, err) : status;
}

tn_status plan_check_fit(plan *p, size_t candidate, plan_fit *fit, size_t site, tn_error *err)
{
    const plan_choice choice = {.candidate = (int32_t)candidate, .fit = fit};
    const char *file = p->candidates[candidate].kernel->file;
    char gone[PLAN_TEXT];
    tn_error why = TN_ERROR_INIT;
    tn_status status = recall(p, candidate, fit, site, &why);
    if (status != TN_DECLINED)
        return status == TN_OK ? TN_OK : refuse(p, &choice, status, &why, err);
    if (patience_gone(file, gone, sizeof gone)) {
        tn_fail(&why, TN_E_KERNEL, p->target->graph->sites[site]->site.path, "not tried: %s", gone);
        return refuse(p, &choice, TN_E_KERNEL, &why, err);
    }
    if ((status = plan_tell(p, &p->checks, p->checks.done, err)) != TN_OK)
        return status;
    double begin = clock_seconds();
    status = try_fit(p, candidate, fit, site, &why);
    if (p->cancelled)
        return plan_tell(p, &p->checks, p->checks.done, err);
    /* What hangs in a check takes as long as its limit, or longer.                                    */
    if (status == TN_E_KERNEL && clock_seconds() - begin >= CHECK_LEAST_SECONDS)
        patience_spend(file, clock_seconds() - begin, why.message);
    if (status != TN_OK)
        status = refuse(p, &choice, status, &why, err);
    return status == TN_OK ? plan_tell(p, &p->checks, p->checks.done + 1, err) : status;
}

/* Checks every site that has something unchecked; *again when a fit was refused, so that others must be chosen. */
static tn_status check_round(plan *p, bool every_site, const plan_fit **checked, bool *again, tn_error *err)
{
    const graph *g = p->target->graph;
    for (size_t i = 0; i < g->site_count; i++) {
        const plan_choice *choice = &p->choices[i];
        if (choice->candidate < 0 || choice->fit->refused ||
            (every_site ? checked[i] == choice->fit : choice->fit->trusted))
            continue;
        tn_status status = plan_check_fit(p, (size_t)choice->candidate, choice->fit, i, err);
        checked[i] = choice->fit;
        if (status != TN_OK)
            return status;
        *again |= choice->fit->refused;
    }
    return TN_OK;
}

tn_status plan_check(plan *p, tn_error *err)
{
    config_verify verify = p->config ? kernels_config_verify(p->config) : CONFIG_VERIFY_FIRST_USE;
    if (verify == CONFIG_VERIFY_NEVER)
        return TN_OK;
    const plan_fit **checked = calloc(p->target->graph->site_count + 1, sizeof *checked);
    if (!checked)
        return plan_no_memory(err);
    tn_status status = TN_OK;
    bool again = true;
    while (again && status == TN_OK) {
        again = false;
        status = check_round(p, verify == CONFIG_VERIFY_ALL, checked, &again, err);
        if (status == TN_OK && again)
            status = plan_choose_again(p, err);
    }
    free(checked);
    return status;
}
