/* What this machine can do at most: bytes read and products per second, on all threads of the team. A benchmark's
 * figures mean something only beside these. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Larger than the caches of most machines; more would take seconds to touch on a virtual one. */
#define READ_BYTES ((size_t)256 << 20)
#define READ_GRAIN ((int64_t)1 << 20)
/* Products of one turn, long enough (tens of milliseconds) that starting the team does not count. */
#define PRODUCT_STEPS ((int64_t)4 << 20)
#define CHAINS 12 /* independent sums: two units times a latency of four, and some to spare */
#define TURNS 5

/* ---- reading memory ----------------------------------------------------------------------------- */

typedef struct reading {
    const uint64_t *memory;
    uint64_t sums[1024][8]; /* per thread, a cache line each: what was read must be used         */
} reading;

static inline __attribute__((always_inline)) uint64_t sum_words(const uint64_t *words, int64_t count)
{
    uint64_t sum[32] = {0}, all = 0;
    for (int64_t i = 0; i < count; i += 32)
        for (int k = 0; k < 32; k++)
            sum[k] += words[i + k];
    for (int k = 0; k < 32; k++)
        all += sum[k];
    return all;
}

static void read_plain(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    reading *r = ctx;
    r->sums[thread & 1023][0] += sum_words(r->memory + begin, end - begin);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void read_avx2(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    reading *r = ctx;
    r->sums[thread & 1023][0] += sum_words(r->memory + begin, end - begin);
}
#endif

static void touch(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    memset((uint64_t *)ctx + begin, 1, (size_t)(end - begin) * sizeof(uint64_t));
}

static double measure_reading(void)
{
    const int64_t words = (int64_t)(READ_BYTES / sizeof(uint64_t));
    void *memory = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    reading *r = calloc(1, sizeof *r);
    double best = 0;
    if (memory != MAP_FAILED && r) {
        void (*body)(void *, int64_t, int64_t, int32_t) = read_plain;
#if defined(__x86_64__)
        if (tn_cpu_flags() & TN_CPU_AVX2)
            body = read_avx2;
#endif
        madvise(memory, READ_BYTES, MADV_HUGEPAGE);
        tn_parallel_for(words, READ_GRAIN, touch, memory);
        r->memory = memory;
        for (int turn = 0; turn < TURNS; turn++) {
            double started = seconds_now();
            tn_parallel_for(words, READ_GRAIN, body, r);
            double rate = (double)READ_BYTES / (seconds_now() - started);
            best = rate > best ? rate : best;
        }
    }
    if (memory != MAP_FAILED)
        munmap(memory, READ_BYTES);
    free(r);
    return best / 1e9;
}

/* ---- products ------------------------------------------------------------------------------------ */

/* Keeps the compiler from dropping sums that nobody reads. */
static inline void keep(const void *value)
{
    __asm__ volatile("" : : "r"(value) : "memory");
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void fma_avx2(void *ctx, int32_t thread, int32_t threads)
{
    __m256 sum[CHAINS], factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(1.0f);
    (void)ctx, (void)thread, (void)threads;
    for (int k = 0; k < CHAINS; k++)
        sum[k] = _mm256_set1_ps((float)k);
    for (int64_t i = 0; i < PRODUCT_STEPS; i++)
        for (int k = 0; k < CHAINS; k++)
            sum[k] = _mm256_fmadd_ps(sum[k], factor, term);
    keep(sum);
}

__attribute__((target("avx512f"))) static void fma_avx512(void *ctx, int32_t thread, int32_t threads)
{
    __m512 sum[CHAINS], factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(1.0f);
    (void)ctx, (void)thread, (void)threads;
    for (int k = 0; k < CHAINS; k++)
        sum[k] = _mm512_set1_ps((float)k);
    for (int64_t i = 0; i < PRODUCT_STEPS; i++)
        for (int k = 0; k < CHAINS; k++)
            sum[k] = _mm512_fmadd_ps(sum[k], factor, term);
    keep(sum);
}

__attribute__((target("avx512f,avx512bf16"))) static void dot_bf16(void *ctx, int32_t thread, int32_t threads)
{
    __m512 sum[CHAINS];
    /* Pairs of bfloat16 ones; the sums stay far below where adding 2 has no effect that would matter here. */
    __m512i ones = _mm512_set1_epi32(0x3F803F80);
    __m512bh a, b;
    (void)ctx, (void)thread, (void)threads;
    memcpy(&a, &ones, sizeof a);
    memcpy(&b, &ones, sizeof b);
    for (int k = 0; k < CHAINS; k++)
        sum[k] = _mm512_set1_ps((float)k);
    for (int64_t i = 0; i < PRODUCT_STEPS; i++)
        for (int k = 0; k < CHAINS; k++)
            sum[k] = _mm512_dpbf16_ps(sum[k], a, b);
    keep(sum);
}

static double measure_products(void (*body)(void *, int32_t, int32_t), double flops_per_step, int32_t threads)
{
    double best = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        double started = seconds_now();
        tn_parallel(body, NULL);
        double rate = flops_per_step * CHAINS * (double)PRODUCT_STEPS * threads / (seconds_now() - started);
        best = rate > best ? rate : best;
    }
    return best / 1e9;
}

static void measure_compute(machine_limits *limits)
{
    uint64_t flags = tn_cpu_flags();
    if (flags & TN_CPU_AVX512)
        limits->fma_gflops = measure_products(fma_avx512, 2 * 16, limits->threads);
    else if (flags & TN_CPU_AVX2)
        limits->fma_gflops = measure_products(fma_avx2, 2 * 8, limits->threads);
    if (flags & TN_CPU_AVX512_BF16)
        limits->bf16_gflops = measure_products(dot_bf16, 2 * 32, limits->threads);
}
#else
static void measure_compute(machine_limits *limits)
{
    (void)limits;
}
#endif

/* ---- the machine --------------------------------------------------------------------------------- */

static void cpu_name(char *name, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    struct utsname system;
    snprintf(name, size, "%s", uname(&system) == 0 ? system.machine : "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(name, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (file)
        fclose(file);
}

void machine_measure(machine_limits *limits)
{
    *limits = (machine_limits){.threads = tn_thread_count()};
    cpu_name(limits->cpu, sizeof limits->cpu);
    limits->read_gb = measure_reading();
    measure_compute(limits);
}
