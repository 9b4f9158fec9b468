/* The process's one team of threads. Work is cut statically, at multiples of the caller's grain, so that only the
 * caller's numbers decide what a piece can look like. oneDNN uses the same OpenMP team. */
#include "device/device.h"

#include <omp.h>
#include <stdatomic.h>

/* Set once per process in normal use (and again by tests). */
static struct {
    atomic_int count; /* 0: one thread per processor of the affinity mask                        */
    atomic_bool serial;
} team;

void threads_set(int32_t count)
{
    atomic_store(&team.count, count > 0 ? count : 0);
}

void threads_serial(bool serial)
{
    atomic_store(&team.serial, serial);
}

int32_t tn_thread_count(void)
{
    if (atomic_load_explicit(&team.serial, memory_order_relaxed))
        return 1;
    int32_t count = atomic_load_explicit(&team.count, memory_order_relaxed);
    return count > 0 ? count : (int32_t)omp_get_num_procs();
}

void tn_parallel_for(int64_t count, int64_t grain, void (*body)(void *ctx, int64_t begin, int64_t end, int32_t thread),
                     void *ctx)
{
    if (count <= 0)
        return;
    if (grain < 1)
        grain = 1;
    int64_t blocks = (count - 1) / grain + 1;
    int32_t threads = tn_thread_count();
    if (threads > blocks)
        threads = (int32_t)blocks;
    /* Inside a parallel region (a mistake of the caller's, but a harmless one) the work stays on its thread. */
    if (threads == 1 || omp_in_parallel()) {
        body(ctx, 0, count, omp_in_parallel() ? omp_get_thread_num() : 0);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        /* The system may have granted fewer threads than asked for. */
        int64_t granted = omp_get_num_threads(), thread = omp_get_thread_num();
        int64_t share = blocks / granted, rest = blocks % granted;
        int64_t first = thread * share + (thread < rest ? thread : rest);
        int64_t last = first + share + (thread < rest);
        if (first < last)
            body(ctx, first * grain, last == blocks ? count : last * grain, (int32_t)thread);
    }
}

void tn_parallel(void (*body)(void *ctx, int32_t thread, int32_t threads), void *ctx)
{
    int32_t threads = tn_thread_count();
    if (omp_in_parallel()) {
        /* A region of its own, so that a barrier in body does not wait for the outer team. */
#pragma omp parallel num_threads(1)
        body(ctx, 0, 1);
        return;
    }
    if (threads == 1) {
        body(ctx, 0, 1);
        return;
    }
#pragma omp parallel num_threads(threads)
    body(ctx, (int32_t)omp_get_thread_num(), (int32_t)omp_get_num_threads());
}

void tn_barrier(void)
{
    /* An orphaned barrier binds to the innermost region, and does nothing outside of one. */
#pragma omp barrier
}
