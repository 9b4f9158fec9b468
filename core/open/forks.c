/* The lock around calls of bound sites, which a fork may leave held by threads that the child has not. */
#include "open/model.h"

#include <sched.h>

static atomic_uint forks = 1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void count(void)
{
    atomic_fetch_add(&forks, 1);
}

static void handle(void)
{
    pthread_atfork(NULL, NULL, count);
}

unsigned model_forks(void)
{
    pthread_once(&once, handle);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

/* In a child one thread makes the lock anew, others wait for that. */
static void renew(tn_model *model, unsigned before, unsigned now)
{
    const unsigned busy = 0;
    if (before != busy && atomic_compare_exchange_strong(&model->forks, &before, busy)) {
        pthread_rwlock_init(&model->calls, NULL);
        atomic_store(&model->forks, now);
    }
    while (atomic_load(&model->forks) == busy)
        sched_yield();
}

void model_calls_begin(tn_model *model, bool alone)
{
    unsigned now = model_forks(), before = atomic_load_explicit(&model->forks, memory_order_acquire);
    if (before != now)
        renew(model, before, now);
    if (alone)
        pthread_rwlock_wrlock(&model->calls);
    else
        pthread_rwlock_rdlock(&model->calls);
}

void model_calls_end(tn_model *model)
{
    pthread_rwlock_unlock(&model->calls);
}
