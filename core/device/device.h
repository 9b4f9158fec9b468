/* Inside core: an opened device, the arena in its memory, and threads. */
#ifndef TENON_CORE_DEVICE_H
#define TENON_CORE_DEVICE_H

#include <stdbool.h>
#include <tenon/device.h>

/* One unit of a device, opened. What it lacks of tn_device's optional functions is made up for by the functions below,
 * so nobody else looks for NULL. Calls are made with its queue (run_step). */
typedef struct device {
    const tn_device *ops;
    int32_t ordinal;
    tn_queue *queue; /* or NULL: it needs none                                                    */
    bool guest;      /* a plugin brought it                                                       */
} device;

/* Opens a unit of a device, which a plugin brought (guest) or not; an ordinal that is not there is TN_E_KERNEL. close
 * waits for what is in the queue; that of a device that is not open does nothing. */
tn_status device_open(device *d, const tn_device *ops, int32_t ordinal, bool guest, tn_error *err);
void device_close(device *d);

/* Waits for everything that was lined up. */
tn_status device_sync(const device *d, tn_error *err);

/* TN_DECLINED with a reason where the device does not perform the site's operation. */
tn_status device_supports(const device *d, const tn_site *site, tn_error *err);

tn_status device_alloc(const device *d, size_t bytes, void **out, tn_error *err);
void device_free(const device *d, void *memory, size_t bytes); /* memory may be NULL; nothing lined up may use it */
tn_status device_upload(const device *d, void *to, const void *host, size_t bytes, tn_error *err);
tn_status device_download(const device *d, void *host, const void *from, size_t bytes, tn_error *err);

/* Scratch bytes of an eager call, forward or with gradients. */
size_t device_scratch(const device *d, const tn_call *call);
size_t device_backward_scratch(const device *d, const tn_call *call);

/* threads.c: in the child of a fork, where the team's threads do not exist. A fork calls it by itself, _Fork does not.
 */
void threads_forget(void);

/* Threads of the team that there are now, without those that call; -1: it is at work, or lent by the program, and
 * nobody can say. */
int32_t threads_hired(void);

/* As many of these threads as serve: no more than the affinity mask has processors, or 4, which whoever looks for races
 * may have on any machine. Others would wait for each other, while kernels ask for scratch for every one. */
int32_t threads_bound(int32_t count);

/* Sets the size of the team, within threads_bound; 0: one thread per processor of the affinity mask. */
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

bool threads_are_strict(void);

/* Runs body on up to `threads` threads at once: the team's, or those that the program lends (tn_threads_use). */
void threads_region(void (*body)(void *ctx, int32_t thread, int32_t threads), void *ctx, int32_t threads);
bool threads_in_region(void); /* is the calling thread in one?                                      */

/* What threads of the team, other than those that called, were found to have changed of themselves at the end of a
 * region since this was asked last; it has been put back. Signal masks are looked at while threads_watch asks for it.
 */
enum { THREADS_CONTROL = 1, THREADS_MASK = 2 };
unsigned threads_changed(void);
void threads_watch(bool masks);

/* A stack of device memory. In measuring mode nothing is allocated: arena_take returns NULL data and only the
 * high-water mark moves, which is what the real arena must be able to hold. */
typedef struct arena {
    const device *device;
    char *base;
    size_t size, used, peak;
    bool measuring;
    bool guessed; /* nobody measured what it must hold: a full one is TN_E_MEMORY                        */
    const struct run_observer *observer; /* sees every call made with it (run/observe.h), or NULL   */
} arena;

tn_status arena_init(arena *a, const device *device, size_t size, tn_error *err); /* size 0: measuring */
void arena_close(arena *a); /* waits for what the device still does with it */

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
