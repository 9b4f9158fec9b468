/* Which of those that take a site is the fastest there? What was declared (priorities) says what an author hopes;
 * measured is what happens on this machine with these shapes. This file: who is measured. */
#include "select/measure.h"

#include "device/machine.h"
#include "op/op.h"
#include "plugin/kernels_config.h"
#include "select/check_plan.h"
#include "select/choose.h"
#include "select/patterns.h"
#include "select/plan.h"

#include <math.h>
#include <stdlib.h>

/* ---- who is measured -------------------------------------------------------------------------------------------- */

static int depth_of(const graph_site *site)
{
    int depth = 0;
    for (int i = 0; i < GRAPH_PARTS; i++)
        if (site->part[i] && depth_of(site->part[i]) >= depth)
            depth = depth_of(site->part[i]) + 1;
    return depth;
}

/* Would this candidate ever get a site of the shape? Not where modules say no, and not where it has the work of all of
 * them already, as the kernel around them. */
static bool competes(const plan *p, size_t candidate, size_t shape)
{
    const plan_candidate *c = &p->candidates[candidate];
    for (size_t i = 0; i < p->target->graph->site_count; i++) {
        const plan_choice *choice = &p->choices[i];
        if (p->shape_of[i] == shape && plan_modules_match(c->modules, p->target->graph->sites[i]->site.path) &&
            !(choice->covered_by && p->choices[choice->covered_by->index].kernel == c->kernel))
            return true;
    }
    return false;
}

static bool is_measurable(const plan *p)
{
    return kernels_config_measure(p->config) && !p->untimed && !p->adds && !p->target->training &&
           !p->target->together && p->target->device->ops->host_memory;
}

plan_fit *plan_entrant(const plan *p, size_t candidate, size_t shape)
{
    plan_fit *fit = is_measurable(p) ? plan_taking_fit(p, candidate, p->shapes[shape]->index) : NULL;
    return fit && !p->candidates[candidate].named && competes(p, candidate, shape) ? fit : NULL;
}

static tn_status add_entrants(plan *p, measure_entry *entry, tn_error *err)
{
    bool checked = !p->config || kernels_config_verify(p->config) != CONFIG_VERIFY_NEVER;
    size_t unknown = 0;
    for (size_t i = 0; i < p->candidate_count && entry->fit_count < MEASURE_FITS; i++) {
        plan_fit *fit = plan_entrant(p, i, entry->shape);
        if (!fit)
            continue;
        if (checked && !fit->trusted) {
            tn_status status = plan_check_fit(p, i, fit, p->shapes[entry->shape]->index, err);
            if (status != TN_OK)
                return status;
        }
        if (fit->refused)
            continue;
        uint32_t impl = (uint32_t)(fit - plan_fit_at(p, i, entry->shape, 0));
        entry->fits[entry->fit_count++] = (measure_entrant){i, impl, fit};
        unknown += !fit->times.known;
    }
    entry->known = unknown == 0;
    return TN_OK;
}

/* Bytes that calls go round at most: a kernel may pack as many, and a virtual machine may report a cache of others. */
static const double MOST_BYTES = 128 << 20;

static size_t sites_to_time(const tn_site *site)
{
    tn_call call = inputs_call(site, 1, 1);
    double enough = fmin(2 * (double)machine_cache_bytes(tn_thread_count()), MOST_BYTES) / op_bytes(&call);
    return enough < MEASURE_SITES || enough >= MEASURE_MOST_SITES ? MEASURE_SITES : (size_t)enough + 1;
}

static tn_status make_entry(plan *p, size_t shape, measure_entry *entry, tn_error *err)
{
    const graph *g = p->target->graph;
    *entry = (measure_entry){.shape = shape, .depth = depth_of(p->shapes[shape])};
    size_t most = sites_to_time(&p->shapes[shape]->site);
    for (size_t i = 0; i < g->site_count && entry->site_count < most; i++)
        if (p->shape_of[i] == shape)
            entry->sites[entry->site_count++] = g->sites[i];
    return add_entrants(p, entry, err);
}

static int by_depth(const void *a, const void *b)
{
    const measure_entry *x = a, *y = b;
    return x->depth != y->depth ? (x->depth > y->depth) - (x->depth < y->depth)
                                : (x->shape > y->shape) - (x->shape < y->shape);
}

/* ---- measuring -------------------------------------------------------------------------------------------------- */

static tn_status measure_entries(plan *p, measure_entry *entries, size_t count, tn_error *err)
{
    size_t before = 0;
    for (size_t i = 0; i < count; i++) {
        before += entries[i].known;
        if (!entries[i].known)
            entries[i].known = measure_recall(p, &entries[i]);
        if (entries[i].known)
            measure_settle(&entries[i]);
    }
    if (before == count)
        return TN_OK;
    tn_status status = measure_time(p, entries, count, err);
    return status == TN_OK ? plan_choose_again(p, err) : status;
}

/* Each shape by itself. *changed: there was something that nobody had measured. */
static tn_status measure_shapes(plan *p, bool *changed, tn_error *err)
{
    measure_entry *entries = calloc(p->shape_count + 1, sizeof *entries);
    if (!entries)
        return plan_no_memory(err);
    tn_status status = TN_OK;
    size_t count = 0;
    for (size_t shape = 0; shape < p->shape_count && status == TN_OK; shape++) {
        status = make_entry(p, shape, &entries[count], err);
        *changed |= !entries[count].known;
        count += entries[count].fit_count > 0;
    }
    qsort(entries, count, sizeof *entries, by_depth);
    if (status == TN_OK && *changed)
        status = measure_entries(p, entries, count, err);
    free(entries);
    return status;
}

tn_status plan_measure(plan *p, bool *changed, tn_error *err)
{
    *changed = false;
    if (!is_measurable(p))
        return TN_OK;
    tn_status status = measure_shapes(p, changed, err);
    /* What is chosen now may still change: whole steps are for what is left in the end. */
    if (*changed)
        p->stepped = false;
    else if (status == TN_OK && !p->stepped)
        status = measure_steps(p, changed, err);
    return status;
}
