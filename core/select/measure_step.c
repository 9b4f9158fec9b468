/* Whole steps: what is chosen, call by call as calls follow one another in a model, in turns with the same without
 * kernels. A call by itself is timed with the team of threads awake and nothing around it. In a step threads may sleep
 * before it and have to be woken, and the process is looked at when plugins take part: what gains a microsecond a call
 * may lose ten there. */
#include "base/clock.h"
#include "base/text.h"
#include "device/guard.h"
#include "run/guest.h"
#include "run/run.h"
#include "select/choose.h"
#include "select/measure.h"
#include "select/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Rounds of a size: at least the first, then until it is decided, for so many seconds. */
enum { LEAST_ROUNDS = 5, LOOKS = 9, MOST_PASSES = 20 };

/* Positions behind which few tokens are computed: what does not gain at the beginning of a text loses there. */
enum { CACHED = 64 };

static const double ROUNDS_SECONDS = 20e-3, LIMIT_SECONDS = 30;

/* In a round a step is performed for so long at least. One that takes longer than the second without kernels has calls
 * so long that nothing around them matters. */
static const double ROUND_SECONDS = 2e-4, LONG_STEP = 5e-3;

enum { WITHOUT, WITH, SIDES };

typedef struct step_job {
    plan *p;
    bool named; /* a kernel that was asked for by name takes part in any case                        */
    int32_t threads;
    /* Shared with the child. */
    struct step_note {
        volatile size_t size, site; /* that it is at; SIZE_MAX: no kernel of auto's is called         */
        bool busy;
        tn_error why;
        measure_step steps[GRAPH_SIZES];
    } * note;
    measure_turns *turns[GRAPH_SIZES]; /* [shape]                                                     */
} step_job;

static const graph_site *outermost(const graph_site *site)
{
    while (site->outer)
        site = site->outer;
    return site;
}

/* Chosen by auto for the site, or NULL. */
static plan_fit *auto_fit(const plan *p, size_t site)
{
    const plan_choice *choice = &p->choices[site];
    return choice->candidate >= 0 && !p->candidates[choice->candidate].named ? choice->fit : NULL;
}

/* Is the site performed in steps of tokens, and no other around it? */
static bool is_in_steps(const graph_site *site)
{
    bool apart = site->outer != NULL;
    for (const graph_module *module = site->module; module && !apart; module = module->parent)
        apart = module->apart;
    return !apart;
}

/* At the outermost sites of which shapes would auto's kernels perform calls of the size? */
static bool find_contested(const plan *p, int size, measure_turns *turns)
{
    const graph *g = p->target->graph;
    bool any = false;
    for (size_t i = 0; i < g->site_count; i++) {
        const graph_site *outer = outermost(g->sites[i]);
        const plan_fit *fit = is_in_steps(outer) ? auto_fit(p, i) : NULL;
        bool performs = fit && !(fit->not_at >> size & 1);
        turns[p->shape_of[outer->index]].contested |= performs;
        any |= performs;
    }
    return any;
}

/* ---- in the child ---------------------------------------------------------------------------------------------- */

/* A step: the first sites of each shape, in the order of the graph. */
typedef struct pass {
    const step_job *job;
    size_t count;
    graph_site **sites;
    graph_binding *bound[SIDES]; /* [site of the graph]                                                */
    inputs *in;                  /* [shape]; without data: what cannot be drawn is not called           */
    arena memory;
    double *seconds; /* [shape] of the calls so far                                                     */
} pass;

static tn_status pass_run(pass *w, int side, tn_error *err)
{
    const plan *p = w->job->p;
    tn_status status = TN_OK;
    for (size_t i = 0; i < w->count && status == TN_OK; i++) {
        const graph_site *site = w->sites[i];
        size_t shape = p->shape_of[site->index];
        tn_call call = w->in[shape].call;
        if (!w->in[shape].memory)
            continue;
        call.site = &site->site;
        w->job->note->site = side == WITH ? site->index : SIZE_MAX;
        double began = clock_seconds();
        status = run_site_call(p->target->device, &w->memory, site, &call, err);
        w->seconds[shape] += clock_seconds() - began;
    }
    w->job->note->site = SIZE_MAX;
    return status;
}

static void put_in_place(const pass *w, int side)
{
    const graph *g = w->job->p->target->graph;
    for (size_t i = 0; i < g->site_count; i++)
        g->sites[i]->bound = w->bound[side][i];
}

/* How many calls of the size a step of the model has for one of these. */
static void scale_turns(const pass *w, measure_turns *turns)
{
    const plan *p = w->job->p;
    for (size_t shape = 0; shape < p->shape_count; shape++) {
        size_t all = 0, here = 0;
        for (size_t i = 0; i < p->target->graph->site_count; i++)
            all += p->shape_of[i] == shape && is_in_steps(p->target->graph->sites[i]);
        for (size_t i = 0; i < w->count; i++)
            here += p->shape_of[w->sites[i]->index] == shape;
        turns[shape].scale = here ? (double)all / (double)here : 0;
    }
}

/* One side's turn of a round. Where there are several passes, one goes before them, which finds the caches as the other
 * side left them. */
static tn_status take_turn(pass *w, int side, int round, int64_t passes, measure_turns *turns, tn_error *err)
{
    size_t shapes = w->job->p->shape_count;
    put_in_place(w, side);
    tn_status status = passes > 1 ? pass_run(w, side, err) : TN_OK;
    memset(w->seconds, 0, shapes * sizeof *w->seconds);
    for (int64_t i = 0; i < passes && status == TN_OK; i++)
        status = pass_run(w, side, err);
    for (size_t i = 0; i < shapes; i++)
        turns[i].seconds[side][round] = w->seconds[i] / (double)passes;
    return status;
}

/* What is known to be in a pass without kernels: it takes as long at least. */
static double known_seconds(const pass *w, int size)
{
    double sum = 0;
    for (size_t i = 0; i < w->count; i++) {
        const plan_fit *fit = auto_fit(w->job->p, w->sites[i]->index);
        sum += fit ? fit->times.without[size].median : 0;
    }
    return sum;
}

/* About how long one takes. */
static tn_status time_pass(pass *w, int side, double *seconds, tn_error *err)
{
    tn_status status = TN_OK;
    put_in_place(w, side);
    *seconds = LONG_STEP;
    for (int i = 0; i < 3 && status == TN_OK; i++) {
        double began = clock_seconds();
        status = pass_run(w, side, err);
        *seconds = fmin(*seconds, clock_seconds() - began);
    }
    return status;
}

/* Rounds until it is clear whether the step gains, or clear enough that this does not show. */
static tn_status take_rounds(pass *w, measure_step *step, measure_turns *turns, double pass_seconds, tn_error *err)
{
    bool *keeps = calloc(w->job->p->shape_count, sizeof *keeps), gains = false;
    int64_t passes =
        pass_seconds < ROUND_SECONDS / MOST_PASSES ? MOST_PASSES : (int64_t)(ROUND_SECONDS / pass_seconds) + 1;
    double began = clock_seconds();
    tn_status status = keeps ? TN_OK : plan_no_memory(err);
    while (status == TN_OK && step->rounds < MEASURE_ROUNDS &&
           (step->rounds < LEAST_ROUNDS || (!gains && clock_seconds() - began < ROUNDS_SECONDS))) {
        for (int side = 0; side < SIDES && status == TN_OK; side++)
            status = take_turn(w, side, step->rounds, passes, turns, err);
        step->rounds++;
        gains = step->rounds >= LEAST_ROUNDS && measure_step_gains(step, turns, w->job->p->shape_count, keeps);
    }
    free(keeps);
    return status;
}

/* What is done around a step of a session once kernels of plugins take part, with a step between, so that it finds the
 * caches as there. */
static tn_status time_look(pass *w, timing_spread *look, tn_error *err)
{
    double seconds[LOOKS];
    guest_watch watch;
    tn_status status = TN_OK;
    guest_watch_open(&watch, w->job->p->target->device, w->job->p->target->graph);
    for (int i = 0; i < LOOKS && watch.before && status == TN_OK; i++) {
        double began = clock_seconds();
        guest_watch_begin(&watch);
        guest_watch_look(&watch);
        seconds[i] = clock_seconds() - began;
        status = pass_run(w, WITH, err);
        began = clock_seconds();
        guest_watch_end(&watch);
        seconds[i] += clock_seconds() - began;
    }
    bool counts = watch.before && !w->job->named && status == TN_OK;
    *look = counts ? timing_spread_of(seconds, LOOKS) : (timing_spread){0};
    guest_watch_close(&watch);
    return status;
}

/* Memory for the calls of both sides. */
static tn_status open_memory(pass *w, tn_error *err)
{
    const device *device = w->job->p->target->device;
    size_t most = 64;
    tn_status status = TN_OK;
    for (int side = 0; side < SIDES && status == TN_OK; side++) {
        put_in_place(w, side);
        status = arena_init(&w->memory, device, 0, err);
        if (status == TN_OK)
            status = pass_run(w, side, err);
        most = w->memory.peak > most ? w->memory.peak : most;
        arena_close(&w->memory);
    }
    return status == TN_OK ? arena_init(&w->memory, device, most, err) : status;
}

static tn_status time_size(pass *w, int size, measure_step *step, measure_turns *turns, tn_error *err)
{
    const plan *p = w->job->p;
    if (!find_contested(p, size, turns) || known_seconds(w, size) >= LONG_STEP)
        return TN_OK;
    for (size_t i = 0; i < w->count; i++) {
        inputs *in = &w->in[p->shape_of[w->sites[i]->index]];
        if (!in->memory && measure_draw(in, &w->sites[i]->site, size, CACHED, NULL) != TN_OK)
            inputs_close(in);
    }
    scale_turns(w, turns);
    double seconds[SIDES] = {0};
    tn_status status = open_memory(w, err);
    for (int side = 0; side < SIDES && status == TN_OK; side++)
        status = time_pass(w, side, &seconds[side], err);
    if (status == TN_OK && seconds[WITHOUT] < LONG_STEP)
        status = time_look(w, &step->look, err);
    if (status == TN_OK && seconds[WITHOUT] < LONG_STEP)
        status = take_rounds(w, step, turns, fmax(seconds[WITHOUT], seconds[WITH]), err);
    arena_close(&w->memory);
    for (size_t i = 0; i < p->shape_count; i++)
        inputs_close(&w->in[i]);
    return status;
}

/* What is chosen at a site and inside of it; kernels asked for by name on both sides. */
static tn_status bind_site(pass *w, const graph_site *site, tn_error *err)
{
    const plan *p = w->job->p;
    const plan_choice *choice = &p->choices[site->index];
    tn_status status = TN_OK;
    if (choice->candidate >= 0) {
        graph_binding *bound = &w->bound[WITH][site->index];
        bound->not_at = choice->fit->not_at;
        bound->kernel = choice->kernel;
        status = timing_bind(p->target->device, &site->site, choice->fit->impl, bound, err);
        if (!auto_fit(p, site->index))
            w->bound[WITHOUT][site->index] = *bound;
    }
    for (int i = 0; i < GRAPH_PARTS && status == TN_OK; i++)
        if (site->part[i])
            status = bind_site(w, site->part[i], err);
    return status;
}

/* The first sites of each shape in a step. */
static tn_status find_sites(pass *w, tn_error *err)
{
    const plan *p = w->job->p;
    const graph *g = p->target->graph;
    tn_status status = TN_OK;
    size_t *taken = calloc(p->shape_count, sizeof *taken);
    for (size_t i = 0; taken && i < g->site_count && status == TN_OK; i++) {
        if (!is_in_steps(g->sites[i]) || taken[p->shape_of[i]]++ >= MEASURE_SITES)
            continue;
        w->sites[w->count++] = g->sites[i];
        status = bind_site(w, g->sites[i], err);
    }
    free(taken);
    return taken ? status : plan_no_memory(err);
}

static int step_child(void *ctx)
{
    const step_job *job = ctx;
    tn_error *err = &job->note->why;
    size_t sites = job->p->target->graph->site_count, shapes = job->p->shape_count;
    pass w = {.job = job, .sites = calloc(sites, sizeof(graph_site *)), .in = calloc(shapes, sizeof(inputs))};
    w.seconds = calloc(shapes, sizeof *w.seconds);
    for (int side = 0; side < SIDES; side++)
        w.bound[side] = calloc(sites, sizeof *w.bound[side]);
    tn_status status = TN_E_MEMORY;
    measure_threads(job->threads);
    if (w.sites && w.in && w.seconds && w.bound[WITHOUT] && w.bound[WITH])
        status = find_sites(&w, err);
    double waited = measure_waited(job->p->target), began = clock_seconds();
    for (int size = 0; size < GRAPH_SIZES && status == TN_OK; size++) {
        job->note->size = (size_t)size;
        status = time_size(&w, size, &job->note->steps[size], job->turns[size], err);
    }
    job->note->busy = measure_is_busy(measure_waited(job->p->target) - waited, clock_seconds() - began);
    return status == TN_OK ? 0 : 1; /* what is allocated goes with the child                           */
}

/* ---- in the parent ---------------------------------------------------------------------------------------------- */

/* Who performed the call that ended the child: all of auto's at that site, since a call goes through parts, too. */
static bool blame(const step_job *job, const char *how)
{
    const plan *p = job->p;
    const graph *g = p->target->graph;
    size_t site = job->note->site;
    char text[PLAN_TEXT];
    bool found = false;
    text_cut(text, sizeof text, "when whole steps were timed: %s",
             job->note->why.message[0] ? job->note->why.message : how);
    if (job->note->why.code == TN_E_MEMORY || site >= g->site_count)
        return false;
    for (size_t i = 0; i < g->site_count; i++) {
        plan_fit *fit = outermost(g->sites[i]) == g->sites[site] ? auto_fit(p, i) : NULL;
        found |= fit != NULL;
        if (fit)
            plan_refuse(fit, text);
    }
    return found;
}

/* What is left out: shapes that are not faster, and all of a size that does not gain. */
static tn_status decide(const step_job *job, uint32_t *idle, tn_error *err)
{
    size_t shapes = job->p->shape_count;
    bool *keeps = calloc(shapes, sizeof *keeps);
    for (int size = 0; keeps && size < GRAPH_SIZES; size++) {
        const measure_step *step = &job->note->steps[size];
        bool gains = step->rounds > 0 && measure_step_gains(step, job->turns[size], shapes, keeps);
        for (size_t i = 0; i < shapes && step->rounds > 0; i++)
            idle[i] |= (uint32_t)(job->turns[size][i].contested && !(gains && keeps[i])) << size;
    }
    free(keeps);
    return keeps ? TN_OK : plan_no_memory(err);
}

static bool leave_out(plan *p, const uint32_t *idle)
{
    const graph *g = p->target->graph;
    bool any = false;
    for (size_t i = 0; i < g->site_count; i++) {
        plan_fit *fit = auto_fit(p, i);
        uint32_t bits = fit ? idle[p->shape_of[outermost(g->sites[i])->index]] & ~fit->not_at : 0;
        for (int size = 0; size < GRAPH_SIZES; size++)
            if (bits >> size & 1)
                measure_idle(fit, size);
        any |= bits != 0;
    }
    return any;
}

/* *newly: at some site is something that was not there before. */
static tn_status choose_again(plan *p, bool *newly, tn_error *err)
{
    size_t sites = p->target->graph->site_count;
    plan_choice *before = calloc(sites, sizeof *before);
    if (!before)
        return plan_no_memory(err);
    memcpy(before, p->choices, sites * sizeof *before);
    tn_status status = plan_choose_again(p, err);
    for (size_t i = 0; i < sites; i++)
        *newly |= p->choices[i].fit && p->choices[i].fit != before[i].fit;
    free(before);
    return status;
}

/* *known: idle says what is left out. */
static tn_status run_steps(step_job *job, uint32_t *idle, bool *changed, bool *known, tn_error *err)
{
    char how[256];
    plan *p = job->p;
    job->note->site = SIZE_MAX;
    job->note->why = (tn_error)TN_ERROR_INIT;
    tn_status status = guard_run_each(step_child, job, LIMIT_SECONDS, &job->note->size, NULL, how, sizeof how);
    *known = status == TN_OK;
    if (*known)
        return decide(job, idle, err);
    if (status != TN_E_KERNEL)
        return tn_fail(err, status, "kernels", "timing them %s", how);
    *changed = blame(job, how);
    return *changed ? TN_OK : measure_give_up(p, &job->note->why, how, err);
}

static bool any_named(const plan *p)
{
    bool any = false;
    for (size_t i = 0; i < p->target->graph->site_count && !any; i++)
        any = p->choices[i].kernel && !auto_fit(p, i);
    return any;
}

static tn_status time_steps(plan *p, uint32_t *idle, bool *changed, bool *known, tn_error *err)
{
    size_t note = (sizeof(struct step_note) + 63) / 64 * 64, turns = p->shape_count * sizeof(measure_turns);
    size_t bytes = note + GRAPH_SIZES * turns;
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return plan_no_memory(err);
    step_job job = {
        .p = p, .named = any_named(p), .threads = tn_thread_count(), .note = (struct step_note *)(void *)shared};
    for (int size = 0; size < GRAPH_SIZES; size++)
        job.turns[size] = (measure_turns *)(void *)(shared + note + (size_t)size * turns);
    tn_status status = run_steps(&job, idle, changed, known, err);
    if (status == TN_OK && *known && !job.note->busy)
        measure_remember_steps(p, idle);
    munmap(shared, bytes);
    return status;
}

tn_status measure_steps(plan *p, bool *changed, tn_error *err)
{
    tn_status status = TN_OK;
    bool any = false;
    for (size_t i = 0; i < p->target->graph->site_count && !any; i++)
        any = auto_fit(p, i) != NULL;
    if (!any)
        return TN_OK;
    uint32_t *idle = calloc(p->shape_count, sizeof *idle);
    if (!idle)
        return plan_no_memory(err);
    bool known = measure_recall_steps(p, idle);
    if (!known)
        status = time_steps(p, idle, changed, &known, err);
    if (status == TN_OK && ((known && leave_out(p, idle)) || *changed))
        status = choose_again(p, changed, err);
    p->stepped = !*changed;
    free(idle);
    return status;
}
