/* Whoever has had the team work may fork: threads that were asked for have started by then and those of before are
 * gone, so that none holds a lock of an allocator, which starting and ending take. */
#include "device/device.h"
#include "process.h"
#include "suite.h"

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* Microseconds. Ends take longer: waiting for those that start must not be enough. */
enum { THREADS = 4, START = 20000, END = 100000 };

static atomic_int asked, began, ended;

typedef struct late_start {
    void *(*body)(void *);
    void *argument;
} late_start;

static void *start_late(void *argument)
{
    late_start start = *(late_start *)argument;
    free(argument);
    usleep(START);
    atomic_fetch_add(&began, 1);
    void *result = start.body(start.argument);
    usleep(END);
    atomic_fetch_add(&ended, 1);
    return result;
}

/* In place of the C library's for what is linked into this program. */
int pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*body)(void *), void *argument)
{
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))(uintptr_t)dlsym(RTLD_NEXT,
                                                                                                  "pthread_create");
    late_start *start = malloc(sizeof *start);
    if (!start)
        return ENOMEM;
    *start = (late_start){body, argument};
    atomic_fetch_add(&asked, 1);
    return next(id, attributes, start_late, start);
}

static void nothing(void *ctx, int32_t thread, int32_t threads)
{
    (void)ctx;
    (void)thread;
    (void)threads;
}

START_TEST(threads_have_started_and_ended)
{
    for (int32_t threads = THREADS; threads > 1; threads--) {
        threads_set(threads);
        tn_parallel(nothing, NULL);
        int start = atomic_load(&asked), stay = threads - 1;
        ck_assert_int_eq(atomic_load(&began), start);
        ck_assert_int_eq(atomic_load(&ended), start - stay);
    }
    ck_assert_int_ge(atomic_load(&asked), THREADS - 1);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("thread start", 0);
    suite_add(tc, threads_have_started_and_ended);
    return process_main();
}
