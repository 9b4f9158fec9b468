/* Inside core: code that nobody trusts yet runs in a child process first. */
#ifndef TENON_CORE_GUARD_H
#define TENON_CORE_GUARD_H

#include <tenon/error.h>

#include <stdbool.h>
#include <stddef.h>

/* Runs body in a forked child with a time limit. The child inherits memory mapped MAP_SHARED before. TN_OK: body
 * returned 0. TN_E_KERNEL: reason says how it ended ("crashed with SIGSEGV", "called exit(3)", "did not finish within
 * 5 s", "returned 2"). Any other status is no verdict on body, which never began: no process could be started
 * (TN_E_MEMORY), or it ended before; reason says so. In the child: threads are serial, stdout and stderr go nowhere, no
 * core is dumped. Processes that it starts end with it, also those that left its group and session; of a child that
 * crashes only those that did not. */
tn_status guard_run(int (*body)(void *ctx), void *ctx, double seconds, char *reason, size_t reason_size);

/* The same for a list of questions: at, in shared memory, says which one the child is at, and each has the limit for
 * itself; NULL: all of it has. go_on, unless NULL, is called with ctx in this process several times a second; false
 * ends the child. */
tn_status guard_run_each(int (*body)(void *ctx), void *ctx, double seconds, const volatile size_t *at,
                         bool (*go_on)(void *ctx), char *reason, size_t reason_size);

/* The long form. */
typedef enum guard_end {
    GUARD_RETURNED,  /* body returned; value holds what                                          */
    GUARD_EXITED,    /* exit or _exit was called; value holds the status                          */
    GUARD_SIGNALLED, /* value holds the signal                                                    */
    GUARD_TIMEOUT,   /* killed at the limit                                                       */
    GUARD_LOST,      /* it ended early, but another process took its exit status                  */
    GUARD_UNSTARTED, /* it ended before body began: a handler for forks, which is not body's doing */
    GUARD_FAILED     /* no child could be started; value holds errno                               */
} guard_end;

typedef struct guard_result {
    guard_end end;
    int value;
    double cpu_seconds; /* that it used; 0 when not known                                          */
} guard_result;

/* For code that never ran here: all that it started ends with it, however it ends, and a program that takes the exit
 * status of all its children does not take this one's. Costs a second fork. */
guard_result guard_run_long(int (*body)(void *ctx), void *ctx, double seconds);

/* In the child: closes every descriptor from first on. */
void guard_close_from(int first);

/* In the child, while it can open files: no more than 2 GiB beside what it has. */
void guard_limit_memory(void);

/* How it ended, in words ("crashed with SIGSEGV"). */
void guard_describe(const guard_result *result, double seconds, char *reason, size_t reason_size);

#endif
