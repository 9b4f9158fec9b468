/* Inside core: what TENON_CPU takes away from the processor's instruction sets. */
#ifndef TENON_CORE_CPU_FLAGS_H
#define TENON_CORE_CPU_FLAGS_H

#include <tenon/kernel.h>

/* detected less what lies above the tier called cap: c, avx2, avx512, avx512vnni, avx512bf16, avx512fp16, amx, neon;
 * each tier includes those before it. NULL, "" and unknown names take nothing away. Pure. */
uint64_t cpu_flags_parse(const char *cap, uint64_t detected);

/* tn_cpu_flags answers with no more than these from here on. For checks that ask for every tier in one process. */
void cpu_flags_restrict(uint64_t allowed);

#endif
