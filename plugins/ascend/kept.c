/* Executors that are kept for calls that come again: in decode every token has the same operators with the same shapes
 * at the same addresses, and making an executor takes longer than queueing it. A table by key, emptied when it is full:
 * what comes again comes in again. */
#include "queue.h"

#include <stdlib.h>

/* Places are a power of two; no more than that many are taken, so that looking ends soon. */
enum { PLACES = 16384, MOST = 12288 };

/* Where a key is, or would be. */
static ascend_kept *place_of(npu *n, const uint64_t key[2])
{
    size_t at = (size_t)key[0] % PLACES;
    while (n->kept[at].executor && (n->kept[at].key[0] != key[0] || n->kept[at].key[1] != key[1]))
        at = (at + 1) % PLACES;
    return &n->kept[at];
}

const ascend_kept *npu_kept_find(tn_queue *queue, const uint64_t key[2])
{
    npu *n = npu_of(queue);
    const ascend_kept *k = n->kept ? place_of(n, key) : NULL;
    return k && k->executor ? k : NULL;
}

void npu_kept_release(npu *n)
{
    npu_graphs_drop(n);
    for (size_t i = 0; n->kept && i < PLACES; i++) {
        ascend_kept *k = &n->kept[i];
        if (!k->executor)
            continue;
        n->queue.api->aclDestroyAclOpExecutor(k->executor);
        for (int32_t j = k->count - 1; j >= 0; j--)
            if (k->objects[j].object)
                k->objects[j].destroy(k->objects[j].object);
        free(k->objects);
    }
    free(n->kept);
    n->kept = NULL;
    n->kept_count = 0;
}

bool npu_kept_keep(tn_queue *queue, const ascend_kept *kept)
{
    npu *n = npu_of(queue);
    if (n->kept_count == MOST) {
        if (npu_sync(queue, NULL) != TN_OK)
            return false;
        npu_kept_release(n);
    }
    if (!n->kept)
        n->kept = calloc(PLACES, sizeof *n->kept);
    if (!n->kept)
        return false;
    *place_of(n, kept->key) = *kept;
    n->kept_count++;
    return true;
}
