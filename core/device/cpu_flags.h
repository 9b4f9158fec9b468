/* Inside core: what TENON_CPU takes away from the processor's instruction sets. */
#ifndef TENON_CORE_CPU_FLAGS_H
#define TENON_CORE_CPU_FLAGS_H

#include <tenon/kernel.h>

#include <stdbool.h>

/* detected less what lies above the tier called cap: c, avx2, avxvnni, avx512, avx512vnni, avx512bf16, avx512fp16, amx,
 * neon; each tier includes those before it. NULL, "" and unknown names take nothing away. Pure. */
uint64_t cpu_flags_parse(const char *cap, uint64_t detected);

/* Is it the name of a tier, or NULL or ""? */
bool cpu_flags_is_cap(const char *cap);

/* "c, neon, ..." */
void cpu_flags_caps(char *text, size_t size);

/* What CPUID and XGETBV say: registers of leaf 1, of leaf 7 (subleaves 0 and 1), and XCR0. */
typedef struct cpu_words {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax;
    uint64_t xcr0;
    bool intel; /* the maker's name                                                               */
} cpu_words;

/* The instruction sets of an x86 processor whose registers the system saves. TN_CPU_AMX_BF16: once the system has
 * permitted tiles. Pure. */
uint64_t cpu_flags_x86(const cpu_words *words);

/* For checks of plugins in which instructions are emulated: tn_cpu_flags has these too from here on. */
void cpu_flags_emulate(uint64_t flags);

/* tn_cpu_flags answers with no more than these from here on. For checks that ask for every tier in one process. */
void cpu_flags_restrict(uint64_t allowed);

#endif
