/* Inside core: threads and the arena. */
#ifndef TENON_CORE_DEVICE_H
#define TENON_CORE_DEVICE_H

#include <tenon/device.h>

/* threads.c: sets the size of the team; 0: one thread per processor of the affinity mask. */
void threads_set(int32_t count);

/* From now on the calling thread gets at most this many threads for its work (0: all); returns what held before. Memory
 * that was sized for a number of threads is used under that limit, whatever threads_set says later. */
int32_t threads_limit(int32_t count);

/* Makes every region wait for all threads that it wants, however late they come: for tests, where as many threads as
 * were asked for must really take part. */
void threads_strict(bool strict);

/* Runs tn_parallel_for and tn_parallel on the calling thread only, as if the team had one thread. For child
 * processes after fork, where the team's threads do not exist; with serial false a child makes a team of its own. */
void threads_serial(bool serial);

/* A stack of device memory. In measuring mode nothing is allocated: arena_take returns NULL data and only the
 * high-water mark moves, which is what the real arena must be able to hold. */
typedef struct arena {
    const tn_device *device;
    char *base;
    size_t size, used, peak;
    bool measuring;
} arena;

tn_status arena_init(arena *a, const tn_device *device, size_t size, tn_error *err); /* size 0: measuring */
void arena_close(arena *a);

/* 64-byte aligned. A full arena is TN_E_INTERNAL. */
tn_status arena_take(arena *a, size_t bytes, void **out, tn_error *err);
static inline size_t arena_mark(const arena *a)
{
    return a->used;
}
static inline void arena_release(arena *a, size_t mark)
{
    a->used = mark;
}

#endif
