/* Calling a kernel in a child process. The child lays out the inputs read-only, the outputs and the scratch between
 * guard pages; a signal handler tells which of them an access went beyond. */
#include "device/guard.h"
#include "check/fenced.h"
#include "op/op.h"
#include "check/layout.h"
#include "run/run.h"
#include "base/text.h"

#include <fenv.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

typedef enum fenced_stage { STAGE_PLAN, STAGE_PACK, STAGE_CALL } fenced_stage;

/* What the child tells; shared. */
typedef struct fenced_note {
    const fenced_trial *trial;
    fenced_stage stage;
    size_t run;
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
enum { REGIONS = FENCED_PLACES + 2, STACK_BYTES = 64 * 1024 };
typedef struct child_state {
    fenced_note *note;
    region regions[REGIONS];
    size_t count;
} child_state;

/* ---- places ---------------------------------------------------------------------------------------------- */

static void add_place(fenced_run *run, fenced_kind kind, tn_tensor *tensors, int64_t count, const tn_tensor *from,
                      int same)
{
    run->places[run->place_count++] = (fenced_place){kind, tensors, count, from, same, {0}};
}

/* What the kernel writes comes first: place i is output i then. */
static void list_forward(fenced_run *run)
{
    for (int i = 0; i < run->call.out_count; i++)
        add_place(run, FENCED_OUTPUT, &run->call.out[i], 1, NULL, -1);
    for (int i = 0; i < run->call.in_count; i++)
        add_place(run, FENCED_INPUT, &run->call.in[i], 1, &run->in->call.in[i], i < run->in_place ? i : -1);
}

static tn_status copy_params(fenced_run *run, tn_error *err)
{
    int64_t total = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        total += run->grads.param[role].count;
    run->params = calloc((size_t)total + 1, sizeof *run->params);
    if (!run->params)
        return tn_fail(err, TN_E_MEMORY, NULL, "no memory to check a kernel with; free some memory");
    tn_tensor *next = run->params;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &run->grads.param[role];
        if (p->count > 0)
            memcpy(next, p->tensors, (size_t)p->count * sizeof *next);
        p->tensors = next;
        next += p->count;
    }
    return TN_OK;
}

/* Place i is the gradient of input i where in-place matters: the inputs of those operations come first. What
 * backward does not read has no data. */
static tn_status list_backward(fenced_run *run, tn_error *err)
{
    run->grads = run->wanted->grads;
    run->call.grads = &run->grads;
    run->call.out_count = 0;
    tn_status status = copy_params(run, err);
    if (status != TN_OK)
        return status;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (run->grads.in[i].dtype != TN_DTYPE_NONE)
            add_place(run, FENCED_GRADIENT, &run->grads.in[i], 1, NULL, -1);
    tn_tensor *next = run->params;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        if (run->grads.param[role].count > 0)
            add_place(run, FENCED_GRADIENT, next, run->grads.param[role].count, NULL, -1);
        next += run->grads.param[role].count;
    }
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (run->grads.out[i].data)
            add_place(run, FENCED_UPSTREAM, &run->grads.out[i], 1, &run->wanted->grads.out[i],
                      i < run->in_place ? i : -1);
    for (int i = 0; i < run->call.in_count; i++)
        if (op_find(run->call.op)->in[i].unread)
            run->call.in[i].data = NULL;
        else
            add_place(run, FENCED_INPUT, &run->call.in[i], 1, &run->in->call.in[i], -1);
    return TN_OK;
}

/* Maps a place's memory and gives the tensors their addresses. */
static tn_status open_place(const fenced_run *run, fenced_place *p, fence *f, bool shared, tn_error *err)
{
    size_t bytes = 0, at = 0, element = tn_dtype_size(p->tensors->dtype);
    for (int64_t i = 0; i < p->count; i++) {
        layout b = layout_set(&p->tensors[i], run->padded);
        bytes += layout_bytes(&b, p->tensors[i].dtype);
    }
    tn_status status = fence_open(f, bytes, element, run->side, shared, err);
    if (status != TN_OK)
        return status;
    fence_fill(f);
    for (int64_t i = 0; i < p->count; i++) {
        layout b = layout_set(&p->tensors[i], run->padded);
        p->tensors[i].data = f->data + at;
        at += layout_bytes(&b, p->tensors[i].dtype);
        layout_fill_gaps(&b, &p->tensors[i]);
        if (p->from)
            layout_copy(&b, &p->from[i], &p->tensors[i]);
    }
    return TN_OK;
}

tn_status fenced_open_run(fenced_run *run, tn_error *err)
{
    tn_status status = TN_OK;
    run->call = run->in->call;
    if (run->wanted)
        status = list_backward(run, err);
    else
        list_forward(run);
    for (size_t i = 0; status == TN_OK && i < run->place_count; i++)
        if (!run->places[i].from)
            status = open_place(run, &run->places[i], &run->places[i].fence, true, err);
    return status;
}

void fenced_close_run(fenced_run *run)
{
    for (size_t i = 0; i < run->place_count; i++)
        fence_close(&run->places[i].fence);
    free(run->params);
    run->params = NULL;
    run->place_count = 0;
}

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

/* The child's own record. Its team, where it has one, is whole in every region: what goes wrong between threads shall
 * go wrong here. */
static child_state *start_child(const fenced_trial *t, fenced_note *note)
{
    child_state *c = take_memory(sizeof *c);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (!c || sigaction(SIGSEGV, &action, NULL) != 0)
        return NULL;
    c->note = note;
    if (t->team > 1) {
        threads_limit(0);
        threads_set(t->team);
        threads_strict(true);
        threads_serial(false);
    }
    tn_parallel(give_stack, c);
    return c;
}

static region *add_region(child_state *c, fenced_kind kind)
{
    region *r = &c->regions[c->count++];
    *r = (region){.kind = kind};
    return r;
}

static unsigned long fp_control(void)
{
    unsigned long control = (unsigned long)fegetround();
#if defined(__x86_64__)
    unsigned int word;
    __asm__ volatile("stmxcsr %0" : "=m"(word));
    control |= (unsigned long)(word & ~0x3fu) << 16; /* without the flags of past operations */
#elif defined(__aarch64__)
    unsigned long word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    control |= word << 16;
#endif
    return control;
}

/* What the control of every thread of the team must be. */
typedef struct control_check {
    unsigned long want;
    atomic_bool differs;
} control_check;

static void look_at_control(void *ctx, int32_t thread, int32_t threads)
{
    control_check *c = ctx;
    (void)thread;
    (void)threads;
    if (fp_control() != c->want)
        atomic_store(&c->differs, true);
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
        tn_status status = open_place(run, p, &r->fence, false, err);
        if (status != TN_OK)
            return status;
        fence_read_only(&r->fence, NULL);
    }
    return TN_OK;
}

static int one_run(const fenced_trial *t, child_state *c, fenced_run *run, const tn_plan *plan, const void *packed)
{
    size_t before = c->count;
    tn_error err = TN_ERROR_INIT;
    tn_plan tight = run_plan_for(t->impl, t->site, plan, run->in->tokens);
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
    run->call.packed = packed;
    run->call.scratch = scratch->fence.data;
    control_check control = {.want = fp_control()};
    status = (run->wanted ? t->impl->backward : t->impl->forward)(&run->call, &err);
    if (status == TN_OK)
        status = device_sync(t->device, &err);
    if (status != TN_OK)
        return give_up_error(c->note, TN_E_KERNEL, &err);
    tn_parallel(look_at_control, &control);
    if (atomic_load(&control.differs))
        return give_up(c->note, TN_E_KERNEL, "left the floating-point control changed");
    if (scratch->fence.map && !fence_intact(&scratch->fence))
        return give_up(c->note, TN_E_KERNEL, "wrote outside its scratch");
    for (size_t i = written; i < c->count; i++)
        fence_close(&c->regions[i].fence);
    c->count = before;
    return 0;
}

/* Plans and packs as the host would. */
static int prepare(const fenced_trial *t, child_state *c, tn_plan *plan, const void **packed)
{
    tn_error err = TN_ERROR_INIT;
    tn_status status = TN_OK;
    if (t->impl->plan && (status = t->impl->plan(t->site, plan, &err)) != TN_OK)
        return give_up_error(c->note, status, &err);
    c->note->stage = STAGE_PACK;
    region *r = add_region(c, FENCED_PACKED);
    if (plan->packed_bytes > 0)
        status = fence_open(&r->fence, plan->packed_bytes, 64, FENCE_END, false, &err);
    if (status == TN_OK && plan->packed_bytes > 0 && t->impl->pack)
        status = t->impl->pack(t->site, plan, r->fence.data, t->device->queue, &err);
    if (status == TN_OK)
        status = device_sync(t->device, &err);
    if (status != TN_OK)
        return give_up_error(c->note, status, &err);
    if (r->fence.map && !fence_intact(&r->fence))
        return give_up(c->note, TN_E_KERNEL, "wrote outside its packed memory");
    if (r->fence.map)
        fence_read_only(&r->fence, NULL);
    *packed = r->fence.data;
    return 0;
}

static int make_trial(const fenced_trial *t, child_state *c)
{
    tn_plan plan = {.size = sizeof plan, .threads = t->threads, .max_tokens = t->max_tokens};
    const void *packed = NULL;
    size_t before = c->count;
    c->note->trial = t;
    c->note->stage = STAGE_PLAN;
    fenced_params_protect(t->site);
    uint64_t edges = fenced_params_edges(t->site);
    if (t->bound) {
        plan = t->bound->plan;
        packed = t->bound->packed;
    } else if (prepare(t, c, &plan, &packed) != 0) {
        return 1;
    }
    c->note->stage = STAGE_CALL;
    for (c->note->run = 0; c->note->run < t->run_count; c->note->run++)
        if (one_run(t, c, &t->runs[c->note->run], &plan, packed) != 0)
            return 1;
    if (fenced_params_edges(t->site) != edges) {
        c->note->run--; /* of the last call: which one it was is not known                             */
        return give_up(c->note, TN_E_KERNEL, "wrote to its parameters, which are read-only");
    }
    c->count = before; /* packed memory stays: a kernel may have kept its address */
    return 0;
}

typedef struct child_job {
    const fenced_trial *t;
    fenced_note *note;
} child_job;

static int child_main(void *ctx)
{
    const child_job *job = ctx;
    child_state *c = start_child(job->t, job->note);
    if (!c)
        return give_up(job->note, TN_E_MEMORY, "no memory to check a kernel with; free some memory");
    if (job->t->before && make_trial(job->t->before, c) != 0)
        return 1;
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
                                        "its packed memory"};
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
    t = note->trial ? note->trial : t;
    const fenced_run *run = note->stage == STAGE_CALL && note->run < t->run_count ? &t->runs[note->run] : NULL;
    const char *stage = run ? run->wanted ? "backward" : "forward" : note->stage == STAGE_PACK ? "pack" : "plan";
    if (note->fault)
        describe_fault(note, text, sizeof text);
    else
        text_cut(text, sizeof text, "%s", note->message[0] ? note->message : ending);
    if (run)
        text_cut(when, sizeof when, " (%lld tokens)", (long long)run->in->tokens);
    tn_status status = note->message[0] ? note->status : TN_E_KERNEL;
    return tn_fail(err, status, t->site->path, "%s: %s%s", stage, text, when);
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
                return tn_fail(err, TN_E_KERNEL, t->site->path, "%s (%lld tokens)",
                               run->wanted ? "backward: wrote outside its gradients"
                                           : "forward: wrote outside its outputs",
                               (long long)run->in->tokens);
        }
    return TN_OK;
}

tn_status fenced_execute(fenced_trial *t, tn_error *err)
{
    fenced_note *note = mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (note == MAP_FAILED)
        return tn_fail(err, TN_E_MEMORY, t->site->path, "no memory to check a kernel with; free some memory");
    child_job job = {t, note};
    char ending[256];
    tn_status status = guard_run(child_main, &job, t->seconds, ending, sizeof ending);
    status = status == TN_OK ? look_around(t, err) : explain(t, note, ending, err);
    munmap(note, sizeof *note);
    return status;
}
