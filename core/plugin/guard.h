/* Inside core/plugin: the long form of guard_run. */
#ifndef TENON_CORE_GUARD_H
#define TENON_CORE_GUARD_H

#include "plugin/registry.h"

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
