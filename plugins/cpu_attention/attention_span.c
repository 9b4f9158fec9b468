/* Which keys of a block a tile of rows sees. */
#include "attention_run.h"

attention_bounds attention_no_bounds(void)
{
    return (attention_bounds){.lowest = INT32_MAX, .low = -1, .high = INT32_MAX, .highest = -1};
}

void attention_bound(attention_bounds *bounds, int32_t low, int32_t high)
{
    bounds->lowest = low < bounds->lowest ? low : bounds->lowest;
    bounds->low = low > bounds->low ? low : bounds->low;
    bounds->high = high < bounds->high ? high : bounds->high;
    bounds->highest = high > bounds->highest ? high : bounds->highest;
}

static void find_ends(const attention_keys *keys, int64_t from, int64_t end, int32_t *least, int32_t *most)
{
    *least = INT32_MAX;
    *most = -1;
    for (int64_t s = from; s < end; s++) {
        *least = keys->index[s] < *least ? keys->index[s] : *least;
        *most = keys->index[s] > *most ? keys->index[s] : *most;
    }
}

void attention_look(const tn_tensor *kv_index, int64_t b, int64_t first, int64_t count, attention_keys *keys)
{
    keys->first = first;
    keys->count = count;
    for (int64_t s = 0; s < count; s++)
        keys->index[s] = attention_position(kv_index, b, first + s);
    attention_ends(keys);
}

void attention_ends(attention_keys *keys)
{
    find_ends(keys, 0, keys->count, &keys->least, &keys->most);
}

static bool is_seen(const attention_bounds *bounds, int32_t index)
{
    return index >= bounds->lowest && index <= bounds->highest;
}

static bool is_full(const attention_bounds *bounds, int32_t least, int32_t most)
{
    return least >= bounds->low && most <= bounds->high;
}

bool attention_see(const attention_bounds *bounds, const attention_keys *keys, attention_part *part)
{
    int64_t from = 0, end = keys->count;
    *part = (attention_part){.count = end, .full = is_full(bounds, keys->least, keys->most)};
    if (part->full)
        return end > 0;
    while (from < end && !is_seen(bounds, keys->index[from]))
        from++;
    while (from < end && !is_seen(bounds, keys->index[end - 1]))
        end--;
    if (from == end)
        return false;
    from -= from % ATTENTION_STEP;
    end = attention_up(end, ATTENTION_STEP);
    end = end < keys->count ? end : keys->count;
    int32_t least, most;
    find_ends(keys, from, end, &least, &most);
    *part = (attention_part){from, end - from, is_full(bounds, least, most)};
    return true;
}
