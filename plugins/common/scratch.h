/* Dividing scratch: where each part of one piece of memory begins. */
#ifndef TENON_COMMON_SCRATCH_H
#define TENON_COMMON_SCRATCH_H

#include <stddef.h>

/* Takes bytes at *at, so that what follows begins with a cache line. Returns where they begin. */
static inline size_t scratch_take(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

#endif
