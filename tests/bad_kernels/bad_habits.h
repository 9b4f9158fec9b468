/* Faults of a norm that no single call shows: what it keeps from one call to the next, what it loses with each, what it
 * takes for granted of memory and numbers. Each does harm late or rarely; the check must see it at once. */
#ifndef BAD_HABITS_H
#define BAD_HABITS_H

#include "bad.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static double eps_of_plan;

/* A record of buffers, as libraries have that grow them when they need more. */
struct record {
    struct record *next;
    unsigned *buffer;
};

static void keep_behind(void)
{
    enum { BYTES = 1 << 20 };
    static struct record *record;
    static unsigned *mapped;
    if (faulty("buffer two steps away")) {
        record = record ? record : calloc(1, sizeof *record);
        record->next = record->next ? record->next : calloc(1, sizeof *record);
        record->next->buffer = record->next->buffer ? record->next->buffer : calloc(1, BYTES);
        record->next->buffer[BYTES / 8]++;
    }
    if (faulty("buffer in a mapping")) {
        if (!mapped)
            mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mapped[BYTES / 8]++;
    }
}

/* By a thread of the team: it lies elsewhere. */
static void keep_of_worker(int32_t thread)
{
    static unsigned *_Atomic block;
    if (!faulty("block of a worker") || thread == 0)
        return;
    if (!block)
        block = calloc(1, 64);
    ++*block;
}

/* Something of each call is in a variable of this library afterwards. */
static void keep_something(const tn_call *call, float *y)
{
    static unsigned char byte;
    static _Thread_local volatile unsigned of_thread;
    static unsigned *behind;
    static const void *volatile weights;
    if (faulty("byte counter") && ++byte == 250)
        y[0] = 1;
    if (faulty("counter of a thread") && ++of_thread > 1000000)
        y[0] = 1;
    if (faulty("counter behind a pointer")) {
        behind = behind ? behind : calloc(1, sizeof *behind);
        y[0] += ++*behind > 1000000 ? 1 : 0;
    }
    if (faulty("weights of the call before")) {
        y[0] += weights == (const void *)y ? 1 : 0;
        weights = call->site->param[TN_ROLE_WEIGHT].tensors[0].data;
    }
    if (faulty("number of a plan"))
        y[0] += eps_of_plan > 1 ? 1 : 0;
}

static void *sleep_on(void *unused)
{
    (void)unused;
    for (;;)
        pause();
    return NULL;
}

/* A compiler leaves out a block that nobody looks at. */
static void lose_block(size_t bytes)
{
    unsigned char *volatile lost = malloc(bytes);
    memset(lost, 1, bytes);
}

/* Something is left behind with each call. */
static void lose_something(int64_t count)
{
    enum { BYTES = 256 * 1024 };
    pthread_t thread;
    if (faulty("a block with many rows") && count >= 64)
        lose_block(BYTES);
    if (faulty("a process with each call") && fork() == 0)
        _exit(0);
    if (faulty("a block with each call"))
        lose_block(BYTES);
    if (faulty("a file with each call") && dup(STDIN_FILENO) < 0)
        abort();
    if (faulty("a thread with each call") && pthread_create(&thread, NULL, sleep_on, NULL) != 0)
        abort();
}

/* Memory has something else, or lies elsewhere, and numbers are others than those that it was written with. */
static void take_for_granted(const tn_call *call, const float *x, const float *w, int64_t n)
{
    if (faulty("waits on its scratch"))
        while (*(volatile const int *)call->scratch != -1)
            continue;
    if ((faulty("aligned rows") && (uintptr_t)x % 8) || (faulty("aligned weights") && (uintptr_t)w % 8))
        raise(SIGSEGV);
    for (int64_t i = 0; faulty("assertion on values") && i < n; i++)
        if (fabsf(x[i]) > 1e12f)
            abort();
}

/* Of a row among so many; the factor that its result gets. */
static float habit_of_row(const tn_call *call, int64_t r, int64_t count, const float *x, int64_t n)
{
    float factor = 1;
    if (faulty("seven of eight rows") && count % 8 == 7 && r + 1 == count)
        factor = 1.01f;
    if ((faulty("32 rows") && count == 32) || (faulty("64 rows") && count == 64) ||
        (faulty("128 rows") && count == 128))
        factor = 1.01f;
    if (faulty("one layer") && strstr(call->site->path, "layers.1."))
        factor = 1.01f;
    for (int64_t i = 0; faulty("no NaN") && i < n; i++)
        factor = isnan(x[i]) ? 0 : factor;
    return factor;
}

#endif
