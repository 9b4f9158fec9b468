/* Copies of uploads in the host's memory, of large ones their beginnings, so that slots and positions, which the host
 * made itself, need not be fetched back. A shadow stands for one upload and all parts of it. It goes when a later
 * upload, a result of eager or its release overlaps it. What kernels write is not seen here: shadows are asked for only
 * where no operation writes (ids, slots, positions, counts), so that what such a tensor holds was put there by uploads,
 * the last of which is seen.
 */
#include "queue.h"

#include <stdlib.h>
#include <string.h>

/* What is kept of an upload, and up to which size there is something in it that is asked for: not of weights. */
enum { SHADOW_BYTES = 256 << 10, SHADOW_UPLOAD = 16 << 20 };

const void *npu_shadow_of(tn_queue *queue, const void *device, size_t bytes)
{
    npu *n = npu_of(queue);
    const char *at = device;
    for (int i = 0; i < SHADOWS; i++) {
        const npu_shadow *s = &n->shadows[i];
        if (s->at && bytes > 0 && at >= s->at && at + bytes <= s->at + s->bytes)
            return (const char *)s->copy + (at - s->at);
    }
    return NULL;
}

void npu_shadow_drop(npu *n, const void *device, size_t bytes)
{
    const char *at = device;
    for (int i = 0; i < SHADOWS; i++) {
        npu_shadow *s = &n->shadows[i];
        if (s->at && at < s->at + s->bytes && s->at < at + bytes)
            s->at = NULL;
    }
}

size_t npu_reach(const tn_tensor *t)
{
    int64_t reach = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return 0;
        reach += (t->shape[i] - 1) * t->stride[i];
    }
    return (size_t)reach * tn_dtype_size(t->dtype);
}

void npu_shadow_drop_tensor(npu *n, const tn_tensor *t)
{
    if (t->data && npu_reach(t) > 0)
        npu_shadow_drop(n, t->data, npu_reach(t));
}

/* One that stands for nothing, or else the oldest. */
static npu_shadow *place_for_another(npu *n)
{
    for (int i = 0; i < SHADOWS; i++)
        if (!n->shadows[i].at)
            return &n->shadows[i];
    return &n->shadows[n->next_shadow++ % SHADOWS];
}

void npu_shadow_keep(npu *n, const void *device, const void *host, size_t bytes)
{
    if (bytes == 0 || bytes > SHADOW_UPLOAD)
        return;
    bytes = bytes < SHADOW_BYTES ? bytes : SHADOW_BYTES;
    npu_shadow *s = place_for_another(n);
    s->at = NULL;
    if (s->room < bytes) {
        void *copy = realloc(s->copy, bytes);
        if (!copy)
            return; /* it is a help, and not needed */
        s->copy = copy;
        s->room = bytes;
    }
    memcpy(s->copy, host, bytes);
    s->at = device;
    s->bytes = bytes;
}
