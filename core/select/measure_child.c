/* Timing those that compete, in a child process: a kernel that hangs or dies when it is timed does so there, and the
 * parts of a composed operation can have their kernels while nothing is applied. */
#include "base/clock.h"
#include "base/text.h"
#include "device/guard.h"
#include "run/run.h"
#include "select/choose.h"
#include "select/measure.h"
#include "select/plan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* CACHED: positions behind which few tokens are computed by attention, as a session's steps are. */
enum { SIDES = MEASURE_FITS + 1, SOME_TOKENS = 16, MOST_TOKENS = 512, CACHED = 512 };

/* Operations of the largest call that is timed, and of one that is made less often. */
static const double MOST_WORK = 2e9, HEAVY_WORK = 2e8;
static const double LIMIT_SECONDS = 30; /* of one entry                                          */

/* A first look, one where spreads overlap, and one where they still do and there may be a gain; fewer at calls that
 * take milliseconds. */
enum { LOOKS = 3, HEAVY_LOOKS = 2 };
static const timing_rules looks[LOOKS] = {{1e-4, 2e-3, 5}, {1e-4, 4e-3, 9}, {1e-4, 8e-3, 11}},
                          heavy_looks[HEAVY_LOOKS] = {{1e-4, 2e-3, 3}, {1e-4, 2e-3, 5}};

/* What the child tells; shared. */
typedef struct entry_times {
    bool done, busy;
    int64_t tokens[GRAPH_SIZES];
    timing_spread spread[GRAPH_SIZES][SIDES]; /* [0]: without any of them                           */
} entry_times;

typedef struct measure_job {
    plan *p;
    measure_entry *entries;
    size_t count;
    int32_t threads;
    /* Shared with the child. */
    struct measure_note {
        volatile size_t entry, side;
        tn_error why;
    } * note;
    entry_times *times;
    int64_t before; /* the child: were timed                                                          */
} measure_job;

/* ---- in the child ---------------------------------------------------------------------------------------------- */

/* One side of an entry: a kernel (bound) or what happens without. */
typedef struct contender {
    const device *device;
    const measure_entry *entry;
    const tn_call *call;
    bool kernel;
    size_t first; /* where it begins: as far from the others as may be, which leave weights in the caches       */
    graph_binding bound[MEASURE_MOST_SITES];
} contender;

static tn_status call_once(void *ctx, arena *a, size_t turn, tn_error *err)
{
    const contender *c = ctx;
    size_t at = (c->first + turn) % c->entry->site_count;
    tn_call call = *c->call;
    call.site = &c->entry->sites[at]->site;
    return c->kernel ? run_bound_call(c->device, a, &c->bound[at], &call, err)
                     : run_site_call(c->device, a, c->entry->sites[at], &call, err);
}

/* Who is timed first must not be the one for whom the pages of weights are mapped. */
static tn_status touch_weights(contender *without, tn_error *err)
{
    arena memory;
    tn_status status = arena_init(&memory, without->device, 0, err);
    if (status == TN_OK)
        status = call_once(without, &memory, 0, err);
    size_t bytes = memory.peak > 0 ? memory.peak : 64;
    arena_close(&memory);
    if (status == TN_OK)
        status = arena_init(&memory, without->device, bytes, err);
    for (size_t at = 0; at < without->entry->site_count && status == TN_OK; at++)
        status = call_once(without, &memory, at, err);
    arena_close(&memory);
    return status;
}

/* The parts of what is timed have what they would have. */
static tn_status bind_parts(const plan *p, const graph_site *site, tn_error *err)
{
    tn_status status = TN_OK;
    for (int i = 0; i < GRAPH_PARTS && status == TN_OK; i++) {
        graph_site *part = site->part[i];
        plan_fit *fit = NULL;
        if (!part)
            continue;
        part->bound = (graph_binding){0};
        if (plan_best(p, part, &fit) >= 0) {
            part->bound.not_at = fit->not_at;
            status = timing_bind(p->target->device, &part->site, fit->impl, &part->bound, err);
        }
        if (status == TN_OK)
            status = bind_parts(p, part, err);
    }
    return status;
}

static int64_t tokens_of(const tn_site *site, int size)
{
    int64_t tokens = MOST_TOKENS;
    if (size != GRAPH_MANY)
        return size == GRAPH_ONE ? 1 : SOME_TOKENS;
    while (tokens > GRAPH_MANY_TOKENS && inputs_operations(site, tokens) > MOST_WORK)
        tokens /= 2;
    return tokens;
}

/* Outputs of its own; they go with the child. */
static tn_status open_outputs(tn_call *call, tn_error *err)
{
    for (int i = 0; i < call->out_count; i++) {
        size_t bytes = (size_t)tn_tensor_count(&call->out[i]) * tn_dtype_size(call->out[i].dtype);
        if (!(call->out[i].data = aligned_alloc(64, (bytes / 64 + 1) * 64)))
            return plan_no_memory(err);
    }
    return TN_OK;
}

tn_status measure_draw(inputs *in, const tn_site *site, int size, int64_t cached, tn_error *err)
{
    int64_t tokens = tokens_of(site, size);
    check_case drawn = {.batch = 1, .tokens = tokens, .seed = (uint64_t)tokens};
    if (site->op == TN_OP_ATTENTION && size != GRAPH_MANY)
        drawn.past = cached;
    tn_status status = inputs_draw_case(in, site, &drawn, err);
    return status == TN_OK ? open_outputs(&in->call, err) : status;
}

/* After so many looks. */
static bool any_open(const timing_side *sides, size_t fits, int seen)
{
    bool open = false;
    for (size_t i = 1; i <= fits; i++)
        open |= measure_is_open(&sides[i].spread, &sides[0].spread, seen);
    return open;
}

static tn_status time_size(const measure_job *job, const measure_entry *e, int size, contender *all, entry_times *times)
{
    tn_error *err = &job->note->why;
    const tn_site *site = &e->sites[0]->site;
    timing_side *sides = calloc(e->fit_count + 1, sizeof *sides);
    inputs in = {0};
    tn_status status = sides ? measure_draw(&in, site, size, CACHED, err) : plan_no_memory(err);
    for (size_t i = 0; i <= e->fit_count && status == TN_OK; i++) {
        all[i].call = &in.call;
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): plan_no_memory is a failure
        sides[i] = (timing_side){.call = call_once, .ctx = &all[i]};
    }
    job->note->side = 0;
    if (status == TN_OK && size == GRAPH_ONE)
        status = touch_weights(&all[0], err);
    bool open = true, heavy = inputs_operations(site, tokens_of(site, size)) > HEAVY_WORK;
    for (int i = 0; i < (heavy ? HEAVY_LOOKS : LOOKS) && open && status == TN_OK; i++) {
        const timing_rules *rules = heavy ? &heavy_looks[i] : &looks[i];
        status = timing_take_turns(job->p->target->device, sides, e->fit_count + 1, rules, &job->note->side, err);
        open = any_open(sides, e->fit_count, i + 1);
    }
    times->tokens[size] = tokens_of(site, size);
    for (size_t i = 0; i <= e->fit_count && status == TN_OK; i++)
        times->spread[size][i] = sides[i].spread;
    inputs_close(&in);
    free(sides);
    return status;
}

/* Puts what was timed where the plan has it. */
static void take_times(const measure_entry *e, const entry_times *times)
{
    for (size_t i = 0; i < e->fit_count; i++) {
        plan_times *t = &e->fits[i].fit->times;
        t->known = true;
        t->busy = times->busy;
        for (int size = 0; size < GRAPH_SIZES; size++) {
            t->tokens[size] = times->tokens[size];
            t->without[size] = times->spread[size][0];
            t->kernel[size] = times->spread[size][i + 1];
        }
    }
}

static tn_status time_entry(const measure_job *job, measure_entry *e, entry_times *times)
{
    const device *device = job->p->target->device;
    tn_error *err = &job->note->why;
    contender *all = calloc(e->fit_count + 1, sizeof *all);
    if (!all)
        return plan_no_memory(err);
    tn_status status = TN_OK;
    for (size_t i = 0; i < e->site_count && status == TN_OK; i++) {
        job->p->target->graph->sites[e->sites[i]->index]->bound = (graph_binding){0};
        status = bind_parts(job->p, e->sites[i], err);
    }
    for (size_t side = 0; side <= e->fit_count && status == TN_OK; side++) {
        job->note->side = side;
        all[side] = (contender){.device = device, .entry = e, .kernel = side > 0};
        all[side].first = side * e->site_count / (e->fit_count + 1);
        for (size_t i = 0; i < e->site_count && side > 0 && status == TN_OK; i++)
            status = timing_bind(device, &e->sites[i]->site, e->fits[side - 1].fit->impl, &all[side].bound[i], err);
    }
    double waited = measure_waited(job->p->target), began = clock_seconds();
    for (int size = 0; size < GRAPH_SIZES && status == TN_OK; size++)
        status = time_size(job, e, size, all, times);
    times->busy = measure_is_busy(measure_waited(job->p->target) - waited, clock_seconds() - began);
    free(all);
    return status;
}

void measure_threads(int32_t threads)
{
    threads_limit(0);
    threads_set(threads);
    threads_serial(false);
}

static int measure_child(void *ctx)
{
    const measure_job *job = ctx;
    tn_status status = TN_OK;
    measure_threads(job->threads);
    for (size_t i = 0; i < job->count && status == TN_OK; i++) {
        measure_entry *e = &job->entries[i];
        if (e->known)
            continue;
        job->note->entry = i;
        job->note->side = 0;
        status = time_entry(job, e, &job->times[i]);
        if (status != TN_OK)
            break;
        take_times(e, &job->times[i]);
        measure_settle(e);
        job->times[i].done = true;
    }
    return status == TN_OK ? 0 : 1;
}

/* ---- in the parent ---------------------------------------------------------------------------------------------- */

/* Whose turn it was when the child ended early. false: nobody's fault. */
static bool blame(const measure_job *job, const char *how)
{
    size_t entry = job->note->entry, side = job->note->side;
    char text[PLAN_TEXT];
    if (job->note->why.code == TN_E_MEMORY || entry >= job->count || side == 0 || side > job->entries[entry].fit_count)
        return false;
    plan_fit *fit = job->entries[entry].fits[side - 1].fit;
    text_cut(text, sizeof text, "when it was timed: %s", job->note->why.message[0] ? job->note->why.message : how);
    plan_refuse(fit, text);
    measure_entry *e = &job->entries[entry];
    e->fit_count--;
    memmove(&e->fits[side - 1], &e->fits[side], (e->fit_count - (side - 1)) * sizeof *e->fits);
    e->known = e->fit_count == 0;
    return true;
}

/* While the child is at work. false: the caller has had enough. */
static bool go_on(void *ctx)
{
    const measure_job *job = ctx;
    int64_t done = job->before;
    for (size_t i = 0; i < job->count; i++)
        done += !job->entries[i].known && job->times[i].done;
    return plan_tell(job->p, &job->p->timings, done, NULL) == TN_OK;
}

static void count_timings(plan *p, const measure_entry *entries, size_t count)
{
    if (p->timings.total > 0)
        return;
    p->timings.what = p->forgets ? "timing kernels" : "timing kernels, only the first time";
    for (size_t i = 0; i < count; i++)
        p->timings.total += !entries[i].known;
}

/* It ended while no kernel was at work, and would again: what has no times is chosen without. */
tn_status measure_give_up(plan *p, const tn_error *why, const char *how, tn_error *err)
{
    p->untimed = true;
    return plan_note(p, err,
                     "kernels: not all could be timed: %s; they are chosen by their priorities, as with "
                     "--no-measure",
                     why->message[0] ? why->message : how);
}

tn_status measure_time(plan *p, measure_entry *entries, size_t count, tn_error *err)
{
    size_t bytes = sizeof(struct measure_note) + 64 + count * sizeof(entry_times);
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return plan_no_memory(err);
    measure_job job = {.p = p,
                       .entries = entries,
                       .count = count,
                       .threads = tn_thread_count(),
                       .note = (struct measure_note *)(void *)shared,
                       .times = (entry_times *)(void *)(shared + (sizeof(struct measure_note) + 63) / 64 * 64),
                       .before = p->timings.done};
    count_timings(p, entries, count);
    tn_status status = TN_OK;
    bool again = true;
    while (again) {
        char how[256];
        job.note->why = (tn_error)TN_ERROR_INIT;
        if (go_on(&job))
            status = guard_run_each(measure_child, &job, LIMIT_SECONDS, &job.note->entry, go_on, how, sizeof how);
        for (size_t i = 0; i < count; i++) {
            if (entries[i].known || !job.times[i].done)
                continue;
            take_times(&entries[i], &job.times[i]);
            measure_settle(&entries[i]);
            measure_remember(p, &entries[i]);
            entries[i].known = true;
            job.before++;
        }
        again = status == TN_E_KERNEL && !p->cancelled && blame(&job, how);
        if (p->cancelled)
            status = plan_tell(p, &p->timings, p->timings.done, err);
        else if (status == TN_E_KERNEL)
            status = again ? TN_OK : measure_give_up(p, &job.note->why, how, err);
        else if (status != TN_OK)
            tn_fail(err, status, "kernels", "timing them %s", how);
    }
    munmap(shared, bytes);
    return status == TN_OK ? plan_tell(p, &p->timings, p->timings.total, err) : status;
}
