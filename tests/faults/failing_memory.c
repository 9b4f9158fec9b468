/* The allocator of this program. It looks at one thread, between failing_begin and failing_end, and at none of the
 * processes that it forks. */
#include "failing_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 7, SKIPPED = 2, WAYS = 1 << 14, HELD = 1 << 18, POINTS = 1 << 14 };

typedef struct holding {
    void *block, *caller;
    uint64_t number;
} holding;

static struct {
    uint64_t ways[WAYS]; /* hashes of those seen, in a table                                         */
    uint64_t points[POINTS];
    size_t point_count;
    holding held[HELD]; /* by address, in a table                                                   */
    uint64_t count, chosen;
    bool recording;
} memory;
static _Thread_local bool counting
    __attribute__((tls_model("initial-exec"))); /* one thread, and none of its children */

static void stop_counting(void)
{
    counting = false;
}

#if !SANITIZER
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* Notes an allocation whose way was not seen before. */
static void record(void)
{
    void *frames[DEPTH + SKIPPED];
    int n = backtrace(frames, DEPTH + SKIPPED);
    uint64_t hash = 1469598103934665603ULL;
    for (int i = SKIPPED; i < n; i++)
        hash = (hash ^ (uint64_t)(uintptr_t)frames[i]) * 1099511628211ULL;
    hash |= 1;
    size_t at = (hash >> 20) % WAYS;
    for (size_t tries = 0; tries < WAYS; tries++, at = (at + 1) % WAYS) {
        if (memory.ways[at] == hash)
            return;
        if (memory.ways[at])
            continue;
        memory.ways[at] = hash;
        if (memory.point_count < POINTS)
            memory.points[memory.point_count++] = memory.count;
        return;
    }
}

static bool fails(void)
{
    if (!counting)
        return false;
    counting = false; /* looking at the stack may allocate */
    memory.count++;
    if (memory.recording)
        record();
    counting = true;
    bool now = memory.count == memory.chosen;
    if (now)
        errno = ENOMEM;
    return now;
}

static size_t place_of(const void *block)
{
    return (size_t)(((uintptr_t)block >> 4) * 0x9e3779b97f4a7c15ULL >> 40) % HELD;
}

static void *hold(void *block, void *caller)
{
    size_t at = place_of(block);
    for (size_t tries = 0; block && counting && tries < HELD; tries++, at = (at + 1) % HELD)
        if (!memory.held[at].block || memory.held[at].block == (void *)&memory) {
            memory.held[at] = (holding){block, caller, memory.count};
            break;
        }
    return block;
}

/* What another thread frees stays in the list; the pieces of work use one. */
static void let_go(void *block)
{
    size_t at = place_of(block);
    for (size_t tries = 0; block && counting && tries < HELD && memory.held[at].block; tries++, at = (at + 1) % HELD)
        if (memory.held[at].block == block) {
            memory.held[at].block = &memory; /* a place that was used: searches go on behind it */
            return;
        }
}

void *malloc(size_t size)
{
    return fails() ? NULL : hold(__libc_malloc(size), __builtin_return_address(0));
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : hold(__libc_calloc(n, size), __builtin_return_address(0));
}

void *realloc(void *p, size_t size)
{
    if (fails())
        return NULL;
    let_go(p);
    return hold(__libc_realloc(p, size), __builtin_return_address(0));
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : hold(__libc_memalign(alignment, size), __builtin_return_address(0));
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    if (fails())
        return ENOMEM;
    *out = hold(__libc_memalign(alignment, size), __builtin_return_address(0));
    return *out ? 0 : ENOMEM;
}

void free(void *p)
{
    int before = errno;
    let_go(p);
    __libc_free(p);
    errno = before;
}
#endif

/* oneDNN and what lies below it keep caches, and lose what they had when an allocation of theirs fails. */
static bool is_ours(const void *caller)
{
    static const char *const others[] = {"libdnnl", "libstdc++", "libgomp", "ld-linux", "libgcc_s"};
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname)
        return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(info.dli_fname, others[i]))
            return false;
    return true;
}

size_t failing_leaks(const char *name)
{
    size_t found = 0;
    for (size_t i = 0; i < HELD; i++) {
        const holding *h = &memory.held[i];
        if (!h->block || h->block == (void *)&memory || !is_ours(h->caller))
            continue;
        if (found++ < 4)
            printf("    %s: allocation %llu is not freed; %p\n", name, (unsigned long long)h->number, h->caller);
    }
    return found;
}

void failing_begin(uint64_t chosen, bool recording)
{
    static bool prepared;
    void *frames[4];
    if (!prepared) {
        backtrace(frames, 4); /* loads what it needs */
        pthread_atfork(NULL, NULL, stop_counting);
    }
    prepared = true;
    memset(memory.held, 0, sizeof memory.held);
    memory.count = 0;
    memory.chosen = chosen;
    memory.recording = recording;
    if (recording) {
        memset(memory.ways, 0, sizeof memory.ways);
        memory.point_count = 0;
    }
    counting = true;
}

uint64_t failing_end(void)
{
    counting = false;
    return memory.count;
}

size_t failing_points(const uint64_t **points)
{
    *points = memory.points;
    return memory.point_count;
}
