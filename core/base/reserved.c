/* Addresses without memory. */
#include "base/reserved.h"

#include <sys/mman.h>

void *reserved_new(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

void reserved_free(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}
