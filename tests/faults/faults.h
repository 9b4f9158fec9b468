/* What fault_preload.so and the programs that use it have in common. */
#ifndef TEST_FAULTS_H
#define TEST_FAULTS_H

#include <stdint.h>

typedef enum fault_kind {
    FAULT_MALLOC,
    FAULT_MMAP,
    FAULT_MPROTECT,
    FAULT_OPEN,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_STAT,
    FAULT_FORK,
    FAULT_THREAD,
    FAULT_KINDS
} fault_kind;

/* Of how many calls of a kind the paths are noted. */
#define FAULT_PATHS_MAX (1 << 18)

static const char *const fault_names[FAULT_KINDS] = {"malloc", "mmap", "mprotect", "open",  "read",
                                                     "write",  "stat", "fork",     "thread"};

#endif
