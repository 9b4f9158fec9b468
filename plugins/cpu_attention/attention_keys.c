/* The keys of a batch row in the order of their positions, wherever a cache keeps them: blocks begin at multiples of
 * their size, so that where a key stands in its block follows from its position alone. */
#include "attention_run.h"

#include <string.h>

static const int32_t *group_of(const attention_map *map, int64_t group, int64_t *count)
{
    int64_t left = map->slots - group * map->group;
    *count = left < map->group ? left : map->group;
    return map->index + group * map->group * map->step;
}

bool attention_by_slot(const tn_tensor *kv_index)
{
    if (kv_index->shape[0] == 0 || kv_index->shape[1] < 2)
        return false;
    int32_t first = attention_position(kv_index, 0, 0);
    return first >= 0 && first == attention_position(kv_index, 0, 1);
}

/* Positions of slots that are not used are negative: without a sign they are the largest. */
void attention_map_keys(attention_map *map, const tn_tensor *kv_index, int64_t b)
{
    map->b = b;
    map->by_slot = attention_by_slot(kv_index);
    map->index = (const int32_t *)kv_index->data + b * kv_index->stride[0];
    map->step = kv_index->stride[1];
    map->slots = kv_index->shape[1];
    map->group = attention_up((map->slots + ATTENTION_MAP - 1) / ATTENTION_MAP, ATTENTION_KEYS);
    map->groups = map->slots > 0 ? (map->slots + map->group - 1) / map->group : 0;
    for (int64_t g = 0; g < map->groups; g++) {
        int64_t count;
        const int32_t *index = group_of(map, g, &count);
        uint32_t least = UINT32_MAX;
        int32_t most = -1;
        for (int64_t s = 0; s < count; s++) {
            int32_t at = index[s * map->step];
            least = (uint32_t)at < least ? (uint32_t)at : least;
            most = at > most ? at : most;
        }
        map->least[g] = least;
        map->most[g] = most;
    }
}

/* The first position from `from` on that a slot holds. */
static int64_t next_position(const attention_map *map, int64_t from)
{
    int64_t next = INT64_MAX;
    for (int64_t g = 0; g < map->groups; g++) {
        int64_t count;
        const int32_t *index = group_of(map, g, &count);
        if (map->most[g] < from || map->least[g] >= next)
            continue;
        if (map->least[g] >= from) {
            next = map->least[g];
            continue;
        }
        uint32_t least = UINT32_MAX;
        for (int64_t s = 0; s < count; s++) {
            uint32_t behind = (uint32_t)index[s * map->step] - (uint32_t)from;
            least = behind < least ? behind : least;
        }
        next = from + least < next ? from + least : next;
    }
    return next;
}

/* The keys of a block into their places. Of a position that a second slot holds, that slot and what lies behind it are
 * left for another block with the same positions: no cache does that, but data could. */
static void take(const attention_map *map, attention_cursor *at, int64_t begin, int64_t size, attention_keys *keys)
{
    const int64_t first = begin == at->position ? at->slot : 0;
    *at = (attention_cursor){begin + size, 0};
    memset(keys->slot, 0xff, (size_t)size * sizeof *keys->slot);
    memset(keys->index, 0xff, (size_t)size * sizeof *keys->index);
    for (int64_t g = 0; g < map->groups; g++) {
        int64_t count, slot = g * map->group;
        const int32_t *index = group_of(map, g, &count);
        if (map->most[g] < begin || map->least[g] >= begin + size)
            continue;
        for (int64_t s = first > slot ? first - slot : 0; s < count; s++) {
            int64_t place = index[s * map->step] - begin;
            if (place < 0 || place >= size)
                continue;
            if (keys->slot[place] >= 0) {
                *at = (attention_cursor){begin, slot + s};
                return;
            }
            keys->slot[place] = (int32_t)(slot + s);
            keys->index[place] = index[s * map->step];
        }
    }
}

/* The next slots. Positions that are not asked for are nobody's. */
static bool next_slots(const attention_map *map, attention_cursor *at, int64_t last, int64_t size, attention_keys *keys)
{
    if (at->slot >= map->slots)
        return false;
    keys->position = keys->first = at->slot;
    keys->count = map->slots - at->slot < size ? map->slots - at->slot : size;
    for (int64_t s = 0; s < keys->count; s++) {
        int32_t index = map->index[(at->slot + s) * map->step];
        keys->index[s] = index >= at->position && index <= last ? index : -1;
    }
    at->slot += size;
    attention_ends(keys);
    return true;
}

bool attention_next_keys(const attention_map *map, attention_cursor *at, int64_t last, int64_t size,
                         attention_keys *keys)
{
    if (map->by_slot)
        return next_slots(map, at, last, size, keys);
    int64_t lowest = next_position(map, at->position);
    if (lowest > last)
        return false;
    int64_t begin = lowest / size * size, start = lowest - begin;
    if (begin > at->position)
        *at = (attention_cursor){begin, 0};
    else
        at->position = begin;
    take(map, at, begin, size, keys);
    while (keys->slot[start] < 0)
        start++;
    keys->position = begin;
    keys->first = keys->slot[start] - start;
    for (int64_t s = 0; s < size; s++)
        if (keys->slot[s] >= 0) {
            keys->count = s + 1;
            keys->first = keys->slot[s] - s == keys->first ? keys->first : -1;
        }
    attention_ends(keys);
    return true;
}

const char *attention_bring(const tn_tensor *t, int64_t b, int64_t head, const attention_keys *keys, int64_t from,
                            int64_t end, char *memory, int64_t *step)
{
    *step = attention_step(t);
    if (keys->first >= 0)
        return attention_at(t, b, keys->first, head);
    const size_t row = (size_t)t->shape[3] * tn_dtype_size(t->dtype);
    *step = (int64_t)row;
    for (int64_t s = from; s < end; s++) {
        if (keys->slot[s] >= 0)
            memcpy(memory + (size_t)s * row, attention_at(t, b, keys->slot[s], head), row);
        else
            memset(memory + (size_t)s * row, 0, row);
    }
    return memory;
}
