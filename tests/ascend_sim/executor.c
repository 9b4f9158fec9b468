/* The two phases of a call: what the first one builds, what the second one queues, and what is checked when the work
 * runs. Executors are used once, unless they were made repeatable. */
#include "sim.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXECUTOR_MAGIC 0xac1e8ec0u

struct aclOpExecutor {
    uint32_t magic;
    bool repeatable, ran;
    pthread_t thread;
    sim_op *op;
};

/* ---- the first phase ------------------------------------------------------------------------------------------- */

sim_op *sim_begin(const char *name)
{
    sim_op *op = sim_allocate(sizeof *op);
    op->name = name;
    if (sim_need_context(name))
        op->code = 361001;
    else if (sim_soc_of() == SIM_NO_SOC) /* the vendor has kernels for some of them: none is simulated */
        op->code = sim_violation(561003, "%sGetWorkspaceSize: kernels of this chip are not simulated", name);
    else if (sim_injected(name))
        op->code = 561000;
    return op;
}

void sim_fault(sim_op *op, int code, const char *format, ...)
{
    char text[768];
    if (op->code)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    op->code = sim_violation(code, "%sGetWorkspaceSize: %s", op->name, text);
}

static sim_tensor *add(sim_op *op, const aclTensor *tensor, const char *role, bool output, bool optional)
{
    sim_tensor **more = realloc(op->tensors, ((size_t)op->count + 1) * sizeof *more);
    sim_tensor *t = sim_allocate(sizeof *t);
    if (!more)
        abort();
    op->tensors = more;
    op->tensors[op->count++] = t;
    if (!tensor && !optional)
        sim_fault(op, 161001, "%s is NULL", role);
    else if (tensor && !sim_tensor_of(tensor, t))
        sim_fault(op, 161001, "%s is no live tensor", role);
    t->role = role;
    t->output = output;
    for (int i = 0; output && i < t->rank; i++)
        if (t->shape[i] > 1 && t->strides[i] == 0)
            sim_fault(op, 161002, "%s is written, and dimension %d has stride 0", role, i);
    return t;
}

const sim_tensor *sim_in(sim_op *op, const aclTensor *tensor, const char *role)
{
    return add(op, tensor, role, false, false);
}

const sim_tensor *sim_out(sim_op *op, const aclTensor *tensor, const char *role)
{
    return add(op, tensor, role, true, false);
}

const sim_tensor *sim_in_optional(sim_op *op, const aclTensor *tensor, const char *role)
{
    return add(op, tensor, role, false, true);
}

const sim_tensor *sim_out_optional(sim_op *op, const aclTensor *tensor, const char *role)
{
    return add(op, tensor, role, true, true);
}

static void free_op(void *state)
{
    sim_op *op = state;
    for (int i = 0; i < op->count; i++)
        free(op->tensors[i]);
    free(op->tensors);
    free(op->ints);
    free(op);
}

static sim_op *copy_op(const sim_op *op)
{
    sim_op *copy = sim_allocate(sizeof *copy);
    *copy = *op;
    copy->tensors = sim_allocate(((size_t)op->count + 1) * sizeof *copy->tensors);
    for (int i = 0; i < op->count; i++) {
        copy->tensors[i] = sim_allocate(sizeof **copy->tensors);
        *copy->tensors[i] = *op->tensors[i];
        if (op->in_place == op->tensors[i])
            copy->in_place = copy->tensors[i];
    }
    if (op->ints) {
        copy->ints = sim_allocate((size_t)op->int_count * sizeof *op->ints + 1);
        memcpy(copy->ints, op->ints, (size_t)op->int_count * sizeof *op->ints);
    }
    return copy;
}

static void set_pending(const sim_op *op, int change)
{
    for (int i = 0; i < op->count; i++)
        if (op->tensors[i]->present)
            sim_tensor_pending(op->tensors[i]->source, change);
}

/* Bytes from the first element of the view to behind the last; 0: it has none. */
static size_t span(const sim_tensor *t)
{
    int64_t last = 0;
    if (!t->present)
        return 0;
    for (int i = 0; i < t->rank; i++) {
        if (!t->shape[i])
            return 0;
        last += (t->shape[i] - 1) * t->strides[i];
    }
    return (size_t)(last + 1) * aclDataTypeSize(t->type);
}

/* Workspaces grow with what is worked on, as a device's do; how, is no document's. */
static uint64_t grown(const sim_op *op)
{
    uint64_t bytes = 0;
    for (int i = 0; i < op->count; i++)
        if (op->tensors[i]->present)
            bytes += (uint64_t)span(op->tensors[i]);
    return bytes / 16 / 32 * 32;
}

aclnnStatus sim_finish(sim_op *op, uint64_t workspace, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    if (!workspaceSize || !executor)
        sim_fault(op, 161001, "workspaceSize or executor is NULL");
    int code = op->code;
    if (code) {
        free_op(op);
        return code;
    }
    op->workspace = workspace ? workspace + grown(op) : 0;
    aclOpExecutor *e = sim_allocate(sizeof *e);
    *e = (aclOpExecutor){.magic = EXECUTOR_MAGIC, .thread = pthread_self(), .op = op};
    set_pending(op, 1);
    sim_count_live(SIM_EXECUTORS, 1);
    sim_counted.executors++;
    *workspaceSize = op->workspace;
    *executor = e;
    return 0;
}

/* ---- when work runs -------------------------------------------------------------------------------------------- */

static const char *first_byte(const sim_tensor *t)
{
    return (const char *)t->data + (size_t)t->offset * aclDataTypeSize(t->type);
}

static bool same_view(const sim_tensor *a, const sim_tensor *b)
{
    size_t bytes = (size_t)a->rank * sizeof *a->shape;
    return a->rank == b->rank && a->type == b->type && first_byte(a) == first_byte(b) &&
           memcmp(a->shape, b->shape, bytes) == 0 && memcmp(a->strides, b->strides, bytes) == 0;
}

/* Marks the bytes of t in a map that begins at base, or says whether one of them is marked. */
static bool walk_bytes(const sim_tensor *t, const char *base, unsigned char *map, bool mark)
{
    size_t size = aclDataTypeSize(t->type), at = 0;
    int64_t index[SIM_RANK_MAX] = {0};
    const char *begin = first_byte(t);
    for (;;) {
        unsigned char *place = map + (begin - base) + at * size;
        for (size_t i = 0; i < size; i++) {
            if (!mark && place[i])
                return true;
            place[i] |= mark;
        }
        int axis = t->rank - 1;
        for (; axis >= 0; axis--) {
            at += (size_t)t->strides[axis];
            if (++index[axis] < t->shape[axis])
                break;
            at -= (size_t)(t->strides[axis] * t->shape[axis]);
            index[axis] = 0;
        }
        if (axis < 0)
            return false;
    }
}

/* Do two views have an element in common? Views may lie within each other without, as halves of rows do. */
static bool overlap(const sim_tensor *a, const sim_tensor *b)
{
    const char *begins[] = {first_byte(a), first_byte(b)};
    const char *ends[] = {begins[0] + span(a), begins[1] + span(b)};
    if (!span(a) || !span(b) || begins[0] >= ends[1] || begins[1] >= ends[0])
        return false;
    const char *base = begins[0] < begins[1] ? begins[0] : begins[1];
    unsigned char *map = sim_allocate((size_t)((ends[0] > ends[1] ? ends[0] : ends[1]) - base));
    walk_bytes(a, base, map, true);
    bool common = walk_bytes(b, base, map, false);
    free(map);
    return common;
}

/* Nothing in the vendor's documents allows it, but for operators that work element by element or in place. */
static void check_overlaps(const sim_op *op)
{
    for (int o = 0; o < op->count; o++)
        for (int i = 0; op->tensors[o]->output && i < op->count; i++) {
            const sim_tensor *out = op->tensors[o], *other = op->tensors[i];
            if (i == o || (other->output && i < o) ||
                ((op->elementwise || op->in_place == out) && same_view(out, other)) || !overlap(out, other))
                continue;
            sim_violation(0, "%s: %s is written and shares elements with %s", op->name, out->role, other->role);
        }
}

static int find_memory(sim_op *op, int device)
{
    for (int i = 0; i < op->count; i++) {
        sim_tensor *t = op->tensors[i];
        size_t bytes = span(t);
        if (!bytes)
            continue;
        t->host = sim_translate(first_byte(t), bytes, device);
        if (!t->host)
            return sim_violation(507015, "%s: %s, %zu bytes at %p, is not within one live allocation of device %d",
                                 op->name, t->role, bytes, (const void *)first_byte(t), device);
    }
    if (op->workspace) {
        void *at = sim_translate(op->workspace_at, op->workspace, device);
        if (!at)
            return sim_violation(507015, "%s: its workspace, %llu bytes at %p, is not within one live allocation",
                                 op->name, (unsigned long long)op->workspace, op->workspace_at);
        memset(at, 0xdb, op->workspace); /* whoever keeps something there loses it */
    }
    return 0;
}

/* Dimensions of stride 0 repeat what was read. */
static int64_t moved(const sim_op *op)
{
    int64_t sum = -op->idle_bytes;
    for (int i = 0; i < op->count; i++) {
        const sim_tensor *t = op->tensors[i];
        int64_t bytes = t->present ? (int64_t)aclDataTypeSize(t->type) : 0;
        for (int j = 0; j < t->rank; j++)
            bytes *= t->strides[j] == 0 && t->shape[j] > 0 ? 1 : t->shape[j];
        sum += bytes;
    }
    return sum;
}

static int run_op(void *state, int device)
{
    sim_op *op = state;
    op->idle_bytes = 0; /* it may have run before, in a graph                                               */
    int code = find_memory(op, device);
    if (code)
        return code;
    check_overlaps(op);
    code = op->run(op);
    sim_counted.moved_bytes += moved(op);
    return code;
}

/* ---- the second phase ------------------------------------------------------------------------------------------ */

static void end_executor(aclOpExecutor *e)
{
    set_pending(e->op, -1);
    free_op(e->op);
    e->op = NULL;
    e->magic = 0;
    sim_bury(e);
    sim_count_live(SIM_EXECUTORS, -1);
}

static int check_tensors(const sim_op *op)
{
    for (int i = 0; i < op->count; i++)
        if (op->tensors[i]->present && !sim_tensor_alive(op->tensors[i]->source))
            return sim_violation(161002, "%s: the tensor %s was destroyed between the phases", op->name,
                                 op->tensors[i]->role);
    return 0;
}

static int check_workspace(const sim_op *op, const void *workspace, uint64_t size)
{
    if ((size || op->workspace) && !workspace)
        return sim_violation(161001, "%s: workspace is NULL and %llu bytes are needed", op->name,
                             (unsigned long long)op->workspace);
    if (size < op->workspace)
        return sim_violation(161002, "%s: a workspace of %llu bytes, the first phase asked for %llu", op->name,
                             (unsigned long long)size, (unsigned long long)op->workspace);
    if (size && !sim_translate(workspace, size, sim_current_device()))
        return sim_violation(161002, "%s: the workspace is not within one live allocation of the device", op->name);
    return 0;
}

static int check_second(const char *name, const aclOpExecutor *e, const void *workspace, uint64_t size,
                        aclrtStream stream)
{
    if (strcmp(name, e->op->name) != 0)
        return sim_violation(561000, "%s: the executor was made by %sGetWorkspaceSize", name, e->op->name);
    if (!pthread_equal(e->thread, pthread_self())) /* not documented as wrong: counted all the same */
        sim_violation(0, "%s: another thread than that of the first phase", name);
    if (sim_check_stream(stream, name))
        return 361001;
    int code = check_workspace(e->op, workspace, size);
    if (!code)
        code = check_tensors(e->op);
    if (!code && sim_injected(name))
        code = 361001;
    return code;
}

static void enqueue(const aclOpExecutor *e, const void *workspace, aclrtStream stream)
{
    const sim_op *op = e->op;
    sim_op *copy = copy_op(op);
    copy->workspace_at = workspace;
    sim_range *ranges = sim_allocate(((size_t)op->count + 1) * sizeof *ranges);
    int count = 0;
    for (int i = 0; i < op->count; i++) {
        const sim_tensor *t = op->tensors[i];
        if (span(t))
            ranges[count++] = (sim_range){first_byte(t), first_byte(t) + span(t), t->output};
    }
    if (op->workspace)
        ranges[count++] = (sim_range){workspace, (const char *)workspace + op->workspace, true};
    const sim_work work = {.name = op->name,
                           .run = run_op,
                           .discard = free_op,
                           .state = copy,
                           .ranges = ranges,
                           .range_count = count,
                           .executor = e->repeatable ? e : NULL};
    if (sim_enqueue(stream, &work))
        sim_count_launch(op->name);
}

aclnnStatus sim_second(const char *name, void *workspace, uint64_t size, aclOpExecutor *executor, aclrtStream stream)
{
    SIM_HOLD;
    if (!executor)
        return sim_violation(161001, "%s: executor is NULL", name);
    if (executor->magic != EXECUTOR_MAGIC)
        return sim_violation(561000, "%s: no live executor; was it run before?", name);
    int code = check_second(name, executor, workspace, size, stream);
    if (!code)
        enqueue(executor, workspace, stream);
    executor->ran = true;
    if (!executor->repeatable)
        end_executor(executor);
    return code;
}

/* ---- executors that run again ---------------------------------------------------------------------------------- */

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)
{
    SIM_HOLD;
    if (!executor || executor->magic != EXECUTOR_MAGIC)
        return sim_violation(161001, "aclSetAclOpExecutorRepeatable: NULL, or no live executor");
    if (sim_injected("aclSetAclOpExecutorRepeatable"))
        return 561000;
    executor->repeatable = true;
    return 0;
}

/* Documented for repeatable executors; the vendor's deletes others that never ran, too. */
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)
{
    SIM_HOLD;
    if (!executor)
        return 0;
    if (executor->magic != EXECUTOR_MAGIC)
        return sim_violation(561000, "aclDestroyAclOpExecutor: no live executor; was it run or destroyed before?");
    if (!executor->repeatable)
        sim_violation(0, "aclDestroyAclOpExecutor: documented for repeatable executors, and this one is not");
    const char *captured = sim_captured_use(NULL, 0, executor);
    if (captured) /* of resources of captured tasks the documents say that they have to stay */
        sim_violation(0, "aclDestroyAclOpExecutor: %s, which is captured, was made by this executor", captured);
    end_executor(executor);
    return 0;
}
