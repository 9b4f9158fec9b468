/* A device of a test's own, which computes what the CPU does, but later and elsewhere: its memory cannot be touched by
 * the host, and its work waits in a queue until somebody wants to see it. What a program may not do with such a device
 * fails the test: free memory that waiting work uses, give it the host's memory, call it with another queue. */
#ifndef FAR_DEVICE_H
#define FAR_DEVICE_H

#include <tenon/device.h>

enum { FAR_UNITS = 2 };

typedef struct far_options {
    const char *name;
    bool host_memory; /* the host may touch its memory, once it has waited                         */
    bool plain;       /* nothing that is optional: one unit, no queue, no gradients                */
    tn_op declines;   /* an operation that it does not perform, or TN_OP_NONE                      */
} far_options;

/* Registers it, once per process. */
void far_device_add(const far_options *options);

/* What happened so far. */
typedef struct far_record {
    int64_t opened, closed, ordinal; /* the last one opened                                       */
    int64_t held;                    /* blocks of memory                                           */
    int64_t calls, waiting, most_waiting, syncs;
    uint64_t asked[2]; /* operations that supports was asked about: below 64 and from 64 on        */
    int64_t fail_at;   /* the call that will fail when it is performed, counted from 1; 0: none    */
} far_record;
extern far_record far_seen;

/* Lines a call up, as its eager does: for kernels of the device. */
tn_status far_device_line_up(const tn_call *call, tn_error *err);

#endif
