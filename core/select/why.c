/* Why a kernel has not got a site, in words. */
#include "select/why.h"

#include "base/text.h"
#include "plugin/kernels_config.h"
#include "plugin/registry.h"
#include "select/choose.h"
#include "select/patterns.h"
#include "select/plan.h"
#include "select/rank.h"

#include <stdio.h>
#include <string.h>

/* What the implementation says of the site: barred there, or of its shape. */
static const char *fit_reason(const plan *p, const plan_fit *fit, size_t site)
{
    for (size_t i = 0; i < p->bar_count; i++)
        if (p->bars[i].fit == fit && p->bars[i].site == site)
            return p->bars[i].reason;
    return fit->reason;
}

/* No implementation takes the site: what those for its operation said, or that there is none. */
static void fit_verdict(const plan *p, size_t candidate, size_t site, char *text)
{
    const tn_kernel *kernel = &p->candidates[candidate].kernel->kernel;
    size_t shape = p->shape_of[site], used = 0;
    tn_op op = p->shapes[shape]->site.op;
    text[0] = '\0';
    for (uint32_t i = 0; i < kernel->impl_count && used < PLAN_TEXT; i++) {
        const plan_fit *fit = plan_fit_at(p, candidate, shape, i);
        const char *reason = fit_reason(p, fit, site);
        if (kernel->impls[i].op == op && !strstr(text, reason))
            used += text_cut(text + used, PLAN_TEXT - used, "%s%s%s", used ? "; or " : "",
                             fit->refused ? "refused: " : "", reason);
    }
    if (used > 0)
        return;
    used = text_cut(text, PLAN_TEXT, "op: site has %s, kernel takes", tn_op_name(op));
    for (uint32_t i = 0; i < kernel->impl_count && used < PLAN_TEXT; i++)
        if (i == 0 || kernel->impls[i].op != kernel->impls[i - 1].op)
            used += text_cut(text + used, PLAN_TEXT - used, "%s %s", i ? "," : "", tn_op_name(kernel->impls[i].op));
}

/* It takes the site, and another has it or one inside. */
static void rival_verdict(const plan *p, size_t candidate, size_t site, char *text)
{
    const plan_choice *choice = &p->choices[site];
    const rank_side loser = choose_side(p, candidate, plan_taking_fit(p, candidate, site));
    size_t inside;
    if (choice->kernel) {
        rank_side winner = choice->candidate < 0 ? (rank_side){.kernel = choice->kernel, .place = RANK_AUTO}
                                                 : choose_side(p, (size_t)choice->candidate, choice->fit);
        rank_reason(&winner, &loser, text, PLAN_TEXT);
        return;
    }
    int32_t other = plan_preferred_inside(p, candidate, site, &inside);
    if (other >= 0)
        text_cut(text, PLAN_TEXT, "inside: %s, asked for by name, takes %s inside",
                 p->candidates[other].kernel->kernel.id, p->target->graph->sites[inside]->site.path);
}

void plan_verdict(const plan *p, size_t candidate, size_t site, char *text)
{
    const plan_candidate *c = &p->candidates[candidate];
    const plan_choice *choice = &p->choices[site];
    const plan_fit *fit = plan_taking_fit(p, candidate, site);
    const char *path = p->target->graph->sites[site]->site.path;
    text[0] = '\0';
    if (choice->candidate == (int32_t)candidate)
        return;
    if (c->excluded[0])
        text_cut(text, PLAN_TEXT, "%s", c->excluded);
    else if (!fit)
        fit_verdict(p, candidate, site, text);
    else if (!plan_modules_match(c->modules, path))
        text_cut(text, PLAN_TEXT, "modules: site is %s, options name %s", path, c->modules);
    else if (choice->covered_by)
        text_cut(text, PLAN_TEXT, "covered: %s has the %s around this site",
                 p->choices[choice->covered_by->index].kernel->kernel.id, tn_op_name(choice->covered_by->site.op));
    else if (plan_packs_too_much(p, site, fit))
        text_cut(text, PLAN_TEXT, "packed weights: %.4g MiB with this site's, --max-packed-mb allows %zu",
                 (double)(choice->packed_before + fit->plan.packed_bytes) / 0x1p20, p->packed_limit >> 20);
    else
        rival_verdict(p, candidate, site, text);
}

/* ---- of a whole kernel ------------------------------------------------------------------------------------------ */

size_t plan_site_count(const plan *p, size_t candidate)
{
    size_t count = 0;
    for (size_t i = 0; i < p->target->graph->site_count; i++)
        count += p->choices[i].candidate == (int32_t)candidate;
    return count;
}

static bool does_op(const plan_candidate *c, tn_op op)
{
    for (uint32_t i = 0; i < c->kernel->kernel.impl_count; i++)
        if (c->kernel->kernel.impls[i].op == op)
            return true;
    return false;
}

/* Of a layer that another rank has. */
static bool is_elsewhere(const graph_site *site)
{
    return site->staged && site->lacking;
}

/* Have other ranks all sites with the kernel's operations in the modules that it was asked for? Then one of them says
 * whether it takes any. */
static bool has_all_elsewhere(const plan *p, const plan_candidate *c)
{
    size_t here = 0, elsewhere = 0;
    for (size_t i = 0; i < p->target->graph->site_count; i++) {
        const graph_site *site = p->target->graph->sites[i];
        bool asked = does_op(c, site->site.op) && plan_modules_match(c->modules, site->site.path);
        here += asked && !is_elsewhere(site);
        elsewhere += asked && is_elsewhere(site);
    }
    return here == 0 && elsewhere > 0;
}

/* The reason that most sites with the kernel's operations (of the modules named) have in common; false when there is no
 * such site. */
static bool frequent_reason(const plan *p, size_t candidate, const char *modules, char *reason)
{
    size_t sites = p->target->graph->site_count, best = 0;
    char text[PLAN_TEXT], other[PLAN_TEXT];
    for (size_t i = 0; i < sites; i++) {
        const tn_site *site = &p->target->graph->sites[i]->site;
        if (!does_op(&p->candidates[candidate], site->op) || !plan_modules_match(modules, site->path) ||
            is_elsewhere(p->target->graph->sites[i]))
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

static const char *operation_of(const plan_candidate *c)
{
    return c->kernel->kernel.impl_count ? tn_op_name(c->kernel->kernel.impls[0].op) : "such operation";
}

bool plan_reason(const plan *p, size_t candidate, char *text)
{
    const plan_candidate *c = &p->candidates[candidate];
    if (c->excluded[0]) {
        text_cut(text, PLAN_TEXT, "%s", c->excluded);
        return true;
    }
    if (frequent_reason(p, candidate, c->modules, text) || frequent_reason(p, candidate, NULL, text))
        return true;
    text_cut(text, PLAN_TEXT, "this model has no %s", operation_of(c));
    return false;
}

/* Would the candidate have a site if those asked for before it were not there? */
static const registry_kernel *outranked_by(const plan *p, size_t candidate)
{
    const graph *g = p->target->graph;
    for (size_t i = 0; i < g->site_count; i++) {
        const plan_choice *choice = &p->choices[i];
        int32_t winner = choice->covered_by ? p->choices[choice->covered_by->index].candidate : choice->candidate;
        size_t inside;
        if (!plan_taking_fit(p, candidate, i) ||
            !plan_modules_match(p->candidates[candidate].modules, g->sites[i]->site.path))
            continue;
        if (winner < 0)
            winner = plan_preferred_inside(p, candidate, i, &inside);
        if (winner >= 0 && p->candidates[winner].place < p->candidates[candidate].place)
            return p->candidates[winner].kernel;
    }
    return NULL;
}

/* Has a kernel sites that was asked for there? A name may stand for several. */
static bool place_has_sites(const plan *p, size_t place)
{
    for (size_t i = 0; i < p->candidate_count; i++)
        if (p->candidates[i].place == place && plan_site_count(p, i) > 0)
            return true;
    return false;
}

/* Sums whose order follows the call where the plain implementation forms them. */
static bool sums_by_call(tn_op op)
{
    return op == TN_OP_LINEAR || op == TN_OP_ATTENTION || op == TN_OP_MOE_ROUTE || op == TN_OP_MOE_EXPERTS ||
           op == TN_OP_GROUPED_MATMUL || op == TN_OP_GATED_DELTA_RULE;
}

/* What the first kernel that promises these bits for the operation says of the site; "" where none does. */
static void promised_verdict(const plan *p, size_t site, char *text)
{
    char verdict[PLAN_TEXT];
    text[0] = '\0';
    for (size_t i = 0; i < p->candidate_count && !text[0]; i++) {
        const tn_kernel *kernel = &p->candidates[i].kernel->kernel;
        uint32_t j = 0;
        while (j < kernel->impl_count && (kernel->impls[j].op != p->target->graph->sites[site]->site.op ||
                                          !(kernel->impls[j].traits & TN_SAME_BITS)))
            j++;
        if (j == kernel->impl_count)
            continue;
        plan_verdict(p, i, site, verdict);
        text_cut(text, PLAN_TEXT, " (%s: %s)", kernel->id, verdict);
    }
}

tn_status plan_check_same_bits(const plan *p, tn_error *err)
{
    const tn_site *first = NULL;
    size_t count = 0;
    char why[PLAN_TEXT] = "", more[40] = "";
    for (size_t i = 0; kernels_config_same_bits(p->config) && i < p->target->graph->site_count; i++) {
        const graph_site *site = p->target->graph->sites[i];
        const plan_choice *choice = &p->choices[i];
        if (!sums_by_call(site->site.op) || site->by_parts || site->lacking || choice->kernel || choice->covered_by)
            continue;
        if (!first)
            promised_verdict(p, i, why);
        first = first ? first : &site->site;
        count++;
    }
    for (size_t i = 0; kernels_config_same_bits(p->config) && i < p->target->graph->step_count; i++) {
        const tn_site *step = &p->target->graph->steps[i]->site; /* latent attention's products by head          */
        if (step->op != TN_OP_GROUPED_MATMUL)
            continue;
        first = first ? first : step;
        count++;
    }
    if (count == 0)
        return TN_OK;
    if (count > 1)
        snprintf(more, sizeof more, " and at %zu more sites", count - 1);
    return tn_fail(
        err, TN_E_KERNEL, first->path,
        "no kernel that promises the same bits in any call takes %s here%s%s; leave out same_bits, or see tenon "
        "inspect --explain",
        tn_op_name(first->op), why, more);
}

tn_status plan_check_named(plan *p, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < p->candidate_count && status == TN_OK; i++) {
        const plan_candidate *c = &p->candidates[i];
        const char *id = c->asked;
        char reason[PLAN_TEXT];
        if (!c->named || place_has_sites(p, c->place))
            continue;
        const registry_kernel *first = outranked_by(p, i);
        bool has_operation = plan_reason(p, i, reason);
        if (first)
            status =
                plan_note(p, err, "kernels: %s takes no site: %s stands before it and has them", id, first->kernel.id);
        else if (has_all_elsewhere(p, c))
            status = plan_note(p, err, "kernels: %s takes no site of the layers that this rank has", id);
        else if (!has_operation)
            return tn_fail(err, TN_E_KERNEL, id, "takes no site of this model, which has no %s; leave it out",
                           operation_of(c));
        else
            return tn_fail(err, TN_E_KERNEL, id, "takes no site of this model; %s", reason);
    }
    return status;
}
