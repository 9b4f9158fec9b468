/* Calling a kernel in a child process. The child lays out the inputs read-only, the outputs and the scratch between
 * guard pages; a signal handler tells which of them an access went beyond. */
#include "device/confine.h"
#include "device/guard.h"
#include "device/hoststate.h"
#include "check/fenced.h"
#include "op/op.h"
#include "check/layout.h"
#include "run/run.h"
#include "base/text.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

typedef enum fenced_stage { STAGE_PLAN, STAGE_PACK, STAGE_CALL } fenced_stage;

/* What the child tells; shared. */
typedef struct fenced_note {
    fenced_stage stage;
    size_t run;
    const tn_site *site;
    double seconds; /* limit of what it does now                                                   */
    bool overdue;
    tn_status status;
    char message[512];
    bool fault, fault_writes, fault_inside;
    fenced_kind fault_kind;
} fenced_note;

typedef struct region {
    fence fence;
    fenced_kind kind;
} region;

/* Where the signal handler looks: the low end of its stack points to it, for a handler has no argument of its own. */
enum { REGIONS = FENCED_PLACES + 1 + FENCED_SITES, STACK_BYTES = 64 * 1024 };

/* A site that was planned and packed. */
typedef struct prepared {
    const tn_site *site;
    tn_plan plan;
    const void *packed;
    uint64_t edges; /* of its parameters                                                          */
} prepared;

typedef struct child_state {
    fenced_note *note;
    region regions[REGIONS];
    size_t count;
    prepared sites[FENCED_SITES];
    size_t site_count;
    int32_t team;
    timer_t clock;
    hoststate *before;
} child_state;

/* ---- in the child --------------------------------------------------------------------------------------- */

static bool is_write(const ucontext_t *context)
{
#if defined(__x86_64__)
    return context->uc_mcontext.gregs[REG_ERR] & 2; /* the page fault's error code */
#else
    (void)context;
    return true;
#endif
}

static void on_fault(int signal_number, siginfo_t *info, void *context_pointer)
{
    (void)signal_number;
    const ucontext_t *context = context_pointer;
    const child_state *c = *(child_state *const *)context->uc_stack.ss_sp;
    fenced_note *note = c->note;
    note->fault_writes = is_write(context);
    for (size_t i = 0; i < c->count; i++) {
        const region *r = &c->regions[i];
        const unsigned char *address = info->si_addr;
        if (!fence_contains(&r->fence, address))
            continue;
        note->fault_kind = r->kind;
        note->fault_inside = address >= r->fence.data && address < r->fence.data + r->fence.bytes;
    }
    if (note->fault_kind == FENCED_OTHER && note->site && fenced_params_contain(note->site, info->si_addr)) {
        note->fault_kind = FENCED_PARAMS;
        note->fault_inside = true;
    }
    note->fault = true;
    _exit(1);
}

static void *take_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Gives a thread a stack for the handler. Without one a fault still ends the child, and is told less well. */
static void give_stack(void *ctx, int32_t thread, int32_t threads)
{
    (void)thread;
    (void)threads;
    child_state **memory = take_memory(STACK_BYTES);
    if (!memory)
        return;
    *memory = ctx;
    sigaltstack(&(stack_t){.ss_sp = memory, .ss_size = STACK_BYTES}, NULL);
}

static void on_time(int signal_number, siginfo_t *info, void *context_pointer)
{
    (void)signal_number;
    (void)info;
    const ucontext_t *context = context_pointer;
    const child_state *c = *(child_state *const *)context->uc_stack.ss_sp;
    c->note->overdue = true;
    _exit(1);
}

/* What it does from now on has this much time. The clock is none that a kernel's alarm could stop, or that would count
 * as left by it. */
static void limit_time(child_state *c, double seconds)
{
    struct itimerspec left = {.it_value = {.tv_sec = (time_t)seconds, .tv_nsec = 1}};
    c->note->seconds = floor(seconds);
    timer_settime(c->clock, 0, &left, NULL);
}

/* The child's own record. */
static child_state *start_child(fenced_note *note)
{
    child_state *c = take_memory(sizeof *c);
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction late = {.sa_sigaction = on_time, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    if (!c || sigaction(SIGSEGV, &fault, NULL) != 0 || sigaction(SIGALRM, &late, NULL) != 0 ||
        timer_create(CLOCK_MONOTONIC, &event, &c->clock) != 0)
        return NULL;
    c->note = note;
    c->team = 1;
    give_stack(c, 0, 1);
    threads_watch(true);
    threads_changed();
    c->before = hoststate_save();
    return c->before ? c : NULL;
}

/* A team of more than one is whole in every region: what goes wrong between threads shall go wrong here. */
static void use_team(child_state *c, int32_t team)
{
    if (team == c->team)
        return;
    c->team = team;
    threads_serial(team == 1);
    if (team == 1)
        return;
    threads_limit(0);
    threads_set(team);
    threads_strict(true);
    tn_parallel(give_stack, c);
}

static region *add_region(child_state *c, fenced_kind kind)
{
    region *r = &c->regions[c->count++];
    *r = (region){.kind = kind};
    return r;
}

static int give_up(fenced_note *note, tn_status status, const char *text)
{
    note->status = status;
    text_cut(note->message, sizeof note->message, "%s", text);
    return 1;
}

static int give_up_error(fenced_note *note, tn_status status, const tn_error *err)
{
    char text[sizeof note->message];
    text_cut(text, sizeof text, "failed: %s", err->message);
    return give_up(note, status, status == TN_DECLINED ? err->message : text);
}

/* The kernel failed: whatever it returned is no status of ours. */
static int give_up_failed(fenced_note *note, tn_status status, tn_error *err)
{
    if (!err->message[0])
        tn_fail(err, TN_E_KERNEL, NULL, "it returned %d and says no more", (int)status);
    return give_up_error(note, TN_E_KERNEL, err);
}

/* Did it leave anything of the process, or of a thread of the team, other than it was? */
static bool changed_process(child_state *c)
{
    char what[256], text[320];
    unsigned workers = threads_changed();
    bool differs = hoststate_differs(c->before, false, what, sizeof what);
    if (!differs && !workers)
        return false;
    if (!differs)
        text_cut(what, sizeof what, "%s", workers & THREADS_CONTROL ? "floating-point control" : "signal mask");
    text_cut(text, sizeof text, "left the %s changed", what);
    give_up(c->note, TN_E_KERNEL, text);
    return true;
}

/* What it reads; what it writes was mapped before. */
static tn_status place_inputs(child_state *c, fenced_run *run, tn_error *err)
{
    for (size_t i = 0; i < run->place_count; i++) {
        fenced_place *p = &run->places[i];
        if (p->same >= 0) {
            layout b = layout_set(p->tensors, run->padded);
            p->tensors->data = run->places[p->same].tensors->data;
            layout_copy(&b, p->from, p->tensors);
        }
        if (p->same >= 0 || !p->from)
            continue;
        region *r = add_region(c, p->kind);
        tn_status status = fenced_open_place(run, p, &r->fence, false, err);
        if (status != TN_OK)
            return status;
        fence_read_only(&r->fence, NULL);
    }
    return TN_OK;
}

static int one_run(const fenced_trial *t, child_state *c, fenced_run *run, const prepared *p)
{
    size_t before = c->count;
    tn_error err = TN_ERROR_INIT;
    tn_plan like = p->plan;
    if (!t->bound)
        like.threads = run->threads > 0 ? run->threads : run->team;
    tn_plan tight = run->whole ? like : run_plan_for(t->impl, p->site, &like, run->in->tokens);
    tn_status status = TN_OK;
    for (size_t i = 0; i < run->place_count; i++)
        if (!run->places[i].from)
            add_region(c, run->places[i].kind)->fence = run->places[i].fence;
    size_t written = c->count, scratch_bytes = run->wanted ? tight.backward_scratch_bytes : tight.scratch_bytes;
    region *scratch = add_region(c, FENCED_SCRATCH);
    if (scratch_bytes > 0 && (status = fence_open(&scratch->fence, scratch_bytes, 64, run->side, false, &err)) == TN_OK)
        fence_fill(&scratch->fence);
    if (status == TN_OK)
        status = place_inputs(c, run, &err);
    if (status != TN_OK)
        return give_up_error(c->note, status, &err);
    run->call.queue = t->device->queue;
    run->call.plan = &tight;
    run->call.packed = p->packed;
    run->call.scratch = scratch->fence.data;
    limit_time(c, run->seconds);
    status = (run->wanted ? t->impl->backward : t->impl->forward)(&run->call, &err);
    if (status == TN_OK)
        status = device_sync(t->device, &err);
    if (status != TN_OK)
        return give_up_failed(c->note, status, &err);
    if (changed_process(c))
        return 1;
    if (scratch->fence.map && !fence_intact(&scratch->fence))
        return give_up(c->note, TN_E_KERNEL, "wrote outside its scratch");
    for (size_t i = written; i < c->count; i++)
        fence_close(&c->regions[i].fence);
    c->count = before;
    return 0;
}

/* Plans and packs as the host would. */
static int plan_and_pack(const fenced_trial *t, child_state *c, prepared *p)
{
    tn_error err = TN_ERROR_INIT;
    tn_status status = TN_OK;
    p->plan = (tn_plan){.size = sizeof p->plan, .threads = t->threads, .max_tokens = t->max_tokens};
    c->note->stage = STAGE_PLAN;
    limit_time(c, CHECK_LEAST_SECONDS);
    if (t->impl->plan && (status = t->impl->plan(p->site, &p->plan, &err)) != TN_OK)
        return status == TN_DECLINED ? give_up_error(c->note, status, &err) : give_up_failed(c->note, status, &err);
    if (changed_process(c))
        return 1;
    c->note->stage = STAGE_PACK;
    limit_time(c, fenced_seconds((double)p->plan.packed_bytes));
    region *r = add_region(c, FENCED_PACKED);
    if (p->plan.packed_bytes > 0)
        status = fence_open(&r->fence, p->plan.packed_bytes, 64, FENCE_END, false, &err);
    if (status != TN_OK)
        return give_up_error(c->note, status, &err);
    if (p->plan.packed_bytes > 0 && t->impl->pack)
        status = t->impl->pack(p->site, &p->plan, r->fence.data, t->device->queue, &err);
    if (status == TN_OK)
        status = device_sync(t->device, &err);
    if (status != TN_OK)
        return give_up_failed(c->note, status, &err);
    if (changed_process(c))
        return 1;
    if (r->fence.map && !fence_intact(&r->fence))
        return give_up(c->note, TN_E_KERNEL, "wrote outside its packed memory");
    if (r->fence.map)
        fence_read_only(&r->fence, NULL);
    p->packed = r->fence.data;
    return 0;
}

/* The site of a call, prepared when it is met for the first time; NULL: that failed. */
static const prepared *prepare(const fenced_trial *t, child_state *c, const tn_site *site)
{
    for (size_t i = 0; i < c->site_count; i++)
        if (c->sites[i].site == site)
            return &c->sites[i];
    prepared *p = &c->sites[c->site_count++];
    p->site = c->note->site = site;
    fenced_params_protect(site);
    p->edges = fenced_params_edges(site);
    if (site == t->site && t->bound) {
        p->plan = t->bound->plan;
        p->packed = t->bound->packed;
        return p;
    }
    return plan_and_pack(t, c, p) == 0 ? p : NULL;
}

/* Which call changed them is not known: the last is blamed. */
static int look_at_edges(child_state *c)
{
    for (size_t i = 0; i < c->site_count; i++)
        if (fenced_params_edges(c->sites[i].site) != c->sites[i].edges) {
            c->note->run--;
            return give_up(c->note, TN_E_KERNEL, "wrote to its parameters, which are read-only");
        }
    return 0;
}

static int make_trial(const fenced_trial *t, child_state *c)
{
    for (c->note->run = 0; c->note->run < t->run_count; c->note->run++) {
        fenced_run *run = &t->runs[c->note->run];
        const prepared *p = prepare(t, c, run->in->call.site);
        if (!p)
            return 1;
        c->note->stage = STAGE_CALL;
        c->note->site = p->site;
        use_team(c, run->team);
        if (one_run(t, c, run, p) != 0)
            return 1;
    }
    return look_at_edges(c);
}

typedef struct child_job {
    const fenced_trial *t;
    fenced_note *note;
} child_job;

static int child_main(void *ctx)
{
    const child_job *job = ctx;
    confine_enter(CONFINE_CALLS);
    child_state *c = start_child(job->note);
    if (!c)
        return give_up(job->note, TN_E_MEMORY, "no memory to check a kernel with; free some memory");
    return make_trial(job->t, c);
}

/* ---- in the parent ---------------------------------------------------------------------------------------- */

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
    const fenced_run *run = note->stage == STAGE_CALL && note->run < t->run_count ? &t->runs[note->run] : NULL;
    const char *stage = run ? run->wanted ? "backward" : "forward" : note->stage == STAGE_PACK ? "pack" : "plan";
    if (note->fault)
        describe_fault(note, text, sizeof text);
    else if (note->overdue)
        text_cut(text, sizeof text, "did not finish within %g s", note->seconds);
    else
        text_cut(text, sizeof text, "%s", note->message[0] ? note->message : ending);
    if (run)
        text_cut(when, sizeof when, " (%lld tokens), %d thread%s", (long long)run->in->tokens, (int)run->team,
                 run->team == 1 ? "" : "s");
    tn_status status = note->message[0] ? note->status : TN_E_KERNEL;
    return tn_fail(err, status, note->site ? note->site->path : t->site->path, "%s: %s%s", stage, text, when);
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

double fenced_seconds(double operations)
{
    double plain = operations < CHECK_SLOWEST_LARGE ? operations : CHECK_SLOWEST_LARGE;
    return CHECK_LEAST_SECONDS + plain / CHECK_SLOWEST + (operations - plain) / CHECK_SLOWEST_LARGE;
}

/* Each step has its limit in the child; this is for one that the child's clock does not reach. */
static double all_seconds(const fenced_trial *t)
{
    double seconds = CHECK_LEAST_SECONDS * (1 + FENCED_SITES);
    for (size_t i = 0; i < t->run_count; i++)
        seconds += t->runs[i].seconds;
    return seconds;
}

tn_status fenced_execute(fenced_trial *t, tn_error *err)
{
    fenced_note *note = mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (note == MAP_FAILED)
        return tn_fail(err, TN_E_MEMORY, t->site->path, "no memory to check a kernel with; free some memory");
    child_job job = {t, note};
    char ending[256];
    tn_status status = guard_run(child_main, &job, all_seconds(t), ending, sizeof ending);
    /* A child that hangs once may have been made while a thread of the program held a lock, or starved. */
    if (status != TN_OK && note->overdue) {
        *note = (fenced_note){0};
        status = guard_run(child_main, &job, all_seconds(t), ending, sizeof ending);
    }
    status = status == TN_OK ? look_around(t, err) : explain(t, note, ending, err);
    munmap(note, sizeof *note);
    return status;
}
