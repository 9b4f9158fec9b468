/* Masks of attention, and other constants of a call, that stay on the device: all layers that see the same read one,
 * and a token's mask comes to the place of the one before. Those that positions alone make are made there, so that
 * nothing is uploaded behind them. */
#include "operators.h"
#include "queue.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is larger does not stay. */
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

/* ---- made by the device ------------------------------------------------------------------------------------- */

void npu_made_drop(npu *n, npu_made *m)
{
    npu_free(&n->queue, m->at, m->bytes);
    *m = (npu_made){0};
}

/* The one of these positions, or else another, made one of them; its memory stays where it was, if it was there. */
static npu_made *place_of(npu_run *r, const tn_tensor *q, const tn_tensor *k, int64_t window)
{
    npu *n = npu_of(r->queue);
    npu_made like = {.q = q->data, .k = k->data, .queries = q->shape[0], .keys = k->shape[0], .window = window};
    for (int i = 0; i < MASKS; i++) {
        npu_made *m = &n->made[i];
        if (m->bytes > 0 && m->q == like.q && m->k == like.k && m->queries == like.queries && m->keys == like.keys &&
            m->window == window)
            return m;
    }
    npu_made *m = &n->made[n->next_made++ % MASKS];
    npu_made_drop(n, m);
    like.bytes = (size_t)(like.queries * like.keys);
    if (npu_alloc(r->queue, like.bytes, &like.at, NULL) != TN_OK)
        return NULL;
    *m = like;
    return m;
}

/* (k - low) (k - q) > 0, where low is the first position that q sees: what is between them makes it 0 or less. */
static void make(npu_run *r, tn_tensor q, tn_tensor k, int64_t window, tn_tensor hidden)
{
    int64_t queries = q.shape[0], keys = k.shape[0];
    size_t before = r->used;
    tn_tensor at = npu_take_2d(r, TN_F32, queries, 1), key = npu_take_2d(r, TN_F32, 1, keys);
    tn_tensor behind = npu_take_2d(r, TN_F32, queries, keys), beyond = npu_take_2d(r, TN_F32, queries, keys);
    npu_copy(r, npu_view(q.data, TN_I32, 2, at.shape, (int64_t[]){q.stride[0], 1}), at);
    npu_copy(r, npu_view(k.data, TN_I32, 2, key.shape, (int64_t[]){keys, k.stride[0]}), key);
    npu_add(r, key, at, -1, behind);
    if (window > 0) {
        npu_add_number(r, at, (float)(1 - window), at);
        npu_clamp(r, at, 0, INFINITY, at);
        npu_add(r, key, at, -1, beyond);
    }
    npu_multiply(r, behind, window > 0 ? beyond : key, behind);
    npu_above(r, behind, 0, hidden);
    r->used = before;
}

void *npu_mask_made(npu_run *r, tn_tensor q, tn_tensor k, int64_t window)
{
    npu *n = npu_of(r->queue);
    if (r->status != TN_OK || (size_t)(q.shape[0] * k.shape[0]) > LARGEST ||
        npu_needs(window > 0 ? "aclnnGtScalar aclnnClamp" : "aclnnGtScalar", NULL) != TN_OK)
        return NULL;
    npu_made *m = place_of(r, &q, &k, window);
    if (!m || m->uploads == n->uploads)
        return m ? m->at : NULL;
    make(r, q, k, window, npu_view(m->at, TN_BOOL, 2, (int64_t[]){q.shape[0], k.shape[0]}, NULL));
    m->uploads = n->uploads;
    if (r->status == TN_OK)
        return m->at;
    npu_made_drop(n, m);
    return NULL;
}
