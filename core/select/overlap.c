/* Sites that more than one kernel takes: who lost them to whom, and why. */
#include "select/overlap.h"

#include "base/text.h"
#include "plugin/registry.h"
#include "select/choose.h"
#include "select/patterns.h"
#include "select/plan.h"
#include "select/rank.h"
#include "select/why.h"

#include <stdlib.h>
#include <string.h>

/* Who has the site that the candidate takes too; NULL: nobody else. */
static const registry_kernel *winner_of(const plan *p, size_t candidate, size_t site)
{
    const plan_choice *choice = &p->choices[site];
    size_t inside;
    if (choice->covered_by)
        return p->choices[choice->covered_by->index].kernel;
    if (choice->kernel)
        return choice->kernel;
    int32_t other = plan_preferred_inside(p, candidate, site, &inside);
    return other < 0 ? NULL : p->candidates[other].kernel;
}

static bool is_tie(const plan *p, size_t candidate, size_t site)
{
    const plan_choice *choice = &p->choices[site];
    if (choice->candidate < 0)
        return false;
    rank_side winner = choose_side(p, (size_t)choice->candidate, choice->fit);
    rank_side loser = choose_side(p, candidate, plan_taking_fit(p, candidate, site));
    return rank_is_tie(&winner, &loser);
}

/* Reasons of one kind begin with the same word. */
static bool same_kind(const char *a, const char *b)
{
    size_t n = strcspn(a, ":");
    return strcspn(b, ":") == n && !memcmp(a, b, n);
}

static tn_status add(plan_overlap **list, size_t *count, const plan_overlap *found, tn_error *err)
{
    for (size_t i = 0; i < *count; i++) {
        plan_overlap *known = &(*list)[i];
        if (known->loser == found->loser && known->winner == found->winner && same_kind(known->reason, found->reason)) {
            known->sites++;
            return TN_OK;
        }
    }
    plan_overlap *more = realloc(*list, (*count + 1) * sizeof *more);
    if (!more)
        return plan_no_memory(err);
    *list = more;
    more[(*count)++] = *found;
    return TN_OK;
}

tn_status plan_overlaps(const plan *p, plan_overlap **list, size_t *count, tn_error *err)
{
    const graph *g = p->target->graph;
    tn_status status = TN_OK;
    *list = NULL;
    *count = 0;
    for (size_t j = 0; j < p->candidate_count; j++)
        for (size_t i = 0; i < g->site_count && status == TN_OK; i++) {
            if (p->choices[i].candidate == (int32_t)j || !plan_taking_fit(p, j, i) ||
                !plan_modules_match(p->candidates[j].modules, g->sites[i]->site.path))
                continue;
            plan_overlap found = {.loser = j, .winner = winner_of(p, j, i), .sites = 1};
            plan_verdict(p, j, i, found.reason);
            found.tie = is_tie(p, j, i);
            /* One kernel's outer site covers its own inner ones. */
            if (found.winner && found.winner != p->candidates[j].kernel)
                status = add(list, count, &found, err);
        }
    if (status != TN_OK) {
        free(*list);
        *list = NULL;
        *count = 0;
    }
    return status;
}
