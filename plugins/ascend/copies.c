/* Copies between host and device. What goes up is written into page-locked memory first, from where the device fetches
 * it in the order of the stream: the caller's memory is free at once, and nobody waits. */
#include "operators.h"
#include "queue.h"

#include <string.h>

#define STAGING ((size_t)4 << 20)
#define STAGING_ALIGN ((size_t)64)

/* Room for copies: at least one byte of it is free afterwards. */
static tn_status make_room(npu *n, tn_error *err)
{
    const ascend_api *api = n->queue.api;
    if (!n->staging) {
        void *memory = NULL;
        tn_status status = ascend_check(api, "aclrtMallocHost", api->aclrtMallocHost(&memory, STAGING), err);
        n->staging = status == TN_OK ? memory : NULL;
        return status;
    }
    return n->staged < STAGING ? TN_OK : npu_sync(&n->queue, err);
}

static tn_status stage(npu *n, char *device, const char *host, size_t bytes, tn_error *err)
{
    const ascend_api *api = n->queue.api;
    tn_status status = TN_OK;
    while (bytes > 0 && (status = make_room(n, err)) == TN_OK) {
        char *at = n->staging + n->staged;
        size_t part = bytes < STAGING - n->staged ? bytes : STAGING - n->staged;
        memcpy(at, host, part);
        n->queue.idle = false;
        status = ascend_check(api, "aclrtMemcpyAsync",
                              api->aclrtMemcpyAsync(device, part, at, part, ACL_MEMCPY_HOST_TO_DEVICE, n->queue.stream),
                              err);
        if (status != TN_OK)
            break;
        n->staged += (part + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
        device += part;
        host += part;
        bytes -= part;
    }
    return status;
}

tn_status npu_upload(tn_queue *queue, void *device, const void *host, size_t bytes, tn_error *err)
{
    npu *n = npu_of(queue);
    npu_shadow_drop(n, device, bytes);
    npu_cache_forget(n, device);
    n->uploads++;
    tn_status status = npu_enter(queue, err);
    if (status == TN_OK)
        status = npu_end_run(queue, err);
    if (status == TN_OK)
        status = stage(n, device, host, bytes, err);
    if (status == TN_OK)
        npu_shadow_keep(n, device, host, bytes);
    return status;
}

void npu_move(npu_run *r, tn_tensor x, tn_tensor y)
{
    size_t bytes = tn_dtype_bytes(x.dtype, tn_tensor_count(&x));
    if (r->measuring || r->status != TN_OK || bytes == 0)
        return;
    if (x.dtype != y.dtype || !ascend_is_dense(&x) || !ascend_is_dense(&y)) {
        npu_copy(r, x, y);
        return;
    }
    r->status = npu_enter(r->queue, r->err);
    if (r->status == TN_OK)
        r->status = npu_end_run(r->queue, r->err);
    if (r->status != TN_OK)
        return;
    r->queue->idle = false;
    r->status = ascend_check(
        r->api, "aclrtMemcpyAsync",
        r->api->aclrtMemcpyAsync(y.data, bytes, x.data, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE, r->queue->stream), r->err);
}

/* A copy that waits for itself does not wait for the stream. */
tn_status npu_download(tn_queue *queue, void *host, const void *device, size_t bytes, tn_error *err)
{
    tn_status status = npu_sync(queue, err);
    if (status != TN_OK || bytes == 0)
        return status;
    return ascend_check(queue->api, "aclrtMemcpy",
                        queue->api->aclrtMemcpy(host, bytes, device, bytes, ACL_MEMCPY_DEVICE_TO_HOST), err);
}
