/* Calling a kernel in a child process. The child lays out the inputs read-only, the outputs and the scratch between
 * guard pages; a signal handler tells which of them an access went beyond. */
#include "check/fenced_child.h"

#include "base/clock.h"
#include "base/convert.h"
#include "base/text.h"
#include "check/layout.h"
#include "device/confine.h"
#include "device/libraries.h"
#include "device/visit.h"
#include "op/op.h"
#include "run/planning.h"
#include "run/run.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

/* Where the signal handler looks: the low end of its stack points to it, for a handler has no argument of its own. */
enum { STACK_BYTES = 64 * 1024 };

/* Regions of two calls at a time: what they read and write, and their scratch. */
enum { CALL_REGIONS = 2 * (FENCED_PLACES + 1) };

/* ---- faults and time -------------------------------------------------------------------------------------------- */

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
    const fenced_child *c = *(fenced_child *const *)context->uc_stack.ss_sp;
    fenced_note *note = c->note;
    note->fault_writes = is_write(context);
    for (size_t i = 0; i < c->count; i++) {
        const fenced_region *r = &c->regions[i];
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

/* Without a stack of its own for the handler a fault still ends the child, and is told less well. */
void fenced_give_stack(void *child, int32_t thread, int32_t threads)
{
    (void)thread;
    (void)threads;
    fenced_child **memory = take_memory(STACK_BYTES);
    if (!memory)
        return;
    *memory = child;
    sigaltstack(&(stack_t){.ss_sp = memory, .ss_size = STACK_BYTES}, NULL);
}

static void on_time(int signal_number, siginfo_t *info, void *context_pointer)
{
    (void)signal_number;
    (void)info;
    const ucontext_t *context = context_pointer;
    const fenced_child *c = *(fenced_child *const *)context->uc_stack.ss_sp;
    c->note->overdue = true;
    _exit(1);
}

/* The clock is none that a kernel's alarm could stop, or that would count as left by it. */
void fenced_limit_time(fenced_child *c, double seconds)
{
    struct itimerspec left = {.it_value = {.tv_sec = (time_t)seconds, .tv_nsec = 1}};
    c->note->seconds = floor(seconds);
    timer_settime(c->clock, 0, &left, NULL);
}

/* ---- giving up -------------------------------------------------------------------------------------------------- */

int fenced_give_up(fenced_note *note, tn_status status, const char *text)
{
    note->status = status;
    text_cut(note->message, sizeof note->message, "%s", text);
    return 1;
}

static int give_up_error(fenced_note *note, tn_status status, tn_error *err)
{
    char text[sizeof note->message];
    visit_seal(err);
    text_cut(text, sizeof text, "failed: %s", err->message);
    return fenced_give_up(note, status, status == TN_DECLINED ? err->message : text);
}

/* The kernel failed: whatever it returned is no status of ours. */
static int give_up_failed(fenced_note *note, tn_status status, tn_error *err)
{
    if (!err->message[0])
        tn_fail(err, TN_E_KERNEL, NULL, "it returned %d and says no more", (int)status);
    return give_up_error(note, TN_E_KERNEL, err);
}

/* Did it leave anything of the process, or of a thread of the team, other than it was? */
static bool changed_process(fenced_child *c)
{
    char what[256], text[320];
    unsigned workers = threads_changed();
    bool differs = hoststate_differs(c->before, false, what, sizeof what);
    if (waitid(P_ALL, 0, &(siginfo_t){0}, WEXITED | WNOHANG | WNOWAIT) == 0) {
        fenced_give_up(c->note, TN_E_KERNEL, "left a process behind");
        return true;
    }
    if (!differs && !workers)
        return false;
    if (!differs)
        text_cut(what, sizeof what, "%s", workers & THREADS_CONTROL ? "floating-point control" : "signal mask");
    text_cut(text, sizeof text, "left the %s changed", what);
    fenced_give_up(c->note, TN_E_KERNEL, text);
    return true;
}

static bool keeps_state(const fenced_child *c)
{
    return c->t->impl->traits & TN_KEEPS_STATE;
}

/* After a call: what its variables say. */
static int judge_state(fenced_child *c, bool first, bool *fresh)
{
    char what[160], text[320];
    state_change change = state_after(c->watch, first, what, sizeof what);
    *fresh = change == STATE_FRESH;
    if (change != STATE_KEPT)
        return 0;
    text_cut(text, sizeof text, "keeps state between calls: %s changes in each; keep it in scratch or in packed memory",
             what);
    return fenced_give_up(c->note, TN_E_KERNEL, text);
}

/* ---- planning --------------------------------------------------------------------------------------------------- */

/* What its plan answered, asked when the clock said began. One that takes a while is not noticed when it is asked once;
 * asked for every call it keeps the host waiting. */
static tn_status planned(fenced_child *c, double began, tn_status status, tn_error *err)
{
    c->note->plan_seconds += clock_seconds() - began;
    if (!c->t->patience || c->note->plan_seconds <= *c->t->patience)
        return status;
    tn_error_clear(err);
    return tn_fail(err, TN_E_KERNEL, NULL, "its plans took %.1f s so far, and a plugin has no more time for them",
                   c->note->plan_seconds);
}

/* ---- laying a call out ------------------------------------------------------------------------------------------ */

static fenced_region *add_region(fenced_child *c, fenced_kind kind)
{
    fenced_region *r = &c->regions[c->count++];
    *r = (fenced_region){.kind = kind};
    return r;
}

/* Changes the sign of every element: the highest bit, in the last byte on this machine. */
static void turn(const tn_tensor *t, const layout *b)
{
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t i = 0; i < b->count; i++)
        for (int64_t j = 0; j < b->length; j++)
            ((unsigned char *)t->data)[(size_t)(i * b->step + j + 1) * size - 1] ^= 0x80;
}

/* What it reads; what it writes was mapped before. */
static tn_status place_inputs(fenced_child *c, fenced_run *run, bool turned, tn_error *err)
{
    const op_row *row = op_find(run->call.op);
    for (size_t i = 0; i < run->place_count; i++) {
        fenced_place *p = &run->places[i];
        if (!p->from)
            continue;
        layout b = layout_set(p->tensors, run->padded);
        if (p->same >= 0) {
            p->tensors->data = run->places[p->same].tensors->data;
            layout_copy(&b, p->from, p->tensors);
        } else {
            fenced_region *r = add_region(c, p->kind);
            tn_status status = fenced_open_place(run, p, &r->fence, &c->spares, err);
            if (status != TN_OK)
                return status;
        }
        int input = p->kind == FENCED_INPUT ? (int)(p->tensors - run->call.in) : -1;
        if (turned &&
            (p->kind == FENCED_UPSTREAM || (input >= 0 && op_input_has_gradient(row, input, p->tensors->dtype))))
            turn(p->tensors, &b);
        if (p->same < 0)
            fence_read_only(&c->regions[c->count - 1].fence, NULL);
    }
    return TN_OK;
}

/* Memory that a kernel asked for. Without much of it, it is the kernel that asks for too much. */
static tn_status take_fence(fence_spares *spares, fence *f, size_t bytes, fence_side side, const char *what,
                            tn_error *err)
{
    tn_status status =
        spares ? fence_open_spare(spares, f, bytes, 64, 0, side, err) : fence_open(f, bytes, 64, 0, side, false, err);
    if (status == TN_OK || bytes < PLANNING_LARGE)
        return status;
    tn_error_clear(err);
    return tn_fail(err, TN_E_KERNEL, NULL, "it asks for %zu bytes of %s, which cannot be had here", bytes, what);
}

int fenced_open_call(fenced_child *c, fenced_run *run, const fenced_prepared *site, bool turned, fenced_call *call)
{
    const fenced_trial *t = c->t;
    tn_error err = TN_ERROR_INIT;
    tn_plan like = site->plan;
    if (!t->bound)
        like.threads = run->threads > 0 ? run->threads : run->team;
    *call = (fenced_call){.run = run, .site = site, .first = c->count};
    call->plan = like;
    tn_status status = TN_OK;
    double began = clock_seconds();
    if (!run->whole)
        status = run_plan_for(t->impl, site->site, &like, run->in->tokens, &call->plan, &err);
    status = planned(c, began, status, &err);
    if (status != TN_OK)
        return give_up_error(c->note, status, &err);
    for (size_t i = 0; i < run->place_count; i++)
        if (!run->places[i].from)
            add_region(c, run->places[i].kind)->fence = run->places[i].fence;
    call->inputs = c->count;
    size_t bytes = run->wanted ? call->plan.backward_scratch_bytes : call->plan.scratch_bytes;
    fenced_region *scratch = add_region(c, FENCED_SCRATCH);
    call->scratch = &scratch->fence;
    if (bytes > 0 && (status = take_fence(&c->spares, &scratch->fence, bytes, run->side, "scratch", &err)) == TN_OK)
        fence_fill(&scratch->fence, (fence_contents)(c->calls % FENCE_CONTENTS));
    if (status == TN_OK)
        status = place_inputs(c, run, turned, &err);
    run->call.queue = t->device->queue;
    run->call.packed = site->packed;
    run->call.scratch = scratch->fence.data;
    return status == TN_OK ? 0 : give_up_error(c->note, status, &err);
}

void fenced_close_call(fenced_child *c, fenced_call *call)
{
    for (size_t i = call->inputs; i < c->count; i++)
        fence_give_back(&c->spares, &c->regions[i].fence);
    c->count = call->first;
}

tn_status fenced_make_call(const fenced_child *c, const fenced_call *call, tn_error *err)
{
    const fenced_trial *t = c->t;
    call->run->call.plan = &call->plan;
    tn_status status = (call->run->wanted ? t->impl->backward : t->impl->forward)(&call->run->call, err);
    return status == TN_OK ? device_sync(t->device, err) : status;
}

int fenced_watch_call(fenced_child *c, fenced_call *call, bool *fresh)
{
    tn_error err = TN_ERROR_INIT;
    bool *called = &c->called[call->run->wanted ? 2 : 1];
    fenced_limit_time(c, call->run->seconds);
    state_before(c->watch, call->plan.user, sizeof call->plan.user / sizeof *call->plan.user);
    tn_status status = fenced_make_call(c, call, &err);
    c->calls++;
    if (status != TN_OK)
        return give_up_failed(c->note, status, &err);
    if (judge_state(c, !*called, fresh) != 0 || changed_process(c))
        return 1;
    *called = true;
    if (call->scratch->map && !fence_intact(call->scratch))
        return fenced_give_up(c->note, TN_E_KERNEL, "wrote outside its scratch");
    return 0;
}

/* ---- what a run has written ------------------------------------------------------------------------------------- */

static size_t result_bytes(const fenced_run *run)
{
    size_t bytes = 0;
    for (size_t i = 0; i < run->place_count; i++)
        bytes += run->places[i].from ? 0 : run->places[i].fence.bytes;
    return bytes;
}

unsigned char *fenced_copy_results(const fenced_run *run)
{
    unsigned char *copy = take_memory(result_bytes(run) + 1);
    size_t at = 0;
    for (size_t i = 0; copy && i < run->place_count; i++) {
        const fenced_place *p = &run->places[i];
        if (!p->from)
            memcpy(copy + at, p->fence.data, p->fence.bytes);
        at += p->from ? 0 : p->fence.bytes;
    }
    return copy;
}

bool fenced_same_results(const fenced_run *run, const unsigned char *copy)
{
    bool same = true;
    for (size_t i = 0; i < run->place_count; i++) {
        const fenced_place *p = &run->places[i];
        same = same && (p->from || !memcmp(copy, p->fence.data, p->fence.bytes));
        copy += p->from ? 0 : p->fence.bytes;
    }
    return same;
}

void fenced_restore_results(const fenced_run *run, const unsigned char *copy)
{
    for (size_t i = 0; i < run->place_count; i++) {
        const fenced_place *p = &run->places[i];
        if (!p->from)
            memcpy(p->fence.data, copy, p->fence.bytes);
        copy += p->from ? 0 : p->fence.bytes;
    }
}

/* ---- planning and packing --------------------------------------------------------------------------------------- */

int fenced_watch_plan(fenced_child *c, const tn_site *site, tn_plan *plan, const char *manner)
{
    tn_error err = TN_ERROR_INIT;
    bool fresh, first = !c->called[0];
    c->note->stage = STAGE_PLAN;
    c->note->manner = manner;
    fenced_limit_time(c, CHECK_LEAST_SECONDS);
    state_before(c->watch, NULL, 0);
    double began = clock_seconds();
    tn_status status = c->t->impl->plan ? planning_ask(c->t->impl, site, plan, &err) : TN_OK;
    status = planned(c, began, status, &err);
    if (status != TN_OK)
        return status == TN_DECLINED ? give_up_error(c->note, status, &err) : give_up_failed(c->note, status, &err);
    if (judge_state(c, first, &fresh) != 0 || changed_process(c))
        return 1;
    c->called[0] = true;
    return 0;
}

/* As the host would. */
static int plan_and_pack(fenced_child *c, fenced_prepared *p)
{
    const fenced_trial *t = c->t;
    tn_error err = TN_ERROR_INIT;
    tn_status status = TN_OK;
    p->plan = (tn_plan){.size = sizeof p->plan, .threads = t->threads, .max_tokens = t->max_tokens};
    if (fenced_watch_plan(c, p->site, &p->plan, "") != 0)
        return 1;
    c->note->stage = STAGE_PACK;
    fenced_limit_time(c, fenced_seconds((double)p->plan.packed_bytes));
    p->packed_region = c->count;
    fenced_region *r = add_region(c, FENCED_PACKED);
    if (p->plan.packed_bytes > 0)
        status = take_fence(NULL, &r->fence, p->plan.packed_bytes, FENCE_END, "packed weights", &err);
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
        return fenced_give_up(c->note, TN_E_KERNEL, "wrote outside its packed memory");
    if (r->fence.map)
        fence_read_only(&r->fence, NULL);
    p->packed = r->fence.data;
    return 0;
}

/* The site of a call, prepared when it is met for the first time; NULL: that failed. */
static fenced_prepared *prepare(fenced_child *c, const tn_site *site)
{
    const fenced_trial *t = c->t;
    for (size_t i = 0; i < c->site_count; i++)
        if (c->sites[i].site == site)
            return &c->sites[i];
    fenced_prepared *p = &c->sites[c->site_count++];
    p->site = c->note->site = site;
    fenced_params_protect(site);
    p->edges = fenced_params_edges(site);
    if (site == t->site && t->bound) {
        p->plan = t->bound->plan;
        p->packed = t->bound->packed;
        return p;
    }
    return plan_and_pack(c, p) == 0 ? p : NULL;
}

/* A site that is met once needs its packed memory no more. */
static void release(fenced_child *c, const fenced_run *run, fenced_prepared *p)
{
    if (!run->only || (p->site == c->t->site && c->t->bound))
        return;
    fence_close(&c->regions[p->packed_region].fence);
    p->packed = NULL;
}

/* Which call changed them is not known: the last is blamed. */
static int look_at_edges(fenced_child *c)
{
    for (size_t i = 0; i < c->site_count; i++)
        if (fenced_params_edges(c->sites[i].site) != c->sites[i].edges) {
            c->note->run -= c->note->run > 0;
            return fenced_give_up(c->note, TN_E_KERNEL, "wrote to its parameters, which are read-only");
        }
    return 0;
}

/* ---- all calls -------------------------------------------------------------------------------------------------- */

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
    munmap(results, result_bytes(run) + 1);
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
        fenced_prepared *p = prepare(c, run->in->call.site);
        if (!p)
            return 1;
        c->note->stage = STAGE_CALL;
        c->note->site = p->site;
        fenced_use_team(c, run->team);
        if (one_run(c, run, p, is_last_on_team(t, c->note->run)) != 0)
            return 1;
        release(c, run, p);
    }
    if (look_at_edges(c) != 0)
        return 1;
    return fenced_again(c);
}

/* The child's own record. */
static fenced_child *start(const fenced_job *job)
{
    const fenced_trial *t = job->t;
    fenced_child *c = take_memory(sizeof *c);
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction late = {.sa_sigaction = on_time, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    if (!c || sigaction(SIGSEGV, &fault, NULL) != 0 || sigaction(SIGALRM, &late, NULL) != 0 ||
        timer_create(CLOCK_MONOTONIC, &event, &c->clock) != 0)
        return NULL;
    c->t = t;
    c->note = job->note;
    c->team = 1;
    c->regions = take_memory((CALL_REGIONS + t->run_count + 1) * sizeof *c->regions);
    c->sites = take_memory((t->run_count + 1) * sizeof *c->sites);
    fenced_give_stack(c, 0, 1);
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
