/* Inside core/grammar: which tokens may come next in a configuration. */
#ifndef TENON_CORE_MASK_H
#define TENON_CORE_MASK_H

#include "grammar/configurations.h"
#include "grammar/vocabulary.h"

/* A walk that looked at so many threads goes no deeper: of the tokens that are left, those of one byte alone are
 * allowed. They are fewer than could be, but with a token for each byte all that can be said can still be said. What a
 * step looked at is counted whether it was known or not: a mask depends on nothing but its configuration. */
enum { MASK_WORK = 1 << 24 };

/* Numbers of configurations that others stand on, count of them, with room for tn_vocabulary.longest + 2 more. */
typedef struct mask_kept {
    uint32_t **numbers;
    size_t count;
} mask_kept;

/* The mask of *at without the ends, [words]: kept with the configuration, borrowed until the next sweep. What others
 * stand on may be renumbered, and *at, which is one of kept. NULL: no memory. */
const uint64_t *mask_of(configurations *c, const tn_vocabulary *v, mask_kept kept, uint32_t *at);

#endif
