/* Choosing: in graph order every site goes to the kernel that ranks first among those that take it. Outer sites come
 * first, and a kernel on one does the work of all sites inside. */
#include "apply/plan.h"

#include "apply/rank.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

tn_status plan_no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory while choosing kernels; free some memory");
}

void plan_refuse(plan_fit *fit, const char *reason)
{
    fit->takes = false;
    fit->refused = true;
    text_cut(fit->reason, sizeof fit->reason, "%s", reason);
}

plan_fit *plan_taking_fit(const plan *p, size_t candidate, size_t shape)
{
    const plan_candidate *c = &p->candidates[candidate];
    for (uint32_t i = 0; !c->excluded[0] && i < c->kernel->kernel.impl_count; i++) {
        plan_fit *fit = plan_fit_at(p, candidate, shape, i);
        if (fit->takes)
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
    if (fit->packed_bytes == 0 || (p->adds && site->bound.impl == fit->impl))
        return 0;
    for (size_t i = 0; i < site->index; i++)
        if (p->choices[i].fit == fit &&
            plan_same_weights(&g->sites[i]->site, &site->site, p->target->device->ops->host_memory))
            return 0;
    return fit->packed_bytes;
}

static bool packs_too_much(const plan *p, const graph_site *site, const plan_fit *fit, size_t before)
{
    return p->packed_limit != SIZE_MAX &&
           packed_more(p, site, fit) > (before > p->packed_limit ? 0 : p->packed_limit - before);
}

/* Does a come before b where both take a site? By what was measured, then by what they declare. */
static int compare(const plan *p, int32_t a, const plan_fit *a_fit, int32_t b, const plan_fit *b_fit)
{
    int faster = plan_faster(a_fit, b_fit);
    return faster ? faster : rank_compare(p->candidates[a].kernel, p->candidates[b].kernel);
}

int32_t plan_best(const plan *p, const graph_site *site, size_t packed, plan_fit **best_fit)
{
    int32_t best = -1;
    *best_fit = NULL;
    for (size_t i = 0; i < p->candidate_count; i++) {
        const plan_candidate *c = &p->candidates[i];
        plan_fit *fit = plan_taking_fit(p, i, p->shape_of[site->index]);
        if (!fit || !plan_modules_match(c->modules, site->site.path) || packs_too_much(p, site, fit, packed) ||
            (best >= 0 && compare(p, best, *best_fit, (int32_t)i, fit) < 0))
            continue;
        best = (int32_t)i;
        *best_fit = fit;
    }
    return best;
}

static void choose_site(plan *p, const graph_site *site, size_t *packed)
{
    plan_choice *choice = &p->choices[site->index];
    *choice = (plan_choice){.candidate = -1, .covered_by = covering(p, site), .packed_before = *packed};
    if (choice->covered_by)
        return;
    choice->candidate = plan_best(p, site, *packed, &choice->fit);
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

tn_status plan_make(plan *p, apply_target *target, const tn_config *config, const plan_request *request, tn_error *err)
{
    *p = (plan){
        .target = target, .config = config, .adds = request->adds, .tells = request->tells, .packed_limit = SIZE_MAX};
    if (config)
        p->packed_limit = kernels_config_max_packed(config);
    tn_status status = plan_find_candidates(p, request, err);
    if (status == TN_OK)
        status = plan_find_shapes(p, err);
    if (status == TN_OK)
        status = plan_ask(p, err);
    if (status == TN_OK && !(p->choices = calloc(target->graph->site_count + 1, sizeof *p->choices)))
        status = plan_no_memory(err);
    if (status == TN_OK)
        plan_choose(p);
    return status;
}

void plan_close(plan *p)
{
    for (size_t i = 0; i < p->candidate_count; i++)
        free(p->candidates[i].fits);
    free(p->candidates);
    free(p->shapes);
    free(p->shape_of);
    free(p->choices);
    *p = (plan){0};
}

/* ---- why not -------------------------------------------------------------------------------------------- */

/* No implementation takes the shape: what those for its operation said, or that there is none. */
static void fit_verdict(const plan *p, size_t candidate, size_t shape, char *text)
{
    const plan_candidate *c = &p->candidates[candidate];
    const tn_kernel *kernel = &c->kernel->kernel;
    tn_op op = p->shapes[shape]->site.op;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < kernel->impl_count && used < PLAN_TEXT; i++) {
        const plan_fit *fit = plan_fit_at(p, candidate, shape, i);
        if (kernel->impls[i].op == op && !strstr(text, fit->reason))
            used += text_cut(text + used, PLAN_TEXT - used, "%s%s%s", used ? "; or " : "",
                             fit->refused ? "refused: " : "", fit->reason);
    }
    if (used > 0)
        return;
    used = text_cut(text, PLAN_TEXT, "op: site has %s, kernel takes", tn_op_name(op));
    for (uint32_t i = 0; i < kernel->impl_count && used < PLAN_TEXT; i++)
        if (i == 0 || kernel->impls[i].op != kernel->impls[i - 1].op)
            used += text_cut(text + used, PLAN_TEXT - used, "%s %s", i ? "," : "", tn_op_name(kernel->impls[i].op));
}

static void faster_verdict(const plan_fit *winner, const plan_fit *loser, const registry_kernel *kernel, char *text)
{
    char fast[PLAN_TEXT], slow[PLAN_TEXT];
    plan_times_text(winner, fast);
    plan_times_text(loser, slow);
    text_cut(text, PLAN_TEXT, "measured: %s is faster: %s; this kernel: %s", kernel->kernel.id, fast, slow);
}

void plan_verdict(const plan *p, size_t candidate, size_t site, char *text)
{
    const plan_candidate *c = &p->candidates[candidate];
    const plan_choice *choice = &p->choices[site];
    const char *path = p->target->graph->sites[site]->site.path;
    text[0] = '\0';
    if (choice->candidate == (int32_t)candidate)
        return;
    if (c->excluded[0])
        text_cut(text, PLAN_TEXT, "%s", c->excluded);
    else if (!plan_taking_fit(p, candidate, p->shape_of[site]))
        fit_verdict(p, candidate, p->shape_of[site], text);
    else if (!plan_modules_match(c->modules, path))
        text_cut(text, PLAN_TEXT, "modules: site is %s, options name %s", path, c->modules);
    else if (choice->covered_by)
        text_cut(text, PLAN_TEXT, "covered: %s has the %s around this site",
                 p->choices[choice->covered_by->index].kernel->kernel.id, tn_op_name(choice->covered_by->site.op));
    else if (packs_too_much(p, p->target->graph->sites[site], plan_taking_fit(p, candidate, p->shape_of[site]),
                            choice->packed_before))
        text_cut(text, PLAN_TEXT, "packed weights: %.4g MiB with this site's, --max-packed-mb allows %zu",
                 (double)(choice->packed_before + plan_taking_fit(p, candidate, p->shape_of[site])->packed_bytes) /
                     0x1p20,
                 p->packed_limit >> 20);
    else if (choice->fit && plan_faster(choice->fit, plan_taking_fit(p, candidate, p->shape_of[site])) < 0)
        faster_verdict(choice->fit, plan_taking_fit(p, candidate, p->shape_of[site]), choice->kernel, text);
    else if (choice->kernel)
        rank_reason(choice->kernel, c->kernel, text, PLAN_TEXT);
}

/* ---- kernels asked for by name ---------------------------------------------------------------------------- */

static bool has_site(const plan *p, size_t candidate)
{
    for (size_t i = 0; i < p->target->graph->site_count; i++)
        if (p->choices[i].candidate == (int32_t)candidate)
            return true;
    return false;
}

static bool does_op(const plan_candidate *c, tn_op op)
{
    for (uint32_t i = 0; i < c->kernel->kernel.impl_count; i++)
        if (c->kernel->kernel.impls[i].op == op)
            return true;
    return false;
}

/* The reason that most sites with the kernel's operations (of the modules named) have in common; false when there is no
 * such site. */
static bool frequent_reason(const plan *p, size_t candidate, const char *modules, char *reason)
{
    size_t sites = p->target->graph->site_count, best = 0;
    char text[PLAN_TEXT], other[PLAN_TEXT];
    for (size_t i = 0; i < sites; i++) {
        const tn_site *site = &p->target->graph->sites[i]->site;
        if (!does_op(&p->candidates[candidate], site->op) || !plan_modules_match(modules, site->path))
            continue;
        size_t count = 0;
        plan_verdict(p, candidate, i, text);
        for (size_t j = i; j < sites; j++) {
            if (p->target->graph->sites[j]->site.op != site->op)
                continue;
            plan_verdict(p, candidate, j, other);
            count += !strcmp(text, other);
        }
        if (count <= best)
            continue;
        best = count;
        text_cut(reason, PLAN_TEXT, "%s", text);
    }
    return best > 0;
}

tn_status plan_check_named(const plan *p, tn_error *err)
{
    for (size_t i = 0; i < p->candidate_count; i++) {
        const plan_candidate *c = &p->candidates[i];
        char reason[PLAN_TEXT];
        if (!c->named || has_site(p, i))
            continue;
        if (frequent_reason(p, i, c->modules, reason) || frequent_reason(p, i, NULL, reason))
            return tn_fail(err, TN_E_KERNEL, c->kernel->kernel.id, "takes no site of this model; %s", reason);
        return tn_fail(err, TN_E_KERNEL, c->kernel->kernel.id,
                       "takes no site of this model, which has no %s; leave it out",
                       c->kernel->kernel.impl_count ? tn_op_name(c->kernel->kernel.impls[0].op) : "such operation");
    }
    return TN_OK;
}
