/* Allocations of jansson's that failed, by a function around its allocator. */
#include "base/json_memory.h"

#include <jansson.h>
#include <pthread.h>

static _Thread_local bool failed;
static json_malloc_t allocate;
static json_free_t release;

static void *watched(size_t size)
{
    void *memory = allocate(size);
    failed = failed || !memory;
    return memory;
}

/* The program's own functions stay in use below: what they allocated before is theirs to free. */
static void put_around(void)
{
    json_get_alloc_funcs(&allocate, &release);
    json_set_alloc_funcs(watched, release);
}

void json_memory_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, put_around);
    failed = false;
}

bool json_memory_failed(void)
{
    return failed;
}
