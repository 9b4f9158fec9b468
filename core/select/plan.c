/* What a plan is: values, and the few things that may happen to one. */
#include "select/plan.h"

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

bool plan_keeps(const plan *p, size_t site)
{
    const plan_choice *choice = &p->choices[site];
    return choice->kernel && (choice->candidate < 0 || p->target->graph->sites[site]->bound.impl == choice->fit->impl);
}

/* ---- telling ---- */

tn_status plan_tell(plan *p, plan_progress *progress, int64_t done, tn_error *err)
{
    const apply_target *target = p->target;
    done = done < progress->total ? done : progress->total;
    progress->done = done > progress->done ? done : progress->done;
    if (target->applying && progress->total > 0 && !p->cancelled)
        p->cancelled = target->applying(target->applying_ctx, progress->what, progress->done, progress->total) != 0;
    if (!p->cancelled)
        return TN_OK;
    return tn_fail(err, TN_E_CANCELLED, "kernels", "%.*s was cancelled", (int)strcspn(progress->what, ","),
                   progress->what);
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
