/* Which of those that take a site is the fastest there? What was declared (priorities) says what an author hopes;
 * measured is what happens on this machine with these shapes. */
#include "apply/measure.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is noise besides a tenth (RANK_MARGIN): seconds of a call. Cached times keep a choice as it is. */
static const double NOISE = 2e-7;

/* ---- what times say ---------------------------------------------------------------------------------------------- */

/* Of a call's time without the kernel, noise added to both. */
static double share(const plan_times *t, int size)
{
    return (t->kernel[size] + NOISE) / (t->without[size] + NOISE);
}

void measure_settle(measure_entry *entry)
{
    for (size_t i = 0; i < entry->fit_count; i++) {
        plan_fit *fit = entry->fits[i].fit;
        char times[PLAN_TEXT];
        fit->not_at = 0;
        for (int size = 0; fit->times.known && size < GRAPH_SIZES; size++)
            if (fit->times.kernel[size] > RANK_MARGIN * fit->times.without[size] + NOISE)
                fit->not_at |= 1u << size;
        if (fit->not_at != (1u << GRAPH_SIZES) - 1)
            continue;
        plan_times_text(fit, times);
        fit->takes = false;
        text_cut(fit->reason, sizeof fit->reason, "measured: slower than what it would replace: %s", times);
    }
}

/* The geometric mean over sizes; where it is not used it changes nothing. */
double plan_share(const plan_fit *fit)
{
    double product = 1;
    for (int size = 0; size < GRAPH_SIZES; size++)
        product *= fit->not_at >> size & 1 ? 1 : share(&fit->times, size);
    return fit->times.known ? pow(product, 1.0 / GRAPH_SIZES) : 0;
}

/* "35.3 us" */
static void duration(double seconds, char out[24])
{
    bool micro = seconds < 1e-3;
    text_cut(out, 24, "%.3g %s", seconds * (micro ? 1e6 : 1e3), micro ? "us" : "ms");
}

void plan_times_text(const plan_fit *fit, char *text)
{
    const plan_times *t = &fit->times;
    size_t used = 0;
    text[0] = '\0';
    for (int size = 0; t->known && size < GRAPH_SIZES; size++) {
        char with[24], without[24];
        duration(t->kernel[size], with);
        duration(t->without[size], without);
        used += text_cut(text + used, PLAN_TEXT - used, "%s%lld token%s %s (without %s%s)", used ? ", " : "",
                         (long long)t->tokens[size], t->tokens[size] == 1 ? "" : "s", with, without,
                         fit->not_at >> size & 1 ? ", which is used" : "");
    }
}

/* ---- who is measured -----------------------------------------------------------------------------------------------
 */

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

static tn_status add_entrants(plan *p, measure_entry *entry, tn_error *err)
{
    bool checked = !p->config || kernels_config_verify(p->config) != CONFIG_VERIFY_NEVER;
    size_t unknown = 0;
    for (size_t i = 0; i < p->candidate_count && entry->fit_count < MEASURE_FITS; i++) {
        plan_fit *fit = plan_taking_fit(p, i, p->shapes[entry->shape]->index);
        if (!fit || p->candidates[i].named || !competes(p, i, entry->shape))
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

static tn_status make_entry(plan *p, size_t shape, measure_entry *entry, tn_error *err)
{
    const graph *g = p->target->graph;
    *entry = (measure_entry){.shape = shape, .depth = depth_of(p->shapes[shape])};
    for (size_t i = 0; i < g->site_count && entry->site_count < MEASURE_SITES; i++)
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

/* ---- measuring ------------------------------------------------------------------------------------------------------
 */

static bool is_measurable(const plan *p)
{
    return !p->adds && !p->target->training && p->target->device->ops->host_memory;
}

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
    if (status == TN_OK)
        plan_choose(p);
    return status;
}

tn_status plan_measure(plan *p, bool *changed, tn_error *err)
{
    *changed = false;
    if (!kernels_config_measure(p->config) || !is_measurable(p))
        return TN_OK;
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
