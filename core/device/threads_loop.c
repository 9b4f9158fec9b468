/* Loops on the team. */
#include "device/device.h"

#include <stdatomic.h>

enum { PIECES_PER_THREAD = 4 };

/* The loop is cut into pieces at multiples of grain, several for each thread, and whoever is free takes the next: a
 * thread that the system interrupts does not hold up the others. */
typedef struct loop {
    void (*body)(void *ctx, int64_t begin, int64_t end, int32_t thread);
    void *ctx;
    int64_t count, grain, blocks, pieces;
    atomic_llong next;
} loop;

static void run_pieces(void *ctx, int32_t thread, int32_t threads)
{
    loop *l = ctx;
    bool strict = threads_are_strict();
    for (int64_t piece = thread - threads;;) {
        /* Where all threads must take part, each has its own pieces. */
        piece = strict ? piece + threads : atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed);
        if (piece >= l->pieces)
            return;
        int64_t first = piece * l->blocks / l->pieces, last = (piece + 1) * l->blocks / l->pieces;
        l->body(l->ctx, first * l->grain, last == l->blocks ? l->count : last * l->grain, thread);
    }
}

void tn_parallel_for(int64_t count, int64_t grain, void (*body)(void *ctx, int64_t begin, int64_t end, int32_t thread),
                     void *ctx)
{
    if (count <= 0 || !body)
        return;
    loop l = {.body = body, .ctx = ctx, .count = count, .grain = grain < 1 ? 1 : grain};
    l.blocks = (count - 1) / l.grain + 1;
    int32_t threads = tn_thread_count();
    if (threads > l.blocks)
        threads = (int32_t)l.blocks;
    if (threads == 1 || threads_in_region()) {
        body(ctx, 0, count, 0);
        return;
    }
    l.pieces = l.blocks < PIECES_PER_THREAD * threads ? l.blocks : PIECES_PER_THREAD * threads;
    threads_region(run_pieces, &l, threads);
}
