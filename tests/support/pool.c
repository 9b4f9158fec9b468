/* Threads of a program. */
#include "pool.h"

#include <check.h>
#include <pthread.h>
#include <stdbool.h>

typedef struct pool_thread {
    pool *p;
    int32_t index;
} pool_thread;

static void *pool_work(void *argument)
{
    const pool_thread *t = argument;
    t->p->body(t->p->arg, t->index, t->p->count);
    return NULL;
}

void pool_run(void *context, int32_t threads, void (*body)(void *arg, int32_t index, int32_t count), void *arg)
{
    pool *p = context;
    pthread_t ids[16];
    pool_thread jobs[16];
    (void)threads;
    p->runs++;
    p->body = body;
    p->arg = arg;
    p->count = p->width;
    for (int32_t i = 0; i < p->width; i++) {
        jobs[i] = (pool_thread){p, i};
        ck_assert(i == 0 || pthread_create(&ids[i], NULL, pool_work, &jobs[i]) == 0);
    }
    if (p->width > 0)
        pool_work(&jobs[0]);
    for (int32_t i = 1; i < p->width; i++)
        pthread_join(ids[i], NULL);
}
