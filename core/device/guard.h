/* Inside core: code that nobody trusts yet runs in a child process first. */
#ifndef TENON_CORE_GUARD_H
#define TENON_CORE_GUARD_H

#include <tenon/error.h>

#include <stddef.h>

/* Runs body in a forked child with a time limit. The child inherits memory mapped MAP_SHARED before. TN_OK: body
 * returned 0. Otherwise says how it ended ("crashed with SIGSEGV", "called exit(3)", "did not finish within 5 s",
 * "returned 2") in reason. In the child: threads are serial, stdout and stderr go nowhere, no core is dumped. */
tn_status guard_run(int (*body)(void *ctx), void *ctx, double seconds, char *reason, size_t reason_size);

/* The long form. */
typedef enum guard_end {
    GUARD_RETURNED,  /* body returned; value holds what                                          */
    GUARD_EXITED,    /* exit or _exit was called; value holds the status                          */
    GUARD_SIGNALLED, /* value holds the signal                                                    */
    GUARD_TIMEOUT,   /* killed at the limit                                                       */
    GUARD_LOST,      /* it ended early, but another part of the program took its exit status       */
    GUARD_FAILED     /* no child could be started; value holds errno                               */
} guard_end;

typedef struct guard_result {
    guard_end end;
    int value;
    double cpu_seconds; /* that it used; 0 when not known                                          */
} guard_result;

guard_result guard_run_long(int (*body)(void *ctx), void *ctx, double seconds);

/* How it ended, in words ("crashed with SIGSEGV"). */
void guard_describe(const guard_result *result, double seconds, char *reason, size_t reason_size);

#endif
