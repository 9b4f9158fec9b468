/* Masks of attention that stay on the device: all layers that see the same read one, and a token's comes to the place
 * of the one before. */
#include "operators.h"
#include "queue.h"

#include <stdlib.h>
#include <string.h>

/* What is larger goes through scratch. */
#define LARGEST ((size_t)4 << 20)

/* The one that holds these bytes, or else has their size, or else the next in turn. */
static npu_mask *find(npu *n, const void *mask, size_t bytes)
{
    npu_mask *same_size = NULL;
    for (int i = 0; i < MASKS; i++) {
        npu_mask *m = &n->masks[i];
        if (m->bytes == bytes && memcmp(m->copy, mask, bytes) == 0)
            return m;
        if (m->bytes == bytes && m != n->last_mask)
            same_size = m;
    }
    return same_size ? same_size : &n->masks[n->next_mask++ % MASKS];
}

/* Makes it one of that many bytes; false: it holds none. */
static bool resize(npu *n, npu_mask *m, size_t bytes)
{
    npu_mask_drop(n, m);
    m->copy = malloc(bytes);
    if (m->copy && npu_alloc(&n->queue, bytes, &m->at, NULL) == TN_OK)
        m->bytes = bytes;
    else
        npu_mask_drop(n, m);
    return m->bytes > 0;
}

void npu_mask_drop(npu *n, npu_mask *m)
{
    npu_free(&n->queue, m->at, m->bytes);
    free(m->copy);
    *m = (npu_mask){0};
}

void *npu_mask_of(npu_run *r, const void *mask, size_t bytes)
{
    npu *n = npu_of(r->queue);
    if (r->status != TN_OK || bytes > LARGEST || bytes == 0)
        return NULL;
    npu_mask *m = find(n, mask, bytes);
    n->last_mask = m;
    if (m->bytes == bytes && memcmp(m->copy, mask, bytes) == 0)
        return m->at;
    if (m->bytes != bytes && !resize(n, m, bytes))
        return NULL;
    memcpy(m->copy, mask, bytes);
    npu_put(r, m->at, mask, bytes);
    if (r->status == TN_OK)
        return m->at;
    npu_mask_drop(n, m);
    return NULL;
}
