/* Inside core: how much memory the machine has. */
#ifndef TENON_CORE_MEMORY_H
#define TENON_CORE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

/* In bytes; otherwise: where the system does not tell. */
static inline size_t memory_of_machine(size_t otherwise)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : otherwise;
}

/* What could be taken now without taking it from others, in bytes, as the system guesses. memory.c */
size_t memory_available(size_t otherwise);

/* For tests: memory_available says so. 0: what is true. */
void memory_pretend(size_t bytes);

#endif
