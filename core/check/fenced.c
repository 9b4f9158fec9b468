/* Trying a kernel in a child process (fenced_child.c): how that ended, in words. */
#include "base/text.h"
#include "check/fenced_child.h"
#include "check/layout.h"
#include "device/guard.h"
#include "eager/gemm.h"
#include "run/guest.h"

#include <sys/mman.h>

#define LACKS_THREADS                                                                                                  \
    "it keeps threads of its own in this process, which the child process that tries it lacks; use the host's "        \
    "(tn_parallel), or OpenMP"

static void describe_fault(const fenced_note *note, char *text, size_t size)
{
    static const char *const names[] = {"",
                                        "its inputs",
                                        "its outputs",
                                        "the gradients of its outputs",
                                        "its gradients",
                                        "its scratch",
                                        "its packed memory",
                                        "its parameters"};
    const char *name = names[note->fault_kind];
    if (note->fault_kind == FENCED_OTHER)
        text_cut(text, size, "crashed with SIGSEGV");
    else if (note->fault_inside)
        text_cut(text, size, "wrote to %s, which are read-only", name);
    else
        text_cut(text, size, "%s outside %s", note->fault_writes ? "wrote" : "read", name);
}

static tn_status explain(const fenced_trial *t, const fenced_note *note, const char *ending, tn_error *err)
{
    char text[512], when[64] = "";
    const fenced_run *run = note->stage >= STAGE_CALL && note->run < t->run_count ? &t->runs[note->run] : NULL;
    const char *stage = run ? run->wanted ? "backward" : "forward" : note->stage == STAGE_PACK ? "pack" : "plan";
    const char *host = note->stage == STAGE_HOST && !note->message[0] ? "what the host computes after it " : "";
    if (note->fault)
        describe_fault(note, text, sizeof text);
    else if (note->overdue)
        text_cut(text, sizeof text, "did not finish within %g s%s", note->seconds,
                 guest_threads_of(t->impl, false) == GUEST_NONE ? "" : ": " LACKS_THREADS);
    else
        text_cut(text, sizeof text, "%s", note->message[0] ? note->message : ending);
    if (run)
        text_cut(when, sizeof when, " (%lld tokens), %d thread%s", (long long)run->in->tokens, (int)run->team,
                 run->team == 1 ? "" : "s");
    tn_status status = note->message[0] ? note->status : TN_E_KERNEL;
    return tn_fail(err, status, note->site ? note->site->path : t->site->path, "%s: %s%s%s%s", stage, host, text, when,
                   note->manner ? note->manner : "");
}

/* Writes that landed on the part of a page that is not the output's, or between its rows. */
static tn_status look_around(const fenced_trial *t, tn_error *err)
{
    for (size_t i = 0; i < t->run_count; i++)
        for (size_t j = 0; j < t->runs[i].place_count; j++) {
            const fenced_run *run = &t->runs[i];
            const fenced_place *p = &run->places[j];
            bool intact = p->from || fence_intact(&p->fence);
            for (int64_t k = 0; intact && !p->from && k < p->count; k++) {
                layout b = layout_set(&p->tensors[k], run->padded);
                intact = layout_gaps_intact(&b, &p->tensors[k]);
            }
            if (!intact)
                return tn_fail(err, TN_E_KERNEL, t->site->path, "%s (%lld tokens), %d thread%s",
                               run->wanted ? "backward: wrote outside its gradients"
                                           : "forward: wrote outside its outputs",
                               (long long)run->in->tokens, (int)run->team, run->team == 1 ? "" : "s");
        }
    return TN_OK;
}

static double all_seconds(const fenced_trial *t)
{
    enum { FIXED = 10 };
    double seconds = CHECK_LEAST_SECONDS * FIXED;
    for (size_t i = 0; i < t->run_count; i++)
        seconds += CHECK_LEAST_SECONDS + 2 * t->runs[i].seconds;
    return seconds;
}

static bool go_on(void *ctx)
{
    const fenced_trial *t = ((fenced_job *)ctx)->t;
    return !t->go_on || t->go_on(t->go_on_ctx);
}

tn_status fenced_execute(fenced_trial *t, tn_error *err)
{
    fenced_note *note = mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (note == MAP_FAILED)
        return tn_fail(err, TN_E_MEMORY, t->site->path, "no memory to check a kernel with; free some memory");
    fenced_job job = {t, note};
    fenced_host_open();
    gemm_prepare((tn_dtype)t->site->meaning[TN_AXIS_DTYPE]);
    if (guest_threads_of(t->impl, false) == GUEST_HUNG) {
        munmap(note, sizeof *note);
        return tn_fail(err, TN_E_KERNEL, t->site->path, "cannot be tried: " LACKS_THREADS);
    }
    char ending[256];
    tn_status status = guard_run_each(fenced_child_main, &job, all_seconds(t), NULL, go_on, ending, sizeof ending);
    /* A child that hangs once may have been made while a thread of the program held a lock, or starved. */
    if (status != TN_OK && note->overdue && guest_threads_of(t->impl, true) == GUEST_NONE) {
        *note = (fenced_note){0};
        status = guard_run_each(fenced_child_main, &job, all_seconds(t), NULL, go_on, ending, sizeof ending);
    }
    t->busy = note->team_runs > 0 && note->side_by_side == 0;
    t->loads = note->loads;
    if (t->patience)
        *t->patience -= note->plan_seconds;
    if (status == TN_OK)
        status = look_around(t, err);
    else if (status == TN_E_KERNEL)
        status = explain(t, note, ending, err);
    else
        tn_fail(err, status, t->site->path, "%s", ending); /* nothing began: no verdict                */
    munmap(note, sizeof *note);
    return status;
}
