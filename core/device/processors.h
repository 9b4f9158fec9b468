/* Inside core: how many threads this process had better have. */
#ifndef TENON_CORE_PROCESSORS_H
#define TENON_CORE_PROCESSORS_H

#include <sched.h>
#include <stdint.h>

/* Cores (not hardware threads, which share a core's arithmetic and its path to memory) among the allowed processors,
 * and no more than the control groups of this process grant time for; at least 1. root: "", or where a test has put its
 * own /proc and /sys. What the system does not tell limits nothing. [any thread] */
int32_t processors_count(const char *root, const cpu_set_t *allowed);

#endif
