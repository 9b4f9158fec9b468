/* Addresses without memory. */
#include "base/reserved.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *reserve(size_t bytes, int allowed)
{
    void *at = mmap(NULL, bytes, allowed, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

void *reserved_new(size_t bytes)
{
    return reserve(bytes, PROT_READ | PROT_WRITE);
}

void *reserved_zeros(size_t bytes)
{
    return reserve(bytes, PROT_READ);
}

void reserved_free(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}

void reserved_clear(void *memory, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *begin = memory, *end = begin + bytes;
    size_t before = (page - (uintptr_t)begin % page) % page;
    if (bytes < 2 * page ||
        madvise(begin + before, (size_t)(end - begin) - before - (uintptr_t)end % page, MADV_DONTNEED) != 0) {
        memset(begin, 0, bytes);
        return;
    }
    memset(begin, 0, before);
    memset(end - (uintptr_t)end % page, 0, (uintptr_t)end % page);
}
