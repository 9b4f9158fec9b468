/* Inside core: how much memory the machine has. */
#ifndef TENON_CORE_MEMORY_H
#define TENON_CORE_MEMORY_H

#include <stddef.h>
#include <unistd.h>

/* In bytes; otherwise: where the system does not tell. */
static inline size_t memory_of_machine(size_t otherwise)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : otherwise;
}

#endif
