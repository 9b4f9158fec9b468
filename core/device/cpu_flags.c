/* Instruction sets: what the processor has, the operating system saves and TENON_CPU allows. */
#include "device/cpu_flags.h"

#include "base/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* State components of XCR0. */
#define XCR0_AVX UINT64_C(0x6)
#define XCR0_AVX512 UINT64_C(0xe6)
#define XCR0_AMX UINT64_C(0x60000)

static bool bit(uint32_t word, int index)
{
    return word >> index & 1;
}

uint64_t cpu_flags_x86(const cpu_words *w)
{
    bool fma_f16c_avx = bit(w->leaf1_ecx, 12) && bit(w->leaf1_ecx, 29) && bit(w->leaf1_ecx, 28);
    /* Without OSXSAVE XCR0 cannot be asked for. */
    if (!bit(w->leaf1_ecx, 27) || !fma_f16c_avx || !bit(w->leaf7_ebx, 5) || (w->xcr0 & XCR0_AVX) != XCR0_AVX)
        return 0;
    uint64_t flags = TN_CPU_AVX2;
    if (bit(w->leaf7_1_eax, 4))
        flags |= TN_CPU_AVX_VNNI;
    bool avx512 = bit(w->leaf7_ebx, 16) && bit(w->leaf7_ebx, 30) && bit(w->leaf7_ebx, 28) && bit(w->leaf7_ebx, 17) &&
                  bit(w->leaf7_ebx, 31); /* F BW CD DQ VL */
    if (!avx512 || (w->xcr0 & XCR0_AVX512) != XCR0_AVX512)
        return flags;
    flags |= TN_CPU_AVX512;
    if (bit(w->leaf7_ecx, 11))
        flags |= TN_CPU_AVX512_VNNI;
    if (bit(w->leaf7_1_eax, 5))
        flags |= TN_CPU_AVX512_BF16;
    if (bit(w->leaf7_edx, 23))
        flags |= TN_CPU_AVX512_FP16;
    /* Intel's cores with FP16 begin a bf16 dot product of 512 bits in every second cycle, and two f32 multiply-adds in
     * each (measured on model 207); AMD's begin one dot product in each. */
    if (w->intel && flags & TN_CPU_AVX512_FP16 && flags & TN_CPU_AVX512_BF16)
        flags |= TN_CPU_SLOW_BF16;
    if (bit(w->leaf7_edx, 24) && bit(w->leaf7_edx, 22) && (w->xcr0 & XCR0_AMX) == XCR0_AMX) /* AMX-TILE AMX-BF16 */
        flags |= TN_CPU_AMX_BF16;
    return flags;
}

#if defined(__x86_64__)
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILE_DATA 18

static uint64_t read_xcr0(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux (5.16 and later) saves tile data only for processes that asked for it; threads and children are included. */
static bool may_use_tiles(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}

static uint64_t cpu_flags_detect(void)
{
    cpu_words w = {0};
    unsigned subleaves, b, c, d;
    w.intel = __get_cpuid(0, &subleaves, &b, &c, &d) && b == signature_INTEL_ebx && c == signature_INTEL_ecx &&
              d == signature_INTEL_edx;
    if (!__get_cpuid(1, &subleaves, &b, &w.leaf1_ecx, &d) ||
        !__get_cpuid_count(7, 0, &subleaves, &w.leaf7_ebx, &w.leaf7_ecx, &w.leaf7_edx))
        return 0;
    if (subleaves >= 1)
        __get_cpuid_count(7, 1, &w.leaf7_1_eax, &b, &c, &d);
    if (bit(w.leaf1_ecx, 27))
        w.xcr0 = read_xcr0();
    uint64_t flags = cpu_flags_x86(&w);
    return flags & TN_CPU_AMX_BF16 && !may_use_tiles() ? flags & ~TN_CPU_AMX_BF16 : flags;
}
#elif defined(__aarch64__)
static uint64_t cpu_flags_detect(void)
{
    return TN_CPU_NEON; /* part of the base architecture */
}
#else
static uint64_t cpu_flags_detect(void)
{
    return 0;
}
#endif

#define UP_TO_AVX_VNNI (TN_CPU_AVX2 | TN_CPU_AVX_VNNI)
#define UP_TO_AVX512 (UP_TO_AVX_VNNI | TN_CPU_AVX512)
#define UP_TO_VNNI (UP_TO_AVX512 | TN_CPU_AVX512_VNNI)
#define UP_TO_BF16 (UP_TO_VNNI | TN_CPU_AVX512_BF16)
#define UP_TO_FP16 (UP_TO_BF16 | TN_CPU_AVX512_FP16)

static const struct {
    const char *name;
    uint64_t allowed;
} tiers[] = {
    {"c", 0},
    {"neon", TN_CPU_NEON},
    {"avx2", TN_CPU_AVX2},
    {"avxvnni", UP_TO_AVX_VNNI},
    {"avx512", UP_TO_AVX512},
    {"avx512vnni", UP_TO_VNNI},
    {"avx512bf16", UP_TO_BF16},
    {"avx512fp16", UP_TO_FP16},
    {"amx", UP_TO_FP16 | TN_CPU_AMX_BF16},
};

uint64_t cpu_flags_parse(const char *cap, uint64_t detected)
{
    for (size_t i = 0; cap && i < sizeof tiers / sizeof *tiers; i++)
        if (!strcmp(cap, tiers[i].name))
            return detected & tiers[i].allowed;
    return detected;
}

bool cpu_flags_is_cap(const char *cap)
{
    bool known = !cap || !cap[0];
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        known |= cap && !strcmp(cap, tiers[i].name);
    return known;
}

void cpu_flags_caps(char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers && used < size; i++)
        used += text_cut(text + used, size - used, "%s%s", i ? ", " : "", tiers[i].name);
}

static pthread_once_t flags_once = PTHREAD_ONCE_INIT;
static uint64_t flags_now;
static _Atomic uint64_t flags_emulated, flags_mask = ~UINT64_C(0);

static void cpu_flags_init(void)
{
    flags_now = cpu_flags_parse(getenv("TENON_CPU"), cpu_flags_detect());
}

uint64_t tn_cpu_flags(void)
{
    pthread_once(&flags_once, cpu_flags_init);
    uint64_t flags = (flags_now | flags_emulated) & flags_mask;
    /* Where there are tiles, few tokens take the dot products for the bits of many. */
    return flags & TN_CPU_AMX_BF16 ? flags & ~TN_CPU_SLOW_BF16 : flags;
}

void cpu_flags_emulate(uint64_t flags)
{
    flags_emulated = flags;
}

void cpu_flags_restrict(uint64_t allowed)
{
    flags_mask = allowed;
}
