/* Timing those that compete, in a child process: a kernel that hangs or dies when it is timed does so there, and the
 * parts of a composed operation can have their kernels while nothing is applied. */
#include "apply/measure.h"

#include "base/text.h"
#include "check/inputs.h"
#include "check/timing.h"
#include "device/guard.h"
#include "run/run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* CACHED: positions behind which few tokens are computed by attention, as a session's steps are. */
enum { SIDES = MEASURE_FITS + 1, SOME_TOKENS = 16, MOST_TOKENS = 512, CACHED = 512 };

/* Operations of the largest call that is timed, and of one that is made less often. */
static const double MOST_WORK = 2.5e9, HEAVY_WORK = 2e8;
static const double LIMIT_SECONDS = 30; /* of one entry                                          */

/* A first look, one at calls that take milliseconds, and one that settles what the first left open. */
static const timing_rules look = {1e-4, 2e-3, 5}, heavy_look = {1e-4, 2e-3, 3}, long_look = {1e-4, 40e-3, 9};
static const double OPEN_FROM = 1.03, OPEN_TO = 1.5;

/* What the child tells; shared. */
typedef struct entry_times {
    bool done;
    int64_t tokens[GRAPH_SIZES];
    double seconds[GRAPH_SIZES][SIDES]; /* [0]: without any of them                                 */
} entry_times;

typedef struct measure_job {
    plan *p;
    measure_entry *entries;
    size_t count;
    /* Shared with the child. */
    struct measure_note {
        volatile size_t entry, side;
        tn_error why;
    } * note;
    entry_times *times;
} measure_job;

/* ---- in the child ---------------------------------------------------------------------------------------------- */

/* One side of an entry: a kernel (bound) or what happens without. */
typedef struct contender {
    const device *device;
    const measure_entry *entry;
    const tn_call *call;
    bool kernel;
    graph_binding bound[MEASURE_SITES];
} contender;

static tn_status call_once(void *ctx, arena *a, size_t turn, tn_error *err)
{
    const contender *c = ctx;
    size_t at = turn % c->entry->site_count;
    tn_call call = *c->call;
    call.site = &c->entry->sites[at]->site;
    return c->kernel ? run_bound_call(c->device, a, &c->bound[at], &call, err)
                     : run_site_call(c->device, a, c->entry->sites[at], &call, err);
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

/* Is any of them a little slower than the first? A neighbour of the program could be to blame. */
static bool is_open(const timing_side *sides, size_t fits)
{
    bool open = false;
    for (size_t i = 1; i <= fits; i++)
        open |= sides[i].seconds > OPEN_FROM * sides[0].seconds && sides[i].seconds < OPEN_TO * sides[0].seconds;
    return open;
}

static tn_status time_size(const measure_job *job, const measure_entry *e, int size, contender *all, entry_times *times)
{
    tn_error *err = &job->note->why;
    const tn_site *site = &e->sites[0]->site;
    timing_side *sides = calloc(e->fit_count + 1, sizeof *sides);
    int64_t tokens = tokens_of(site, size);
    inputs in = {0};
    check_case drawn = {.batch = 1, .tokens = tokens, .seed = (uint64_t)tokens};
    if (site->op == TN_OP_ATTENTION && size != GRAPH_MANY)
        drawn.past = CACHED;
    tn_status status = sides ? inputs_draw_case(&in, site, &drawn, err) : plan_no_memory(err);
    if (status == TN_OK)
        status = open_outputs(&in.call, err);
    for (size_t i = 0; i <= e->fit_count && status == TN_OK; i++) {
        all[i].call = &in.call;
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): plan_no_memory is a failure
        sides[i] = (timing_side){.call = call_once, .ctx = &all[i]};
    }
    const timing_rules *rules = status == TN_OK && inputs_operations(site, tokens) > HEAVY_WORK ? &heavy_look : &look;
    for (int looks = 0; looks < 2 && status == TN_OK; looks++) {
        status = timing_take_turns(job->p->target->device, sides, e->fit_count + 1, rules, &job->note->side, err);
        if (!is_open(sides, e->fit_count))
            break;
        rules = &long_look;
    }
    times->tokens[size] = tokens;
    for (size_t i = 0; i <= e->fit_count && status == TN_OK; i++)
        times->seconds[size][i] = sides[i].seconds;
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
        for (int size = 0; size < GRAPH_SIZES; size++) {
            t->tokens[size] = times->tokens[size];
            t->without[size] = times->seconds[size][0];
            t->kernel[size] = times->seconds[size][i + 1];
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
        for (size_t i = 0; i < e->site_count && side > 0 && status == TN_OK; i++)
            status = timing_bind(device, &e->sites[i]->site, e->fits[side - 1].fit->impl, &all[side].bound[i], err);
    }
    for (int size = 0; size < GRAPH_SIZES && status == TN_OK; size++)
        status = time_size(job, e, size, all, times);
    free(all);
    return status;
}

static int measure_child(void *ctx)
{
    const measure_job *job = ctx;
    tn_status status = TN_OK;
    int32_t threads = tn_thread_count();
    threads_limit(0);
    threads_set(threads);
    threads_serial(false);
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

tn_status measure_time(plan *p, measure_entry *entries, size_t count, tn_error *err)
{
    size_t bytes = sizeof(struct measure_note) + 64 + count * sizeof(entry_times);
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return plan_no_memory(err);
    measure_job job = {p, entries, count, (struct measure_note *)(void *)shared,
                       (entry_times *)(void *)(shared + (sizeof(struct measure_note) + 63) / 64 * 64)};
    bool again = true;
    while (again) {
        char how[256];
        job.note->why = (tn_error)TN_ERROR_INIT;
        bool all = guard_run_each(measure_child, &job, LIMIT_SECONDS, &job.note->entry, how, sizeof how) == TN_OK;
        for (size_t i = 0; i < count; i++) {
            if (entries[i].known || !job.times[i].done)
                continue;
            take_times(&entries[i], &job.times[i]);
            measure_settle(&entries[i]);
            measure_remember(p, &entries[i]);
            entries[i].known = true;
        }
        again = !all && blame(&job, how);
    }
    munmap(shared, bytes);
    return TN_OK;
}
