/* Inside core: what machine this is. What it can do: device/ceiling.h. */
#ifndef TENON_CORE_MACHINE_H
#define TENON_CORE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Name of the processor, as the system has it. */
void machine_cpu_name(char *name, size_t size);

/* Bytes of the last caches that this many threads of the process reach; a machine may have one for every few
 * processors. As the system says: in a virtual machine others may use the same cache. */
int64_t machine_cache_bytes(int32_t threads);

#endif
