/* Tokens and what was made of them. */
#include "engine/held.h"

#include <stdlib.h>
#include <string.h>

tn_status held_append(held_text *t, const int64_t *ids, int64_t count, tn_error *err)
{
    if (t->count + count > t->capacity) {
        int64_t capacity = t->capacity * 2 > t->count + count ? t->capacity * 2 : t->count + count;
        int64_t *tokens = realloc(t->tokens, (size_t)capacity * sizeof *tokens);
        if (!tokens)
            return tn_fail(err, TN_E_MEMORY, "engine", "out of memory for %lld tokens", (long long)capacity);
        t->tokens = tokens;
        t->capacity = capacity;
    }
    memcpy(t->tokens + t->count, ids, (size_t)count * sizeof *ids);
    t->count += count;
    return TN_OK;
}

tn_status held_open_cache(held_text *t, const held_maker *maker, tn_error *err)
{
    tn_status status = cache_init(&t->cache, maker->model->target.device, maker->model->dtype, maker->shape, 1,
                                  maker->context, maker->chunk, err);
    if (status != TN_OK)
        held_drop_cache(t);
    return status;
}

static void drop_snapshots(held_text *t)
{
    for (int64_t i = 0; i < t->snapshots; i++)
        free(t->snapshot[i].states);
    t->snapshots = 0;
}

void held_drop_cache(held_text *t)
{
    if (t->cache.device)
        cache_close(&t->cache);
    t->cache = (kv_cache){0};
    drop_snapshots(t);
    memset(t->rope_length, 0, sizeof t->rope_length);
    t->fed = 0;
}

void held_close(held_text *t)
{
    held_drop_cache(t);
    free(t->tokens);
    *t = (held_text){0};
}

size_t held_bytes(const held_text *t)
{
    return t->cache.device ? cache_held(&t->cache) + (size_t)t->snapshots * t->snapshot_bytes : 0;
}

size_t held_would_hold(const held_text *t, int64_t tokens)
{
    return cache_would_hold(&t->cache, tokens) + (size_t)t->snapshots * t->snapshot_bytes;
}

int64_t held_common(const held_text *a, const held_text *b)
{
    int64_t most = a->count < b->count ? a->count : b->count, n = 0;
    while (a->salt == b->salt && n < most && a->tokens[n] == b->tokens[n])
        n++;
    return n;
}

/* Have frequencies followed the length of either? Keys that were rotated by others fit no text. */
static bool moved(const held_maker *maker, const held_text *from, const held_text *to)
{
    for (int32_t i = 0; i < maker->shape->rope_count; i++) {
        const rope_params *rope = &maker->shape->rope[i];
        if (rope_tables_moved(rope, from->rope_length[i]) || rope_tables_moved(rope, to->count))
            return true;
    }
    return false;
}

/* The latest states that are not behind length; -1: none. */
static int64_t snapshot_before(const held_text *t, int64_t length)
{
    for (int64_t i = 0; i < t->snapshots; i++)
        if (t->snapshot[i].length <= length)
            return i;
    return -1;
}

int64_t held_shared(const held_maker *maker, const held_text *from, const held_text *to)
{
    int64_t length = from->cache.device && !moved(maker, from, to) ? held_common(from, to) : 0;
    length = length < from->fed ? length : from->fed;
    length = length < to->count - 1 ? length : to->count - 1;
    if (length > 0 && cache_has_states(&from->cache)) {
        int64_t at = snapshot_before(from, length);
        length = at < 0 ? 0 : from->snapshot[at].length;
    }
    return length > 0 && cache_holds_beginning(&from->cache, length) ? length : 0;
}

/* States of from behind length tokens, where there are states; they are noted with to as well. */
static tn_status share_states(held_text *to, const held_text *from, int64_t length, tn_error *err)
{
    if (!cache_has_states(&to->cache))
        return TN_OK;
    int64_t at = snapshot_before(from, length);
    if (at < 0 || from->snapshot[at].length != length)
        return tn_fail(err, TN_DECLINED, "engine", "the states behind %lld tokens were not noted", (long long)length);
    tn_status status = cache_state_load(&to->cache, from->snapshot[at].states, length, err);
    void *copy = status == TN_OK ? malloc(from->snapshot_bytes) : NULL;
    if (copy) { /* else it is only not shared once more                                               */
        memcpy(copy, from->snapshot[at].states, from->snapshot_bytes);
        to->snapshot_bytes = from->snapshot_bytes;
        to->snapshot[0] = (held_snapshot){length, copy};
        to->snapshots = 1;
    }
    return status;
}

tn_status held_take(held_text *to, held_text *from, int64_t length, tn_error *err)
{
    const char *why = length == from->fed ? NULL : cache_rewind(&from->cache, length);
    if (why)
        return tn_fail(err, TN_DECLINED, "engine", "%s", why);
    to->cache = from->cache;
    from->cache = (kv_cache){0};
    to->fed = length;
    held_drop_cache(from);
    return TN_OK;
}

tn_status held_copy(held_text *to, const held_maker *maker, const held_text *from, int64_t length, tn_error *err)
{
    tn_status status = held_open_cache(to, maker, err);
    if (status == TN_OK)
        status = cache_copy(&to->cache, &from->cache, length, err);
    if (status == TN_OK)
        status = share_states(to, from, length, err);
    if (status != TN_OK) {
        held_drop_cache(to);
        return status;
    }
    to->fed = length;
    return TN_OK;
}

tn_status held_note_states(held_text *t, tn_error *err)
{
    t->snapshot_bytes = cache_state_bytes(&t->cache);
    void *states = malloc(t->snapshot_bytes);
    if (!states)
        return tn_fail(err, TN_E_MEMORY, "engine", "out of memory for %zu bytes of states", t->snapshot_bytes);
    tn_status status = cache_state_save(&t->cache, states, err);
    if (status != TN_OK) {
        free(states);
        return status;
    }
    if (t->snapshots == HELD_SNAPSHOTS)
        free(t->snapshot[--t->snapshots].states);
    memmove(t->snapshot + 1, t->snapshot, (size_t)t->snapshots * sizeof *t->snapshot);
    t->snapshot[0] = (held_snapshot){t->fed, states};
    t->snapshots++;
    return TN_OK;
}
