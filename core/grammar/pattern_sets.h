/* Inside core/grammar: sets of characters, for patterns. */
#ifndef TENON_CORE_PATTERN_SETS_H
#define TENON_CORE_PATTERN_SETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pattern_range {
    int32_t low, high;
} pattern_range;

typedef struct pattern_set {
    pattern_range *ranges; /* once it is done: in order, apart from one another                           */
    size_t count, capacity;
} pattern_set;

/* false: no memory. */
bool pattern_set_add(pattern_set *s, int32_t low, int32_t high);
bool pattern_set_class(pattern_set *s, char letter); /* d, D, w, W, s, S; '.': all but ends of lines         */
bool pattern_set_done(pattern_set *s, bool negated);

#endif
