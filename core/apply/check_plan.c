/* Checked apply: what a plan chooses is tried before it is trusted. */
#include "apply/check_cache.h"
#include "apply/plan.h"
#include "check/check.h"
#include "plugin/registry.h"

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

/* Everything anew, and at every site. */
static bool checks_all(const plan *p)
{
    return p->config && kernels_config_verify(p->config) == CONFIG_VERIFY_ALL;
}

tn_status plan_check_fit(plan *p, size_t candidate, plan_fit *fit, size_t site, tn_error *err)
{
    const tn_site *own = &p->target->graph->sites[site]->site;
    check_case cases[CHECK_FIRST_USE];
    device cpu;
    tn_error why = TN_ERROR_INIT;
    bool remembered = !checks_all(p) && check_cache_recall(p, candidate, fit, site);
    if (remembered) {
        fit->trusted = true;
        return TN_OK;
    }
    size_t count = check_first_use_cases(own, cases);
    check_subject subject = {.device = p->target->device,
                             .site = own,
                             .impl = fit->impl,
                             .gradients = p->target->training,
                             .other = plan_other_weights(p->target, site),
                             .unlike = find_unlike(p, fit, site),
                             .cpu = plan_open_cpu(p->target, &cpu)};
    tn_status status = check_site(&subject, cases, count, NULL, &why);
    if (subject.cpu)
        device_close(&cpu);
    if (status == TN_OK) {
        fit->trusted = true;
        check_cache_remember(p, candidate, fit, site);
    }
    const plan_choice choice = {.candidate = (int32_t)candidate, .fit = fit};
    return status == TN_OK ? TN_OK : refuse(p, &choice, status, &why, err);
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
            plan_choose(p);
    }
    free(checked);
    return status;
}
