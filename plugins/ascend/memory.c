/* Device memory. What is given back stays with the queue and goes to the next who asks for that size: sessions and
 * checks ask for the same sizes again and again, and the vendor's allocator is slow. */
#include "npu_ops.h"
#include "queue.h"

#include <stdlib.h>

/* Sizes are powers of two up to a page, and whole pages beyond. */
#define LEAST ((size_t)512)
#define PAGE ((size_t)64 << 10)
/* More than this is not kept. */
#define CACHED_MOST ((size_t)256 << 20)

static size_t rounded(size_t bytes)
{
    if (bytes > PAGE)
        return bytes > SIZE_MAX - PAGE ? SIZE_MAX : (bytes + PAGE - 1) / PAGE * PAGE;
    size_t size = LEAST;
    while (size < bytes)
        size *= 2;
    return size;
}

/* Gives everything that is not in use back to the vendor. Freeing does not wait for the stream, so this does. */
static tn_status flush(npu *n, tn_error *err)
{
    tn_status status = n->free ? npu_sync(&n->queue, err) : TN_OK;
    if (n->free && status == TN_OK)
        npu_graphs_drop(n);
    while (n->free && status == TN_OK) {
        npu_block *block = n->free;
        n->free = block->next;
        n->cached -= block->bytes;
        status = ascend_check(n->queue.api, "aclrtFree", n->queue.api->aclrtFree(block->at), err);
        free(block);
    }
    return status;
}

static tn_status no_memory(npu *n, size_t bytes, int32_t code, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    size_t available = 0, total = 0;
    tn_status status = ascend_check(n->queue.api, "aclrtMalloc", code, &why);
    n->queue.api->aclrtGetMemInfo(ACL_HBM_MEM, &available, &total);
    return tn_fail(err, status, "npu",
                   "cannot allocate %zu bytes, %zu of %zu are free (%s); use a shorter context or a smaller model",
                   bytes, available, total, why.message);
}

/* A block of a rounded size, contents undefined. */
static tn_status take(npu *n, size_t bytes, void **out, tn_error *err)
{
    for (npu_block **at = &n->free; *at; at = &(*at)->next) {
        npu_block *block = *at;
        if (block->bytes != bytes)
            continue;
        *out = block->at;
        *at = block->next;
        n->cached -= bytes;
        free(block);
        return TN_OK;
    }
    int32_t code = n->queue.api->aclrtMalloc(out, bytes, ACL_MEM_MALLOC_HUGE_FIRST);
    if (code != 0 && n->free) {
        n->queue.api->aclGetRecentErrMsg(); /* tried again                                            */
        tn_status status = flush(n, err);
        if (status != TN_OK)
            return status;
        code = n->queue.api->aclrtMalloc(out, bytes, ACL_MEM_MALLOC_HUGE_FIRST);
    }
    return code == 0 ? TN_OK : no_memory(n, bytes, code, err);
}

static void give(npu *n, void *memory, size_t bytes)
{
    npu_block *block = malloc(sizeof *block);
    if (!block) {
        npu_sync(&n->queue, NULL);
        npu_graphs_drop(n);
        n->queue.api->aclrtFree(memory);
        return;
    }
    *block = (npu_block){.next = n->free, .at = memory, .bytes = bytes};
    n->free = block;
    n->cached += bytes;
    if (n->cached > CACHED_MOST)
        flush(n, NULL);
}

tn_status npu_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    npu *n = npu_of(queue);
    size_t size = rounded(bytes);
    *out = NULL;
    tn_status status = npu_enter(queue, err);
    if (status == TN_OK)
        status = npu_end_run(queue, err);
    if (status == TN_OK)
        status = take(n, size, out, err);
    if (status != TN_OK)
        return status;
    queue->idle = false;
    status = ascend_check(queue->api, "aclrtMemsetAsync",
                          queue->api->aclrtMemsetAsync(*out, size, 0, size, queue->stream), err);
    if (status != TN_OK) {
        give(n, *out, size);
        *out = NULL;
    } else {
        npu_cache_fresh(n, *out, size);
    }
    return status;
}

void npu_free(tn_queue *queue, void *memory, size_t bytes)
{
    if (!memory)
        return;
    npu_shadow_drop(npu_of(queue), memory, bytes);
    npu_cache_forget(npu_of(queue), memory);
    npu_enter(queue, NULL);
    npu_flush(queue, NULL);
    give(npu_of(queue), memory, rounded(bytes));
}

void *npu_workspace(tn_queue *queue, uint64_t bytes, tn_error *err)
{
    npu *n = npu_of(queue);
    if (bytes <= n->workspace_bytes)
        return n->workspace;
    void *memory = NULL;
    /* Twice as large at least: what grows with every token would take and give back memory for each. */
    size_t size = rounded(bytes > 2 * n->workspace_bytes ? bytes : 2 * n->workspace_bytes);
    if (npu_enter(queue, err) != TN_OK || take(n, size, &memory, err) != TN_OK)
        return NULL;
    if (n->workspace)
        give(n, n->workspace, n->workspace_bytes);
    n->workspace = memory;
    n->workspace_bytes = size;
    return memory;
}

void npu_release(npu *n)
{
    const ascend_api *api = n->queue.api;
    if (n->workspace)
        api->aclrtFree(n->workspace);
    while (n->free) {
        npu_block *block = n->free;
        n->free = block->next;
        api->aclrtFree(block->at);
        free(block);
    }
    if (n->staging)
        api->aclrtFreeHost(n->staging);
}
