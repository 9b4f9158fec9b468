/* Inside core: looking at the process before and after foreign code runs in it. */
#ifndef TENON_CORE_WATCH_H
#define TENON_CORE_WATCH_H

#include "device/hoststate.h"

/* What was seen before. */
typedef struct watch_look {
    uint64_t control;
    hoststate *state; /* NULL: only floating-point control is looked at                              */
} watch_look;

/* Begins: whole, or floating-point control only, also where another thread is looking at the whole. Ends in the same
 * thread with watch_after, which puts back what differs, on this thread and on those of the team, and tells whether
 * anything did and what. */
watch_look watch_before(bool whole);
bool watch_after(const watch_look *look, char *what, size_t size);

#endif
