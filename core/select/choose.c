/* Choosing: in graph order every site goes to the kernel that ranks first among those that take it. Outer sites come
 * first, and a kernel on one does the work of all sites inside, unless a kernel that was asked for before it takes one
 * of those. */
#include "select/choose.h"

#include "select/alike.h"
#include "select/measure.h"
#include "select/patterns.h"
#include "select/plan.h"
#include "select/rank.h"

#include <string.h>

rank_side choose_side(const plan *p, size_t candidate, const plan_fit *fit)
{
    return (rank_side){p->candidates[candidate].kernel, p->candidates[candidate].place,
                       fit ? plan_share(fit) : (timing_spread){0}};
}

/* The enclosing site whose kernel does all of this one's work. */
static const graph_site *covering(const plan *p, const graph_site *site)
{
    for (const graph_site *outer = site->outer; outer; outer = outer->outer) {
        const plan_choice *choice = &p->choices[outer->index];
        if (choice->kernel && !(choice->fit && choice->fit->not_at))
            return outer;
    }
    return NULL;
}

/* Bytes that the implementation would add to all packed weights: none where an earlier site's serve it too. */
static size_t packed_more(const plan *p, const graph_site *site, const plan_fit *fit)
{
    const graph *g = p->target->graph;
    if (fit->plan.packed_bytes == 0 || (p->adds && site->bound.impl == fit->impl))
        return 0;
    for (size_t i = 0; i < site->index; i++)
        if (p->choices[i].fit == fit &&
            plan_same_weights(&g->sites[i]->site, &site->site, p->target->device->ops->host_memory))
            return 0;
    return fit->plan.packed_bytes;
}

/* before: packed weights of what was chosen so far. */
static bool exceeds(const plan *p, const graph_site *site, const plan_fit *fit, size_t before)
{
    return p->packed_limit != SIZE_MAX &&
           packed_more(p, site, fit) > (before > p->packed_limit ? 0 : p->packed_limit - before);
}

bool plan_packs_too_much(const plan *p, size_t site, const plan_fit *fit)
{
    return exceeds(p, p->target->graph->sites[site], fit, p->choices[site].packed_before);
}

static bool is_inside(const graph_site *site, const graph_site *of)
{
    while (site && site != of)
        site = site->outer;
    return site;
}

int32_t plan_preferred_inside(const plan *p, size_t candidate, size_t site, size_t *inside)
{
    const graph *g = p->target->graph;
    size_t before = p->choices[site].packed_before;
    for (size_t j = 0; j < p->candidate_count; j++) {
        const plan_candidate *c = &p->candidates[j];
        for (size_t i = site + 1; c->place < p->candidates[candidate].place && i < g->site_count; i++) {
            const plan_fit *fit = is_inside(g->sites[i], g->sites[site]) ? plan_taking_fit(p, j, i) : NULL;
            if (!fit || !plan_modules_match(c->modules, g->sites[i]->site.path) || exceeds(p, g->sites[i], fit, before))
                continue;
            *inside = i;
            return (int32_t)j;
        }
    }
    return -1;
}

/* ---- choosing ---- */

int32_t plan_best(const plan *p, const graph_site *site, plan_fit **best_fit)
{
    int32_t found = -1;
    size_t inside;
    rank_side best = {0};
    *best_fit = NULL;
    for (size_t i = 0; i < p->candidate_count; i++) {
        plan_fit *fit = plan_taking_fit(p, i, site->index);
        rank_side side = choose_side(p, i, fit);
        if (!fit || !plan_modules_match(p->candidates[i].modules, site->site.path) ||
            plan_packs_too_much(p, site->index, fit) || (best.kernel && rank_compare(&best, &side) < 0) ||
            plan_preferred_inside(p, i, site->index, &inside) >= 0)
            continue;
        best = side;
        *best_fit = fit;
        found = (int32_t)i;
    }
    return found;
}

static void choose_site(plan *p, const graph_site *site, size_t *packed)
{
    plan_choice *choice = &p->choices[site->index];
    *choice = (plan_choice){.candidate = -1, .covered_by = covering(p, site), .packed_before = *packed};
    if (choice->covered_by)
        return;
    choice->candidate = plan_best(p, site, &choice->fit);
    if (choice->candidate >= 0) {
        choice->kernel = p->candidates[choice->candidate].kernel;
        *packed += packed_more(p, site, choice->fit);
    } else if (p->adds) {
        choice->kernel = site->bound.impl ? site->bound.kernel : NULL;
    }
}

/* What stands between a plan and its end: what a choice is made of, and what can only become more. */
static size_t count_settled(const plan *p)
{
    size_t count = p->bar_count + p->untimed;
    for (size_t i = 0; i < p->candidate_count; i++)
        for (size_t j = 0; j < p->shape_count * p->candidates[i].kernel->kernel.impl_count; j++) {
            const plan_fit *fit = &p->candidates[i].fits[j];
            count += (size_t)fit->refused + !fit->takes + fit->times.known + fit->idle_at;
        }
    return count;
}

void plan_choose(plan *p)
{
    const graph *g = p->target->graph;
    /* What is added stands beside what is there until it is complete. */
    size_t packed = p->adds ? (size_t)p->target->packed_bytes : 0;
    memset(p->choices, 0, g->site_count * sizeof *p->choices);
    for (size_t i = 0; i < g->site_count; i++)
        choose_site(p, g->sites[i], &packed);
    p->settled = count_settled(p);
}

tn_status plan_choose_again(plan *p, tn_error *err)
{
    if (count_settled(p) <= p->settled)
        return tn_fail(err, TN_E_INTERNAL, "kernels", "choosing goes round in circles; report this defect");
    plan_choose(p);
    return TN_OK;
}
