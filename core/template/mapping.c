/* Dictionaries: keys and values in the order of insertion, and a table of positions by hash. */
#include "template/value.h"
#include "base/hash.h"

#include <math.h>
#include <string.h>

/* Equal numbers of different types have one hash, as True, 1 and 1.0 are one key. */
static uint64_t hash_number(value v)
{
    double real = value_real(v);
    int64_t whole;
    if (!value_whole(v, &whole)) {
        if (!(real >= -9.2e18 && real <= 9.2e18) || real != floor(real))
            return hash_bytes(HASH_START, &real, sizeof real);
        whole = (int64_t)real;
    }
    return hash_bytes(HASH_START, &whole, sizeof whole);
}

uint64_t value_hash(sandbox *s, value v, bool *hashable)
{
    uint64_t hash = HASH_START + v.kind;
    sandbox_step(s, 1);
    if (value_is_number(v))
        return hash_number(v);
    if (v.kind == VALUE_STRING) {
        sandbox_step(s, v.as.string->size / 16);
        return hash_bytes(HASH_START, v.as.string->data, v.as.string->size);
    }
    if (v.kind == VALUE_NONE || v.kind == VALUE_UNDEFINED)
        return hash;
    if (value_is_tuple(v)) {
        sandbox_enter(s);
        for (size_t i = 0; i < v.as.list->count; i++) {
            uint64_t item = value_hash(s, v.as.list->items[i], hashable);
            hash = hash_bytes(hash, &item, sizeof item);
        }
        sandbox_leave(s);
        return hash;
    }
    if (v.kind == VALUE_DICT || v.kind == VALUE_LIST) /* ranges and generators are no use as keys */
        *hashable = false;
    return hash_bytes(hash, &v.as.list, sizeof(void *));
}

mapping *mapping_new(sandbox *s)
{
    return sandbox_alloc(s, sizeof(mapping));
}

/* The slot where a key is or would be. */
static size_t slot_of(sandbox *s, const mapping *m, value key, uint64_t hash)
{
    size_t slot = (size_t)((hash ^ (hash >> 32)) & (m->slots - 1));
    while (m->index[slot]) {
        size_t at = m->index[slot] - 1;
        if (m->hashes[at] == hash && value_equal(s, m->keys[at], key))
            break;
        sandbox_step(s, 1);
        slot = (slot + 1) & (m->slots - 1);
    }
    return slot;
}

static void *grown(sandbox *s, const void *from, size_t count, size_t capacity, size_t each)
{
    void *to = sandbox_array(s, capacity, each);
    if (count)
        memcpy(to, from, count * each);
    return to;
}

static void grow(sandbox *s, mapping *m)
{
    size_t capacity = m->capacity ? 2 * m->capacity : 8;
    m->keys = grown(s, m->keys, m->count, capacity, sizeof *m->keys);
    m->values = grown(s, m->values, m->count, capacity, sizeof *m->values);
    m->hashes = grown(s, m->hashes, m->count, capacity, sizeof *m->hashes);
    m->capacity = capacity;
    m->slots = 2 * capacity;
    m->index = sandbox_array(s, m->slots, sizeof *m->index);
    for (size_t i = 0; i < m->count; i++)
        m->index[slot_of(s, m, m->keys[i], m->hashes[i])] = (uint32_t)(i + 1);
}

void mapping_set(sandbox *s, mapping *m, value key, value item)
{
    bool hashable = true;
    uint64_t hash = value_hash(s, key, &hashable);
    if (!hashable)
        sandbox_fail(s, "unhashable type: '%s'; keys are strings and numbers", value_type(key));
    if (m->count == m->capacity)
        grow(s, m);
    size_t slot = slot_of(s, m, key, hash);
    if (m->index[slot]) {
        m->values[m->index[slot] - 1] = item;
        return;
    }
    m->keys[m->count] = key;
    m->values[m->count] = item;
    m->hashes[m->count] = hash;
    m->index[slot] = (uint32_t)++m->count;
}

const value *mapping_get(sandbox *s, const mapping *m, value key)
{
    bool hashable = true;
    uint64_t hash = value_hash(s, key, &hashable);
    if (!hashable || m->count == 0)
        return NULL;
    size_t slot = slot_of(s, m, key, hash);
    return m->index[slot] ? &m->values[m->index[slot] - 1] : NULL;
}

const value *mapping_find(sandbox *s, const mapping *m, const char *key)
{
    string text = {.data = key, .size = strlen(key)};
    return mapping_get(s, m, value_of(&text));
}

void mapping_put(sandbox *s, mapping *m, const char *key, value item)
{
    mapping_set(s, m, value_string(s, key, strlen(key)), item);
}

void mapping_update(sandbox *s, mapping *m, const mapping *from)
{
    for (size_t i = 0; i < from->count; i++)
        mapping_set(s, m, from->keys[i], from->values[i]);
}
