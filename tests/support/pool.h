/* Threads of a program, of the simplest kind. */
#ifndef TEST_POOL_H
#define TEST_POOL_H

#include <stdint.h>

typedef struct pool {
    int32_t width, runs; /* threads, made for each region; regions so far                             */
    void (*body)(void *arg, int32_t index, int32_t count);
    void *arg;
    int32_t count;
} pool;

/* tn_team.run with a pool as context: it gives as many threads as it has, whatever is asked for; 0: it runs nothing. */
void pool_run(void *context, int32_t threads, void (*body)(void *arg, int32_t index, int32_t count), void *arg);

#endif
