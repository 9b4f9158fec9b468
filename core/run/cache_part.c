/* The beginning of what a cache holds: kept, or given to another one. */
#include "run/cache.h"

#include <string.h>

/* What the token behind `length` sees of a ring must not have been overwritten by later ones. */
static bool ring_holds(const kv_cache *c, const cache_kind *kind, int64_t length)
{
    int64_t oldest = c->length[0] - kind->capacity, first_seen = kind->window > 0 ? length - kind->window + 1 : 0;
    return oldest <= 0 || first_seen >= oldest;
}

bool cache_has_states(const kv_cache *c)
{
    int64_t i = 0;
    while (i < c->layers && !c->conv[i] && !c->state[i])
        i++;
    return i < c->layers;
}

const char *cache_rewind(kv_cache *c, int64_t length)
{
    if (cache_has_states(c))
        return "layers keep a state that does not go back";
    for (int32_t i = 0; i < c->kind_count; i++)
        if (!ring_holds(c, &c->kind[i], length))
            return "keys inside a window were overwritten";
    for (int32_t i = 0; i < c->kind_count; i++)
        for (int64_t s = 0; s < c->kind[i].capacity; s++)
            if (c->kind[i].kv_index[s] >= length)
                c->kind[i].kv_index[s] = -1;
    c->length[0] = length;
    return NULL;
}

/* Of a tensor with a place for each position, those of slots 0 .. count - 1. */
static void copy_slots(const growing *to, const growing *from, int64_t capacity, int64_t count)
{
    if (from->bytes > 0)
        memcpy(to->data, from->data, from->bytes / (size_t)capacity * (size_t)count);
}

tn_status cache_copy(kv_cache *to, const kv_cache *from, int64_t length, tn_error *err)
{
    const char *why = from->device->ops->host_memory ? NULL : "the device's memory is not the host's";
    for (int32_t i = 0; i < from->kind_count && !why; i++)
        why = ring_holds(from, &from->kind[i], length) ? NULL : "keys inside a window were overwritten";
    if (why)
        return tn_fail(err, TN_DECLINED, "KV cache", "%s", why);
    tn_status status = cache_hold(to, length, err);
    if (status != TN_OK)
        return status;
    int64_t used[CACHE_KINDS];
    for (int32_t i = 0; i < from->kind_count; i++) {
        const cache_kind *source = &from->kind[i];
        used[i] = from->length[0] < source->capacity ? length : source->capacity;
        for (int64_t s = 0; s < used[i]; s++)
            to->kind[i].kv_index[s] = source->kv_index[s] < length ? source->kv_index[s] : -1;
    }
    for (int64_t i = 0; i < from->layers; i++) {
        int32_t which = from->layer_kind[i];
        int64_t capacity = from->kind[which].capacity;
        copy_slots(&to->k[i], &from->k[i], capacity, used[which]);
        copy_slots(&to->v[i], &from->v[i], capacity, used[which]);
        copy_slots(&to->index[i], &from->index[i], capacity, used[which]);
    }
    to->length[0] = length;
    to->used = true;
    return TN_OK;
}

bool cache_holds_beginning(const kv_cache *c, int64_t length)
{
    for (int32_t i = 0; i < c->kind_count; i++)
        if (!ring_holds(c, &c->kind[i], length))
            return false;
    return true;
}

/* ---- states ---------------------------------------------------------------------------------------- */

static size_t bytes_of(const tn_tensor *t)
{
    return (size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype);
}

size_t cache_state_bytes(const kv_cache *c)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < c->layers; i++)
        bytes += bytes_of(&c->view[i].conv) + bytes_of(&c->view[i].state);
    return bytes;
}

tn_status cache_state_save(const kv_cache *c, void *to, tn_error *err)
{
    char *at = to;
    tn_status status = device_sync(c->device, err);
    for (int64_t i = 0; i < c->layers && status == TN_OK; i++) {
        const tn_tensor *part[2] = {&c->view[i].conv, &c->view[i].state};
        for (int n = 0; n < 2 && status == TN_OK; at += bytes_of(part[n]), n++)
            if (bytes_of(part[n]) > 0)
                status = device_download(c->device, at, part[n]->data, bytes_of(part[n]), err);
    }
    return status;
}

tn_status cache_state_load(kv_cache *c, const void *from, int64_t length, tn_error *err)
{
    const char *at = from;
    tn_status status = TN_OK;
    cache_measure(c, 1);
    for (int64_t i = 0; i < c->layers && status == TN_OK; i++) {
        const tn_tensor *part[2] = {&c->view[i].conv, &c->view[i].state};
        for (int n = 0; n < 2 && status == TN_OK; at += bytes_of(part[n]), n++)
            if (bytes_of(part[n]) > 0)
                status = device_upload(c->device, part[n]->data, at, bytes_of(part[n]), err);
    }
    c->length[0] = length;
    c->used = true;
    return status;
}
