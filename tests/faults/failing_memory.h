/* An allocator in place of the C library's, for the program that links it: one allocation fails, and what was not given
 * back is known. Under a sanitizer, which owns the allocator, there is none. */
#ifndef TEST_FAILING_MEMORY_H
#define TEST_FAILING_MEMORY_H

#include "sanitizer.h"

#include <stdint.h>

/* From now on allocations of this thread are counted, from 1; number chosen fails (0: none). recording: one number is
 * noted for each way, which is the last few callers, in which an allocation is reached. */
void failing_begin(uint64_t chosen, bool recording);

/* The end of counting; how many there were. Assertions of check allocate: they belong behind it. */
uint64_t failing_end(void);

/* The numbers that the last recording noted. Borrowed until the next one. */
size_t failing_points(const uint64_t **points);

/* How many allocations since failing_begin are not freed; prints the first few. Left out is what oneDNN, the OpenMP
 * runtime and the loader hold: caches, and what they lose when an allocation of theirs fails. */
size_t failing_leaks(const char *name);

#endif
