/* Inside core: the 64-bit hash of Fowler, Noll and Vo (1a), for names of files and for telling shapes apart; no defence
 * against who wants two things to have one. */
#ifndef TENON_CORE_HASH_H
#define TENON_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): bytes of numbers are not followed
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
