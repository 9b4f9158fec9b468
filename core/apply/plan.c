/* Choosing: in graph order every site goes to the kernel that ranks first among those that take it. Outer sites come
 * first, and a kernel on one does the work of all sites inside, unless a kernel that was asked for before it takes one
 * of those. */
#include "apply/plan.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tn_status plan_no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory while choosing kernels; free some memory");
}

tn_status plan_note(plan *p, tn_error *err, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    return text_list_add(&p->notes, line) ? TN_OK : plan_no_memory(err);
}

/* ---- what does not work ------------------------------------------------------------------------------------------ */

void plan_refuse(plan_fit *fit, const char *reason)
{
    fit->takes = false;
    fit->refused = true;
    text_cut(fit->reason, sizeof fit->reason, "%s", reason);
}

tn_status plan_bar_site(plan *p, size_t site, const char *reason, tn_error *err)
{
    const plan_choice *choice = &p->choices[site];
    const plan_candidate *c = &p->candidates[choice->candidate];
    if (c->named && !p->tells)
        return tn_fail(err, TN_E_KERNEL, c->kernel->kernel.id, "cannot be applied at %s: %s",
                       p->target->graph->sites[site]->site.path, reason);
    plan_bar *bars = realloc(p->bars, (p->bar_count + 1) * sizeof *bars);
    if (!bars)
        return plan_no_memory(err);
    p->bars = bars;
    bars[p->bar_count] = (plan_bar){.fit = choice->fit, .site = site};
    text_cut(bars[p->bar_count++].reason, sizeof bars->reason, "%s", reason);
    return TN_OK;
}

static bool is_barred(const plan *p, const plan_fit *fit, size_t site)
{
    for (size_t i = 0; i < p->bar_count; i++)
        if (p->bars[i].fit == fit && p->bars[i].site == site)
            return true;
    return false;
}

/* ---- who may have a site ---------------------------------------------------------------------------------------- */

plan_fit *plan_taking_fit(const plan *p, size_t candidate, size_t site)
{
    const plan_candidate *c = &p->candidates[candidate];
    for (uint32_t i = 0; !c->excluded[0] && i < c->kernel->kernel.impl_count; i++) {
        plan_fit *fit = plan_fit_at(p, candidate, p->shape_of[site], i);
        if (fit->takes && !is_barred(p, fit, site))
            return fit;
    }
    return NULL;
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

/* ---- choosing --------------------------------------------------------------------------------------------------- */

int32_t plan_best(const plan *p, const graph_site *site, plan_fit **best_fit)
{
    int32_t found = -1;
    size_t inside;
    rank_side best = {0};
    *best_fit = NULL;
    for (size_t i = 0; i < p->candidate_count; i++) {
        plan_fit *fit = plan_taking_fit(p, i, site->index);
        rank_side side = plan_side(p, i, fit);
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

void plan_choose(plan *p)
{
    const graph *g = p->target->graph;
    /* What is added stands beside what is there until it is complete. */
    size_t packed = p->adds ? (size_t)p->target->packed_bytes : 0;
    memset(p->choices, 0, g->site_count * sizeof *p->choices);
    for (size_t i = 0; i < g->site_count; i++)
        choose_site(p, g->sites[i], &packed);
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

tn_status plan_choose_again(plan *p, tn_error *err)
{
    size_t settled = count_settled(p);
    if (settled <= p->settled)
        return tn_fail(err, TN_E_INTERNAL, "kernels", "choosing goes round in circles; report this defect");
    p->settled = settled;
    plan_choose(p);
    return TN_OK;
}

bool plan_keeps(const plan *p, size_t site)
{
    const plan_choice *choice = &p->choices[site];
    return choice->kernel && (choice->candidate < 0 || p->target->graph->sites[site]->bound.impl == choice->fit->impl);
}

tn_status plan_make(plan *p, apply_target *target, const tn_config *config, const plan_request *request, tn_error *err)
{
    *p = (plan){
        .target = target, .config = config, .adds = request->adds, .tells = request->tells, .packed_limit = SIZE_MAX};
    if (config)
        p->packed_limit = kernels_config_max_packed(config);
    tn_status status = plan_find_candidates(p, request, err);
    if (status == TN_OK)
        status = plan_check_patterns(p, request, err);
    if (status == TN_OK)
        status = plan_find_shapes(p, err);
    if (status == TN_OK)
        status = plan_ask(p, err);
    p->choices = calloc(target->graph->site_count + 1, sizeof *p->choices);
    p->asked = calloc(target->graph->site_count + 1, sizeof *p->asked);
    if (status == TN_OK && !(p->choices && p->asked))
        status = plan_no_memory(err);
    if (status != TN_OK)
        return status;
    bool changed;
    plan_choose(p);
    p->settled = count_settled(p);
    return plan_settle(p, &changed, err);
}

void plan_close(plan *p)
{
    for (size_t i = 0; i < p->candidate_count; i++)
        free(p->candidates[i].fits);
    free(p->candidates);
    free(p->shapes);
    free(p->shape_of);
    free(p->choices);
    free(p->asked);
    free(p->bars);
    text_list_clear(&p->notes);
    *p = (plan){0};
}
