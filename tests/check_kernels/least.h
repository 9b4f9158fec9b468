/* The least time of some work on this machine, from its ceilings. */
#ifndef TENON_CHECK_LEAST_H
#define TENON_CHECK_LEAST_H

#include "device/ceiling.h"

/* For operands of dtype and this many operations with what the flags allow; which: its brief name. */
double least_flops_seconds(const ceilings *c, uint64_t flags, tn_dtype dtype, double flops, const char **which);
/* Out of memory: the bytes that are read and written; in_place: the same ones. */
double least_memory_seconds(const ceilings *c, double read, double written, bool in_place);
/* The same in cache, measured now on one thread or on all of c: whichever is faster. */
double least_cached_seconds(const ceilings *c, double read, double written, bool in_place);

#endif
