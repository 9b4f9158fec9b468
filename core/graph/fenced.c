/* Calling a kernel in a child process. The child lays out the inputs read-only, the outputs and the scratch between
 * guard pages; a signal handler tells which of them an access went beyond. */
#include "graph/text.h"
#include "graph/fenced.h"

#include "plugin/registry.h"

#include <fenv.h>
#include <signal.h>

#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

typedef enum fenced_stage { STAGE_PLAN, STAGE_PACK, STAGE_FORWARD } fenced_stage;
typedef enum region_kind { REGION_OTHER, REGION_INPUT, REGION_OUTPUT, REGION_SCRATCH, REGION_PACKED } region_kind;

/* What the child tells; shared. */
typedef struct fenced_note {
    fenced_stage stage;
    size_t run;
    tn_status status;
    char message[512];
    bool fault, fault_writes, fault_inside;
    region_kind fault_kind;
    int fault_index;
} fenced_note;

typedef struct region {
    fence fence;
    region_kind kind;
    int index;
} region;

/* What the signal handler finds at the low end of its stack: a handler has no argument of its own. */
enum { REGIONS = 2 * TN_CALL_TENSORS + 2, STACK_BYTES = 64 * 1024 };
typedef struct child_state {
    fenced_note *note;
    region regions[REGIONS];
    size_t count;
} child_state;

/* ---- layout of tensors --------------------------------------------------------------------------------- */

/* Elements between rows of a padded tensor, and what they hold: a number in every floating type, so that reading them
 * shows in the results as well. */
enum { PADDING = 8, GAP_FILL = 0x5a };

/* A tensor as a sequence of dense blocks: the dimension that strides is that of tokens. */
typedef struct blocks {
    int64_t count, length, step;
} blocks;

static blocks lay_out(tn_tensor *t, bool padded)
{
    int32_t split = t->ndim < 2 ? -1 : t->ndim == 2 ? 0 : 1;
    blocks b = {1, 1, 0};
    for (int32_t i = 0; i < t->ndim; i++)
        *(i <= split ? &b.count : &b.length) *= t->shape[i];
    b.step = b.length + (padded && split >= 0 ? PADDING : 0);
    int64_t stride = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        t->stride[i] = i == split ? b.step : stride;
        stride = t->stride[i] * t->shape[i];
    }
    return b;
}

static size_t blocks_bytes(const blocks *b, tn_dtype dtype)
{
    return (size_t)(b->count * b->step) * tn_dtype_size(dtype);
}

static void copy_blocks(const blocks *b, const tn_tensor *from, const tn_tensor *to)
{
    size_t size = tn_dtype_size(to->dtype);
    for (int64_t i = 0; i < b->count; i++)
        memcpy((char *)to->data + (size_t)(i * b->step) * size,
               (const char *)from->data + (size_t)(i * b->length) * size, (size_t)b->length * size);
}

static void fill_gaps(const blocks *b, const tn_tensor *t)
{
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t i = 0; i < b->count; i++)
        memset((char *)t->data + (size_t)(i * b->step + b->length) * size, GAP_FILL,
               (size_t)(b->step - b->length) * size);
}

/* Nothing may be written between the blocks. */
static bool gaps_intact(const blocks *b, const tn_tensor *t)
{
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t i = 0; i < b->count; i++) {
        const unsigned char *gap = (const unsigned char *)t->data + (size_t)(i * b->step + b->length) * size;
        for (size_t j = 0; j < (size_t)(b->step - b->length) * size; j++)
            if (gap[j] != GAP_FILL)
                return false;
    }
    return true;
}

tn_status fenced_open_run(fenced_run *run, tn_error *err)
{
    run->call = run->in->call;
    for (int i = 0; i < run->call.out_count; i++) {
        tn_tensor *t = &run->call.out[i];
        blocks b = lay_out(t, run->padded);
        tn_status status =
            fence_open(&run->out[i], blocks_bytes(&b, t->dtype), tn_dtype_size(t->dtype), run->side, true, err);
        if (status != TN_OK)
            return status;
        fence_fill(&run->out[i]);
        t->data = run->out[i].data;
        fill_gaps(&b, t);
    }
    return TN_OK;
}

void fenced_close_run(fenced_run *run)
{
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        fence_close(&run->out[i]);
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
    const child_state *c = context->uc_stack.ss_sp;
    fenced_note *note = c->note;
    note->fault_writes = is_write(context);
    for (size_t i = 0; i < c->count; i++) {
        const region *r = &c->regions[i];
        const unsigned char *address = info->si_addr;
        if (!fence_contains(&r->fence, address))
            continue;
        note->fault_kind = r->kind;
        note->fault_index = r->index;
        note->fault_inside = address >= r->fence.data && address < r->fence.data + r->fence.bytes;
    }
    note->fault = true;
    _exit(1);
}

/* The child's own record, with a stack for the handler above it. */
static child_state *start_child(fenced_note *note)
{
    void *memory = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    child_state *c = memory;
    c->note = note;
    stack_t stack = {.ss_sp = memory, .ss_size = STACK_BYTES};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (sigaltstack(&stack, NULL) != 0 || sigaction(SIGSEGV, &action, NULL) != 0)
        return NULL;
    return c;
}

static region *add_region(child_state *c, region_kind kind, int index)
{
    region *r = &c->regions[c->count++];
    *r = (region){.kind = kind, .index = index};
    return r;
}

/* Weights that are mapped from a file cannot be written anyway; this is for those that were copied. Only whole pages:
 * what shares a page with something else stays writable. */
static void protect_params(const tn_site *site)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++) {
            const tn_tensor *t = &site->param[role].tensors[i];
            uintptr_t begin = (uintptr_t)t->data, end = begin + (size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype);
            begin = (begin + page - 1) / page * page;
            end = end / page * page;
            if (begin < end)
                mprotect((void *)begin, end - begin, PROT_READ);
        }
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

/* The plan for calls of at most that many tokens, so that scratch is no larger than they need; the one for real calls
 * where the kernel would then do something else. */
static tn_plan tight_plan(const fenced_trial *t, const tn_plan *real, int64_t tokens)
{
    tn_plan plan = {.size = sizeof plan, .threads = real->threads, .max_tokens = tokens};
    if (!t->impl->plan || t->impl->plan(t->site, &plan, NULL) != TN_OK || plan.packed_bytes != real->packed_bytes ||
        memcmp(plan.user, real->user, sizeof plan.user) != 0)
        return *real;
    return plan;
}

static tn_status place_inputs(child_state *c, fenced_run *run, tn_error *err)
{
    for (int i = 0; i < run->call.in_count; i++) {
        const tn_tensor *from = &run->in->call.in[i];
        tn_tensor *to = &run->call.in[i];
        blocks b = lay_out(to, run->padded);
        if (i < run->in_place) {
            to->data = run->call.out[i].data;
            copy_blocks(&b, from, to);
            continue;
        }
        region *r = add_region(c, REGION_INPUT, i);
        tn_status status =
            fence_open(&r->fence, blocks_bytes(&b, to->dtype), tn_dtype_size(to->dtype), run->side, false, err);
        if (status != TN_OK)
            return status;
        to->data = r->fence.data;
        fill_gaps(&b, to);
        copy_blocks(&b, from, to);
        fence_read_only(&r->fence, NULL);
    }
    return TN_OK;
}

static int one_run(const fenced_trial *t, child_state *c, fenced_run *run, const tn_plan *plan, const void *packed)
{
    size_t before = c->count;
    tn_error err = TN_ERROR_INIT;
    tn_plan tight = tight_plan(t, plan, run->in->tokens);
    tn_status status = TN_OK;
    for (int i = 0; i < run->call.out_count; i++)
        add_region(c, REGION_OUTPUT, i)->fence = run->out[i];
    region *scratch = add_region(c, REGION_SCRATCH, 0);
    if (tight.scratch_bytes > 0 &&
        (status = fence_open(&scratch->fence, tight.scratch_bytes, 64, run->side, false, &err)) == TN_OK)
        fence_fill(&scratch->fence);
    if (status == TN_OK)
        status = place_inputs(c, run, &err);
    if (status != TN_OK)
        return give_up_error(c->note, status, &err);
    run->call.plan = &tight;
    run->call.packed = packed;
    run->call.scratch = scratch->fence.data;
    unsigned long control = fp_control();
    status = t->impl->forward(&run->call, &err);
    if (status != TN_OK)
        return give_up_error(c->note, TN_E_KERNEL, &err);
    if (fp_control() != control)
        return give_up(c->note, TN_E_KERNEL, "left the floating-point control changed");
    if (scratch->fence.map && !fence_intact(&scratch->fence))
        return give_up(c->note, TN_E_KERNEL, "wrote outside its scratch");
    for (size_t i = before; i < c->count; i++)
        if (c->regions[i].kind != REGION_OUTPUT)
            fence_close(&c->regions[i].fence);
    c->count = before;
    return 0;
}

typedef struct child_job {
    fenced_trial *t;
    fenced_note *note;
} child_job;

static int child_main(void *ctx)
{
    const child_job *job = ctx;
    fenced_trial *t = job->t;
    tn_error err = TN_ERROR_INIT;
    child_state *c = start_child(job->note);
    if (!c)
        return give_up(job->note, TN_E_MEMORY, "no memory to check a kernel with; free some memory");
    tn_plan plan = {.size = sizeof plan, .threads = t->threads, .max_tokens = t->max_tokens};
    const void *packed = NULL;
    tn_status status = TN_OK;
    protect_params(t->site);
    if (t->bound) {
        plan = t->bound->plan;
        packed = t->bound->packed;
    } else {
        if (t->impl->plan && (status = t->impl->plan(t->site, &plan, &err)) != TN_OK)
            return give_up_error(job->note, status, &err);
        job->note->stage = STAGE_PACK;
        region *r = add_region(c, REGION_PACKED, 0);
        if (plan.packed_bytes > 0)
            status = fence_open(&r->fence, plan.packed_bytes, 64, FENCE_END, false, &err);
        if (status == TN_OK && plan.packed_bytes > 0 && t->impl->pack)
            status = t->impl->pack(t->site, &plan, r->fence.data, &err);
        if (status != TN_OK)
            return give_up_error(job->note, status, &err);
        if (r->fence.map && !fence_intact(&r->fence))
            return give_up(job->note, TN_E_KERNEL, "wrote outside its packed memory");
        if (r->fence.map)
            fence_read_only(&r->fence, NULL);
        packed = r->fence.data;
    }
    job->note->stage = STAGE_FORWARD;
    for (job->note->run = 0; job->note->run < t->run_count; job->note->run++)
        if (one_run(t, c, &t->runs[job->note->run], &plan, packed) != 0)
            return 1;
    return 0;
}

/* ---- in the parent ---------------------------------------------------------------------------------------- */

static void describe_fault(const fenced_note *note, char *text, size_t size)
{
    static const char *const names[] = {"", "its inputs", "its outputs", "its scratch", "its packed memory"};
    const char *name = names[note->fault_kind];
    if (note->fault_kind == REGION_OTHER)
        text_cut(text, size, "crashed with SIGSEGV");
    else if (note->fault_inside)
        text_cut(text, size, "wrote to %s, which are read-only", name);
    else
        text_cut(text, size, "%s outside %s", note->fault_writes ? "wrote" : "read", name);
}

static tn_status explain(const fenced_trial *t, const fenced_note *note, const char *ending, tn_error *err)
{
    static const char *const stages[] = {"plan", "pack", "forward"};
    char text[512], when[64] = "";
    if (note->fault)
        describe_fault(note, text, sizeof text);
    else
        text_cut(text, sizeof text, "%s", note->message[0] ? note->message : ending);
    if (note->stage == STAGE_FORWARD && note->run < t->run_count)
        text_cut(when, sizeof when, " (%lld tokens)", (long long)t->runs[note->run].in->tokens);
    tn_status status = note->message[0] ? note->status : TN_E_KERNEL;
    return tn_fail(err, status, t->site->path, "%s: %s%s", stages[note->stage], text, when);
}

/* Writes that landed on the part of a page that is not the output's, or between its rows. */
static tn_status look_around(const fenced_trial *t, tn_error *err)
{
    for (size_t i = 0; i < t->run_count; i++)
        for (int j = 0; j < t->runs[i].call.out_count; j++) {
            tn_tensor *out = &t->runs[i].call.out[j];
            blocks b = lay_out(out, t->runs[i].padded);
            if (!fence_intact(&t->runs[i].out[j]) || !gaps_intact(&b, out))
                return tn_fail(err, TN_E_KERNEL, t->site->path, "forward: wrote outside its outputs (%lld tokens)",
                               (long long)t->runs[i].in->tokens);
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
