/* The machine: is there an NPU that is served, and one context and one stream of it for each model. The runtime is
 * initialised once and never ended: whoever else uses it in this process goes on, and ending it from an exit handler is
 * not allowed. */
#include "npu_ops.h"
#include "queue.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEAT_INITIALIZE = 100002 };

static struct {
    pthread_mutex_t lock;
    bool started;
    const ascend_api *api;
    char soc[64];
} machine = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the machine ------------------------------------------------------------------------------------------ */

static tn_status count_units(const ascend_api *api, uint32_t *count, tn_error *err)
{
    *count = 0;
    tn_status status = ascend_check(api, "aclrtGetDeviceCount", api->aclrtGetDeviceCount(count), err);
    if (status == TN_OK && *count == 0)
        return tn_fail(err, TN_E_KERNEL, "npu",
                       "there is no NPU in this machine; npu-smi info lists what the driver sees");
    return status;
}

static tn_status start(const ascend_api *api, tn_error *err)
{
    uint32_t count;
    int32_t code = api->aclInit(NULL);
    if (code == REPEAT_INITIALIZE)
        api->aclGetRecentErrMsg(); /* somebody else in this process uses it, which is no error       */
    tn_status status = code == REPEAT_INITIALIZE ? TN_OK : ascend_check(api, "aclInit", code, err);
    if (status == TN_OK)
        status = count_units(api, &count, err);
    if (status != TN_OK)
        return status;
    const char *soc = api->aclrtGetSocName();
    if (!soc)
        return tn_fail(err, TN_E_INTERNAL, "npu", "aclrtGetSocName names no chip");
    if (ascend_chip_of(soc) == ASCEND_OTHER_CHIP)
        return tn_fail(err, TN_E_KERNEL, "npu",
                       "the chip is %.40s; Ascend910B1 and its like, Ascend910_93.. and Ascend310P are served", soc);
    snprintf(machine.soc, sizeof machine.soc, "%s", soc);
    return TN_OK;
}

static const ascend_api *start_once(tn_error *err)
{
    pthread_mutex_lock(&machine.lock);
    if (!machine.started) {
        machine.api = ascend_load(err);
        machine.started = machine.api && start(machine.api, err) == TN_OK;
    }
    const ascend_api *api = machine.started ? machine.api : NULL;
    pthread_mutex_unlock(&machine.lock);
    return api;
}

tn_status npu_available(tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (start_once(&why))
        return TN_OK;
    return tn_fail(err, why.code, why.where, "%s", why.message);
}

const char *npu_soc(void)
{
    return machine.soc;
}

/* ---- units ------------------------------------------------------------------------------------------------ */

tn_status npu_enter(tn_queue *queue, tn_error *err)
{
    return ascend_check(queue->api, "aclrtSetCurrentContext", queue->api->aclrtSetCurrentContext(queue->context), err);
}

static tn_status open_stream(npu *n, tn_error *err)
{
    const ascend_api *api = n->queue.api;
    tn_status status =
        ascend_check(api, "aclrtCreateContext", api->aclrtCreateContext(&n->queue.context, n->queue.unit), err);
    if (status != TN_OK)
        return status;
    status = ascend_check(api, "aclrtCreateStream", api->aclrtCreateStream(&n->queue.stream), err);
    if (status != TN_OK)
        api->aclrtDestroyContext(n->queue.context);
    return status;
}

static tn_status open_unit(npu *n, tn_error *err)
{
    const ascend_api *api = n->queue.api;
    tn_status status = ascend_check(api, "aclrtSetDevice", api->aclrtSetDevice(n->queue.unit), err);
    if (status != TN_OK)
        return status;
    status = open_stream(n, err);
    if (status != TN_OK)
        api->aclrtResetDevice(n->queue.unit);
    return status;
}

tn_status npu_open(int32_t ordinal, tn_queue **queue, tn_error *err)
{
    uint32_t count;
    const ascend_api *api = start_once(err);
    tn_status status = api ? count_units(api, &count, err) : TN_E_KERNEL;
    if (status != TN_OK)
        return status;
    if (ordinal < 0 || (uint32_t)ordinal >= count)
        return tn_fail(err, TN_E_USAGE, "npu", "there %s %" PRIu32 " NPU%s, from 0 to %" PRIu32,
                       count == 1 ? "is" : "are", count, count == 1 ? "" : "s", count - 1);
    npu *n = calloc(1, sizeof *n);
    if (!n)
        return tn_fail(err, TN_E_MEMORY, "npu", "out of memory");
    n->queue = (struct tn_queue){.magic = ASCEND_QUEUE,
                                 .size = sizeof n->queue,
                                 .api = api,
                                 .unit = ordinal,
                                 .workspace = npu_workspace,
                                 .shadow = npu_shadow_of,
                                 .find = npu_kept_find,
                                 .keep = npu_kept_keep,
                                 .launch = npu_launch};
    memcpy(n->queue.soc, machine.soc, sizeof n->queue.soc);
    status = npu_graphs_open(n, err);
    if (status == TN_OK)
        status = open_unit(n, err);
    if (status == TN_OK)
        *queue = &n->queue;
    else
        free(n);
    return status;
}

tn_status npu_sync(tn_queue *queue, tn_error *err)
{
    tn_status status = npu_enter(queue, err);
    if (status == TN_OK)
        status = npu_end_run(queue, err);
    if (status != TN_OK || queue->idle)
        return status;
    status = ascend_check(queue->api, "aclrtSynchronizeStream", queue->api->aclrtSynchronizeStream(queue->stream), err);
    queue->idle = status == TN_OK;
    if (status != TN_OK)
        return status;
    npu_of(queue)->staged = 0;
    npu_graphs_waited(npu_of(queue));
    return TN_OK;
}

/* Streams before the context that they belong to, and that before the unit. */
void npu_close(tn_queue *queue)
{
    npu *n = npu_of(queue);
    /* Nothing may be released before the stream is empty: what failed once, and is told by nobody here, may not again.
     */
    if (npu_sync(queue, NULL) != TN_OK)
        npu_sync(queue, NULL);
    for (int i = 0; i < MASKS; i++)
        npu_mask_drop(n, &n->masks[i]);
    for (int i = 0; i < MASKS; i++)
        npu_made_drop(n, &n->made[i]);
    npu_kept_release(n);
    npu_graphs_close(n);
    npu_cache_forget_all(n);
    npu_release(n);
    queue->api->aclrtDestroyStream(queue->stream);
    queue->api->aclrtDestroyContext(queue->context);
    queue->api->aclrtResetDevice(queue->unit);
    for (int i = 0; i < SHADOWS; i++)
        free(n->shadows[i].copy);
    free(n);
}
