/* Which slots of caches hold zeros. Memory is zero when it is handed out, and where nothing but CACHE_APPEND wrote into
 * it, it still is behind the last slot that was ever written: attention may read these slots with the others. Where
 * that is not known it works on copies (eager_unused.c). A table of what was handed out, in the order of addresses. */
#include "queue.h"

#include <stdlib.h>
#include <string.h>

/* How many entries lie below an address or at it. */
static size_t below(const npu *n, const char *address)
{
    size_t low = 0, high = n->cache_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (n->caches[middle].at <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The one that an address belongs to, or NULL. */
static npu_cache *find(const npu *n, const void *address)
{
    size_t at = below(n, address);
    npu_cache *c = at > 0 ? &n->caches[at - 1] : NULL;
    return c && (const char *)address < c->at + c->bytes ? c : NULL;
}

/* Memory for one more; without it nothing is known of it. */
static bool has_room(npu *n)
{
    if (n->cache_count < n->cache_room)
        return true;
    size_t room = n->cache_room ? 2 * n->cache_room : 64;
    npu_cache *more = realloc(n->caches, room * sizeof *more);
    if (!more)
        return false;
    n->caches = more;
    n->cache_room = room;
    return true;
}

void npu_cache_fresh(npu *n, const void *memory, size_t bytes)
{
    if (!has_room(n))
        return;
    size_t at = below(n, memory);
    memmove(&n->caches[at + 1], &n->caches[at], (n->cache_count - at) * sizeof *n->caches);
    n->caches[at] = (npu_cache){.at = memory, .bytes = bytes};
    n->cache_count++;
}

void npu_cache_forget(npu *n, const void *memory)
{
    npu_cache *c = find(n, memory);
    if (!c)
        return;
    free(c->used);
    memmove(c, c + 1, (size_t)(&n->caches[--n->cache_count] - c) * sizeof *c);
}

void npu_cache_forget_all(npu *n)
{
    for (size_t i = 0; i < n->cache_count; i++)
        free(n->caches[i].used);
    free(n->caches);
    n->caches = NULL;
    n->cache_count = n->cache_room = 0;
}

static size_t step_of(const tn_tensor *t, int32_t dim)
{
    return (size_t)t->stride[dim] * tn_dtype_size(t->dtype);
}

/* Slots one after the other, each with all its heads. */
static bool lies_by_slots(const tn_tensor *t)
{
    return t->stride[1] >= t->shape[2] * t->stride[2] && t->stride[2] >= t->shape[3] && t->stride[0] > 0;
}

/* Sees the memory as this cache, unless it was another one before. */
static bool becomes(npu_cache *c, const tn_tensor *cache)
{
    if (!c->used) {
        c->used = calloc((size_t)cache->shape[0], sizeof *c->used);
        c->first = cache->data;
        c->rows = cache->shape[0];
        c->row = step_of(cache, 0);
        c->slot = step_of(cache, 1);
    }
    return c->used && c->first == (const char *)cache->data && c->rows == cache->shape[0] &&
           (c->rows == 1 || c->row == step_of(cache, 0)) && c->slot == step_of(cache, 1);
}

void npu_cache_appended(npu *n, const tn_tensor *cache, int64_t row, int64_t end)
{
    npu_cache *c = find(n, cache->data);
    if (!c)
        return;
    if (!lies_by_slots(cache) || !becomes(c, cache))
        npu_cache_forget(n, cache->data);
    else if (c->used[row] < end)
        c->used[row] = end;
}

int64_t npu_cache_zero_from(const npu *n, const tn_tensor *t, int64_t row)
{
    const char *at = (const char *)t->data + (size_t)row * step_of(t, 0);
    const npu_cache *c = t->data ? find(n, at) : NULL;
    if (!c || !c->used || at < c->first || !lies_by_slots(t) || step_of(t, 1) != c->slot)
        return INT64_MAX;
    size_t behind = (size_t)(at - c->first), which = c->rows == 1 ? 0 : behind / c->row;
    bool at_row = which < (size_t)c->rows && behind - which * c->row < c->slot;
    return at_row ? c->used[which] : INT64_MAX;
}
