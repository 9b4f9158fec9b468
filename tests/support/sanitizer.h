/* Is this program built with AddressSanitizer or ThreadSanitizer, or run by valgrind? They bring an allocator and a map
 * of memory of their own: limits on memory, replaced allocators and libraries that want to come first do not work. */
#ifndef TEST_SANITIZER_H
#define TEST_SANITIZER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#else
#define THREAD_SANITIZER 0
#endif

#if THREAD_SANITIZER || defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SANITIZER 1
#else
#define SANITIZER 0
#endif

/* tcase_add_loop_test of cases that are alike and slow: under the sanitizers, which look for faults of memory that many
 * of them would meet, every step-th. */
#define ADD_SLICED_LOOP(tcase, test, count, step)                                                                      \
    do {                                                                                                               \
        if (SANITIZER)                                                                                                 \
            printf("SKIPPED all but each %dth case of " #test ": the sanitizers are slow\n", (int)(step));             \
        for (int case_at = 0; case_at < (int)(count); case_at += SANITIZER ? (step) : 1)                               \
            tcase_add_loop_test(tcase, test, case_at, case_at + 1);                                                    \
    } while (0)

#define ADD_SLOW_LOOP(tcase, test, count) ADD_SLICED_LOOP(tcase, test, count, 5)

/* valgrind puts libraries of its own before all others. */
static inline bool under_valgrind(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded && strstr(preloaded, "/vgpreload_");
}

#endif
