#include "far_device.h"

#include "eager/eager.h"
#include "plugin/plugins.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Work that waits: a call with copies of all structs that it names, or bytes on their way to the device. */
typedef struct job {
    struct job *next;
    tn_call call;
    tn_site site;
    tn_plan plan;
    tn_grads grads;
    tn_tensor *tensors; /* of parameters and their gradients                                       */
    void *to, *bytes;
    size_t size;
} job;

struct tn_queue {
    uint32_t mark;
    job *first, **last;
};

enum { MARK = 0xfa5 };

far_record far_seen;
static far_options far;

/* An address that no process has: on x86-64 it is not canonical, on AArch64 it belongs to the kernel. */
static const uintptr_t FAR_BIT = (uintptr_t)1 << 55;

static void *to_far(void *near)
{
    return far.host_memory || !near ? near : (void *)((uintptr_t)near | FAR_BIT);
}

static void *to_near(const void *address)
{
    if (!address || far.host_memory)
        return (void *)address;
    ck_assert_msg((uintptr_t)address & FAR_BIT, "the device was given memory of the host");
    return (void *)((uintptr_t)address & ~FAR_BIT);
}

static void check_queue(const tn_queue *queue)
{
    ck_assert(far.plain ? queue == NULL : queue && queue->mark == MARK);
}

/* ---- copies of calls -------------------------------------------------------------------------------- */

static void copy_tensors(tn_tensor *tensors, int count)
{
    for (int i = 0; i < count; i++)
        tensors[i].data = to_near(tensors[i].data);
}

static tn_tensor *copy_params(tn_param *params, tn_tensor *to)
{
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        if (params[role].count == 0)
            continue;
        memcpy(to, params[role].tensors, (size_t)params[role].count * sizeof *to);
        copy_tensors(to, (int)params[role].count);
        params[role].tensors = to;
        to += params[role].count;
    }
    return to;
}

static size_t count_params(const tn_param *params)
{
    size_t count = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        count += (size_t)params[role].count;
    return count;
}

static job *copy_call(const tn_call *call)
{
    job *j = calloc(1, sizeof *j);
    size_t count =
        (call->site ? count_params(call->site->param) : 0) + (call->grads ? count_params(call->grads->param) : 0);
    j->call = *call;
    j->call.queue = NULL;
    j->tensors = calloc(count + 1, sizeof *j->tensors);
    tn_tensor *next = j->tensors;
    if (call->site) {
        j->site = *call->site;
        next = copy_params(j->site.param, next);
        j->call.site = &j->site;
    }
    if (call->plan) {
        j->plan = *call->plan;
        j->call.plan = &j->plan;
    }
    if (call->grads) {
        j->grads = *call->grads;
        copy_params(j->grads.param, next);
        copy_tensors(j->grads.in, TN_CALL_TENSORS);
        copy_tensors(j->grads.out, TN_CALL_TENSORS);
        j->call.grads = &j->grads;
    }
    copy_tensors(j->call.in, j->call.in_count);
    copy_tensors(j->call.out, call->grads ? 0 : j->call.out_count);
    j->call.scratch = to_near(call->scratch);
    j->call.packed = to_near(call->packed);
    return j;
}

static tn_status perform(job *j, tn_error *err)
{
    tn_status status = TN_OK;
    if (j->bytes)
        memcpy(j->to, j->bytes, j->size);
    else if (j->call.grads)
        status = eager_cpu.backward(&j->call, err);
    else
        status = eager_cpu.eager(&j->call, err);
    free(j->bytes);
    free(j->tensors);
    free(j);
    return status;
}

static tn_status line_up(tn_queue *queue, job *j, tn_error *err)
{
    if (far.plain)
        return perform(j, err);
    *queue->last = j;
    queue->last = &j->next;
    if (++far_seen.waiting > far_seen.most_waiting)
        far_seen.most_waiting = far_seen.waiting;
    return TN_OK;
}

tn_status far_device_line_up(const tn_call *call, tn_error *err)
{
    check_queue(call->queue);
    if (far_seen.fail_at > 0 && --far_seen.fail_at == 0) {
        /* It will be found to ask for an operation that nothing performs. */
        tn_call bad = *call;
        bad.op = TN_OP_NONE;
        return line_up(call->queue, copy_call(&bad), err);
    }
    far_seen.calls++;
    return line_up(call->queue, copy_call(call), err);
}

/* ---- the device --------------------------------------------------------------------------------------- */

static tn_status far_open(int32_t ordinal, tn_queue **queue, tn_error *err)
{
    if (ordinal >= FAR_UNITS)
        return tn_fail(err, TN_E_USAGE, "far", "there are %d units, from 0 to %d", FAR_UNITS, FAR_UNITS - 1);
    *queue = calloc(1, sizeof **queue);
    **queue = (struct tn_queue){.mark = MARK, .last = &(*queue)->first};
    far_seen.opened++;
    far_seen.ordinal = ordinal;
    return TN_OK;
}

static void far_close(tn_queue *queue)
{
    check_queue(queue);
    ck_assert_msg(!queue->first, "the queue was closed before its work was done");
    queue->mark = 0;
    free(queue);
    far_seen.closed++;
}

static tn_status far_sync(tn_queue *queue, tn_error *err)
{
    tn_status status = TN_OK;
    check_queue(queue);
    far_seen.syncs++;
    while (queue && queue->first) {
        job *j = queue->first;
        queue->first = j->next;
        far_seen.waiting--;
        tn_status one = perform(j, err);
        status = status == TN_OK ? one : status;
    }
    if (queue)
        queue->last = &queue->first;
    return status;
}

static tn_status far_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    check_queue(queue);
    tn_status status = eager_cpu.alloc(NULL, bytes, out, err);
    *out = to_far(*out);
    far_seen.held += status == TN_OK;
    return status;
}

static void far_free(tn_queue *queue, void *memory, size_t bytes)
{
    check_queue(queue);
    ck_assert_msg(!queue || !queue->first, "memory was freed while work was waiting");
    eager_cpu.free(NULL, to_near(memory), bytes);
    far_seen.held--;
}

static tn_status far_upload(tn_queue *queue, void *to, const void *host, size_t bytes, tn_error *err)
{
    check_queue(queue);
    job *j = calloc(1, sizeof *j);
    *j = (job){.to = to_near(to), .bytes = malloc(bytes + 1), .size = bytes};
    memcpy(j->bytes, host, bytes);
    return line_up(queue, j, err);
}

static tn_status far_download(tn_queue *queue, void *host, const void *from, size_t bytes, tn_error *err)
{
    tn_status status = far.plain ? TN_OK : far_sync(queue, err);
    if (status == TN_OK)
        memcpy(host, to_near(from), bytes);
    return status;
}

static tn_status far_supports(const tn_site *site, tn_error *err)
{
    far_seen.asked[site->op / 64] |= UINT64_C(1) << site->op % 64;
    return site->op == far.declines ? tn_fail(err, TN_DECLINED, NULL, "its unit for this is broken") : TN_OK;
}

static size_t far_scratch(const tn_call *call)
{
    return eager_cpu.scratch(call);
}

static size_t far_backward_scratch(const tn_call *call)
{
    return eager_cpu.backward_scratch(call);
}

void far_device_add(const far_options *options)
{
    far = *options;
    tn_device device = {.size = sizeof device,
                        .name = far.name,
                        .host_memory = far.host_memory,
                        .alloc = far_alloc,
                        .free = far_free,
                        .upload = far_upload,
                        .download = far_download,
                        .scratch = far_scratch,
                        .eager = far_device_line_up};
    if (!far.plain) {
        device.open = far_open;
        device.close = far_close;
        device.sync = far_sync;
        device.supports = far_supports;
        device.backward = far_device_line_up;
        device.backward_scratch = far_backward_scratch;
    }
    tn_plugin plugin = {
        .size = sizeof plugin, .abi_major = TN_ABI_MAJOR, .name = "far", .version = "1.0.0", .device = &device};
    tn_error err = TN_ERROR_INIT;
    descriptor *d = descriptor_read(&plugin, NULL, "far", &err);
    ck_assert_msg(d != NULL, "%s", err.message);
    ck_assert_msg(registry_add(d, "far", &err) == TN_OK, "%s", err.message);
}
