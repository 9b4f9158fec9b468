/* A map from names to numbers: open addressing over a table that is at most half full. */
#include "base/names.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* Names come from files that may be hostile: the seed keeps them from being chosen to collide. */
static uint64_t random_seed(const void *address)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)(uintptr_t)address ^ ((uint64_t)time(NULL) << 20);
    return seed;
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return h ^ (h >> 29);
}

static uint64_t hash_name(uint64_t seed, const char *name)
{
    size_t n = strlen(name);
    uint64_t h = seed ^ mix(n), word;
    for (; n >= sizeof word; n -= sizeof word, name += sizeof word) {
        memcpy(&word, name, sizeof word);
        h = mix(h ^ word) + seed;
    }
    word = 0;
    memcpy(&word, name, n);
    return mix(h ^ word);
}

bool names_init(names *map, size_t count)
{
    size_t slots = 8;
    while (slots < 2 * count)
        slots *= 2;
    map->slots = calloc(slots, sizeof *map->slots);
    map->mask = slots - 1;
    map->seed = random_seed(map->slots);
    return map->slots != NULL;
}

void names_close(names *map)
{
    free(map->slots);
    *map = (names){0};
}

/* The slot that holds name, or the free one where it belongs. */
static names_slot *find_slot(const names *map, const char *name, uint64_t hash)
{
    size_t i = hash & map->mask;
    while (map->slots[i].name && (map->slots[i].hash != hash || strcmp(map->slots[i].name, name) != 0))
        i = (i + 1) & map->mask;
    return &map->slots[i];
}

bool names_add(names *map, const char *name, size_t value)
{
    uint64_t hash = hash_name(map->seed, name);
    names_slot *slot = find_slot(map, name, hash);
    if (slot->name)
        return false;
    *slot = (names_slot){name, hash, value};
    return true;
}

bool names_find(const names *map, const char *name, size_t *value)
{
    if (!map->slots)
        return false;
    const names_slot *slot = find_slot(map, name, hash_name(map->seed, name));
    if (!slot->name)
        return false;
    *value = slot->value;
    return true;
}
