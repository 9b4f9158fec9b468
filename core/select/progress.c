/* How many checks there will be, for whoever is told how far they are. They are counted before the first of them, so
 * that what is told does not grow: those of what is chosen, and of what it will be timed against, unless an earlier run
 * knows them. Who takes the place of a kernel that fails is checked beyond the count. */
#include "select/progress.h"

#include "plugin/kernels_config.h"
#include "select/check_cache.h"
#include "select/passed.h"
#include "select/check_plan.h"
#include "select/measure.h"
#include "select/plan.h"

#include <stdlib.h>
#include <string.h>

/* Will it be checked at the site? */
static bool is_unknown(plan *p, size_t candidate, const plan_fit *fit, size_t site)
{
    if (plan_checks_all(p))
        return true;
    char *key = fit->trusted ? NULL : check_cache_key(p, candidate, fit, site);
    char *known = key ? check_cache_recall(key) : NULL;
    bool unknown = !fit->trusted && !known && !passed_before(p, fit, &p->target->graph->sites[site]->site);
    p->forgets |= unknown && !key;
    free(known);
    free(key);
    return unknown;
}

/* Has a site before this one the same? */
static bool is_chosen(const plan *p, const plan_fit *fit, size_t before)
{
    for (size_t i = 0; i < before; i++)
        if (p->choices[i].candidate >= 0 && p->choices[i].fit == fit)
            return true;
    return false;
}

void plan_count_checks(plan *p)
{
    size_t sites = p->target->graph->site_count;
    bool all = plan_checks_all(p);
    if (p->counted || !p->target->applying || (p->config && kernels_config_verify(p->config) == CONFIG_VERIFY_NEVER))
        return;
    p->counted = true;
    for (size_t i = 0; i < sites; i++) {
        const plan_choice *c = &p->choices[i];
        if (c->candidate >= 0 && (all || !is_chosen(p, c->fit, i)))
            p->checks.total += is_unknown(p, (size_t)c->candidate, c->fit, i);
    }
    for (size_t i = 0; i < p->candidate_count; i++)
        for (size_t shape = 0; shape < p->shape_count; shape++) {
            const plan_fit *fit = plan_entrant(p, i, shape);
            if (fit && !is_chosen(p, fit, sites))
                p->checks.total += is_unknown(p, i, fit, p->shapes[shape]->index);
        }
    p->checks.what = all || p->forgets ? "checking kernels" : "checking kernels, only the first time";
}
