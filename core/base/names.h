/* Inside core: a map from names to numbers. */
#ifndef TENON_CORE_NAMES_H
#define TENON_CORE_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct names_slot {
    const char *name; /* borrowed; NULL: free                                                     */
    uint64_t hash;
    size_t value;
} names_slot;

typedef struct names {
    names_slot *slots;
    size_t mask; /* number of slots - 1; a power of two minus one                                 */
    uint64_t seed;
} names;

/* Room for count names; false when out of memory. All zero is an empty map that finds nothing. */
bool names_init(names *map, size_t count);
void names_close(names *map);

/* false when the name is there already. At most count names may be added. */
bool names_add(names *map, const char *name, size_t value);
bool names_find(const names *map, const char *name, size_t *value);

#endif
