/* Checked apply: what a plan chooses is tried before it is trusted. */
#include "apply/plan.h"
#include "check/check.h"

#include <stdlib.h>

/* One failed check: refused, or an error where the kernel was asked for by name. */
static tn_status refuse(plan *p, const plan_choice *choice, tn_status status, const tn_error *why, tn_error *err)
{
    const plan_candidate *c = &p->candidates[choice->candidate];
    /* What is not the kernel's fault stops everything. */
    if (status == TN_E_MEMORY || status == TN_E_INTERNAL)
        return tn_fail(err, status, why->where, "%s", why->message);
    if (c->named)
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

/* Checks every site that has something unchecked; *again when a fit was refused, so that others must be chosen. */
static tn_status check_round(plan *p, bool every_site, const plan_fit **checked, bool *again, tn_error *err)
{
    const graph *g = p->target->graph;
    for (size_t i = 0; i < g->site_count; i++) {
        const plan_choice *choice = &p->choices[i];
        const tn_site *site = &g->sites[i]->site;
        if (choice->candidate < 0 || choice->fit->refused ||
            (every_site ? checked[i] == choice->fit : choice->fit->trusted))
            continue;
        tn_error why = TN_ERROR_INIT;
        check_case cases[3];
        size_t count = check_first_use_cases(site, cases);
        check_subject subject = {p->target->device, site, choice->fit->impl, NULL, p->target->training};
        tn_status status = check_site(&subject, cases, count, NULL, &why);
        checked[i] = choice->fit;
        if (status == TN_OK) {
            choice->fit->trusted = true;
            continue;
        }
        *again = true;
        if ((status = refuse(p, choice, status, &why, err)) != TN_OK)
            return status;
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
