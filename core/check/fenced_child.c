/* Calling a kernel in a child process: every call of a trial, one behind the other. */
#include "check/fenced_child.h"

#include "device/confine.h"
#include "device/libraries.h"

#include <sys/mman.h>

/* Regions of two calls at a time: what they read and write, and their scratch. */
enum { CALL_REGIONS = 2 * (FENCED_PLACES + 1) };

static bool keeps_state(const fenced_child *c)
{
    return c->t->impl->traits & TN_KEEPS_STATE;
}

/* Once more with other inputs, when something changed for the first time: is it made ready once, or kept? */
static int turn_around(fenced_child *c, fenced_run *run, const fenced_prepared *p)
{
    fenced_call call;
    bool fresh;
    unsigned char *results = fenced_copy_results(run);
    if (!results)
        return 0;
    c->note->manner = ", made again with other inputs";
    if (fenced_open_call(c, run, p, true, &call) != 0 || fenced_watch_call(c, &call, &fresh) != 0)
        return 1;
    fenced_close_call(c, &call);
    fenced_restore_results(run, results);
    munmap(results, fenced_result_bytes(run) + 1);
    return 0;
}

/* last: of those that the team makes. */
static int one_run(fenced_child *c, fenced_run *run, fenced_prepared *p, bool last)
{
    fenced_call call;
    bool fresh = false;
    c->note->manner = "";
    if (fenced_open_call(c, run, p, false, &call) != 0)
        return 1;
    if (run->team > 1)
        fenced_gather(c);
    if (fenced_watch_call(c, &call, &fresh) != 0)
        return 1;
    fenced_close_call(c, &call);
    c->note->stage = STAGE_HOST;
    if (!fenced_host_same(c->host, c->team > 1 && (c->host_on_team++ == 0 || last)))
        return fenced_give_up(c->note, TN_E_KERNEL,
                              "left the processor so that the host computes other numbers after it");
    c->note->stage = STAGE_CALL;
    return fresh && !keeps_state(c) ? turn_around(c, run, p) : 0;
}

static bool is_last_on_team(const fenced_trial *t, size_t run)
{
    while (++run < t->run_count)
        if (t->runs[run].team > 1)
            return false;
    return true;
}

static int make_trial(fenced_child *c)
{
    const fenced_trial *t = c->t;
    for (c->note->run = 0; c->note->run < t->run_count; c->note->run++) {
        fenced_run *run = &t->runs[c->note->run];
        fenced_prepared *p = fenced_prepare(c, run->in->call.site);
        if (!p)
            return 1;
        c->note->stage = STAGE_CALL;
        c->note->site = p->site;
        fenced_use_team(c, run->team);
        if (one_run(c, run, p, is_last_on_team(t, c->note->run)) != 0)
            return 1;
        fenced_release(c, run, p);
    }
    if (fenced_look_at_edges(c) != 0)
        return 1;
    return fenced_again(c);
}

/* The child's own record. */
static fenced_child *start(const fenced_job *job)
{
    const fenced_trial *t = job->t;
    fenced_child *c = fenced_take_memory(sizeof *c);
    if (!c || !fenced_open_signals(c))
        return NULL;
    c->t = t;
    c->note = job->note;
    c->team = 1;
    c->regions = fenced_take_memory((CALL_REGIONS + t->run_count + 1) * sizeof *c->regions);
    c->sites = fenced_take_memory((t->run_count + 1) * sizeof *c->sites);
    fenced_give_stack(NULL, 0, 1);
    threads_watch(true);
    threads_changed();
    c->host = fenced_host_open();
    if (!(t->impl->traits & TN_KEEPS_STATE) && !t->plain)
        c->watch = state_open(__extension__(const void *) t->impl->forward);
    c->before = hoststate_save();
    return c->before && c->regions && c->sites ? c : NULL;
}

int fenced_child_main(void *ctx)
{
    const fenced_job *job = ctx;
    confine_enter(CONFINE_CALLS);
    fenced_child *c = start(job);
    if (!c)
        return fenced_give_up(job->note, TN_E_MEMORY, "no memory to check a kernel with; free some memory");
    unsigned long long libraries = libraries_loaded();
    bool stack_runs = libraries_stack_runs();
    int result = make_trial(c);
    job->note->loads = libraries_loaded() != libraries;
    if (result == 0 && job->note->loads && !stack_runs && libraries_stack_runs())
        return fenced_give_up(job->note, TN_E_KERNEL, "loaded a library that makes the program's stack executable");
    return result;
}
