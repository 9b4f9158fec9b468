/* The kernels of one model on another one of the same checkpoint, in another type. */
#include "base/text.h"
#include "bind/apply.h"
#include "select/plan.h"
#include "select/select.h"

#include <stdlib.h>
#include <string.h>

/* The kernel of a site, where its match and plan take the other model's site too. */
static void choose_like(plan *p, size_t site, const graph_binding *like)
{
    for (size_t i = 0; i < p->candidate_count; i++) {
        const plan_candidate *c = &p->candidates[i];
        for (uint32_t j = 0; c->kernel == like->kernel && j < c->kernel->kernel.impl_count; j++) {
            plan_fit *fit = plan_fit_at(p, i, p->shape_of[site], j);
            if (!fit->takes)
                continue;
            p->choices[site] = (plan_choice){.candidate = (int32_t)i, .fit = fit, .kernel = c->kernel};
            return;
        }
    }
}

/* "a,b": the kernels that have sites. Owned: free(). */
static char *list_kernels(const graph *g)
{
    text ids = {0};
    for (size_t i = 0; i < g->site_count; i++) {
        const graph_binding *bound = &g->sites[i]->bound;
        bool again = !bound->impl;
        for (size_t j = 0; j < i && !again; j++)
            again = g->sites[j]->bound.kernel == bound->kernel;
        if (!again)
            text_add(&ids, "%s%s", ids.length ? "," : "", bound->kernel->kernel.id);
    }
    if (!ids.failed && ids.data)
        return ids.data;
    free(ids.data);
    return ids.failed ? NULL : strdup("none");
}

tn_status apply_like(apply_target *target, const apply_target *from, size_t *sites, tn_error *err)
{
    const graph *g = from->graph;
    plan p = {0};
    *sites = 0;
    if (g->site_count != target->graph->site_count)
        return tn_fail(err, TN_E_INTERNAL, "kernels", "the two models have other sites");
    char *spec = list_kernels(g);
    if (!spec)
        return plan_no_memory(err);
    tn_status status = select_plan(&p, target, NULL, &(plan_request){.spec = spec}, err);
    for (size_t i = 0; i < g->site_count && status == TN_OK; i++) {
        p.choices[i] = (plan_choice){.candidate = -1};
        if (g->sites[i]->bound.impl)
            choose_like(&p, i, &g->sites[i]->bound);
        *sites += p.choices[i].kernel != NULL;
    }
    if (status == TN_OK)
        status = apply_plan(&p, err);
    plan_close(&p);
    free(spec);
    return status;
}
