/* Measuring the ceilings of the machine. Loops for plain C are here, those for an instruction set in a file each. */
#include "device/ceiling.h"

#include "base/clock.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/machine.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define CEILING_BYTES 16
#include "device/ceiling_loops.h"

static const ceiling_loops loops_c = {loop_read, loop_copy, loop_triad, loop_update};

#if defined(__x86_64__)
extern const ceiling_loops ceiling_loops_avx2, ceiling_loops_avx512;
double ceiling_fma_avx2(int64_t rounds);
double ceiling_fma_avx512(int64_t rounds);
double ceiling_fma_avx512fp16(int64_t rounds);
double ceiling_dot_avx512bf16(int64_t rounds);
double ceiling_dot_amx(int64_t rounds);
#elif defined(__aarch64__)
double ceiling_fma_neon(int64_t rounds);
#endif

/* What the compiler's baseline has; it may have no fused product and sum, which then are two operations as well. */
static double peak_c(int64_t rounds)
{
    enum { CHAINS = 12 };
    vector sum[CHAINS], half = (vector){0} + 0.5f;
    for (int c = 0; c < CHAINS; c++)
        sum[c] = (vector){0} + (float)(c + 2);
    for (int64_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = sum[c] * half + half;
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"m"(sum[c]));
    return 2.0 * LANES * CHAINS * (double)rounds;
}

/* One line per kind of arithmetic. */
static const ceiling_peak peaks[] = {
    {"f32 C", "f32", 0, TN_F32, false, peak_c},
#if defined(__x86_64__)
    {"f32 AVX2", "f32", TN_CPU_AVX2, TN_F32, false, ceiling_fma_avx2},
    {"f32 AVX-512", "f32", TN_CPU_AVX512, TN_F32, false, ceiling_fma_avx512},
    {"f16 AVX-512-FP16, f16 sums", "f16", TN_CPU_AVX512_FP16, TN_F16, true, ceiling_fma_avx512fp16},
    {"bf16 AVX-512-BF16", "bf16", TN_CPU_AVX512_BF16, TN_BF16, false, ceiling_dot_avx512bf16},
    {"bf16 AMX", "amx", TN_CPU_AMX_BF16, TN_BF16, false, ceiling_dot_amx},
#elif defined(__aarch64__)
    {"f32 NEON", "f32", TN_CPU_NEON, TN_F32, false, ceiling_fma_neon},
#endif
};

enum { PEAKS = sizeof peaks / sizeof *peaks, GRAIN = 128 };
_Static_assert((int)PEAKS <= (int)CEILING_PEAKS_MAX, "struct ceilings has room for every kind");

const ceiling_peak *ceiling_peak_at(int index)
{
    return index < PEAKS ? &peaks[index] : NULL;
}

static const ceiling_loops *loops(void)
{
#if defined(__x86_64__)
    if (tn_cpu_flags() & TN_CPU_AVX512)
        return &ceiling_loops_avx512;
    if (tn_cpu_flags() & TN_CPU_AVX2)
        return &ceiling_loops_avx2;
#endif
    return &loops_c;
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

/* SLICES parts of equal size, of which each run takes the next one to three. */
enum { SLICES = 16 };
static struct {
    float *memory;
    size_t bytes;
    int64_t slice, next; /* floats; number                                                         */
    _Atomic float sink;
} ring;

/* Zeros stay zeros whatever the loops do to them. */
static void clear_slices(void *ctx, int32_t thread, int32_t threads)
{
    (void)ctx;
    int64_t grains = ring.slice / GRAIN, begin = grains * thread / threads, end = grains * (thread + 1) / threads;
    for (int i = 0; i < SLICES; i++)
        memset(ring.memory + i * ring.slice + begin * GRAIN, 0, (size_t)(end - begin) * GRAIN * sizeof(float));
}

/* At least half a gigabyte, for threads are few milliseconds at work on a part; at most an eighth of what the machine
 * has. Large pages: what is measured is the memory, not the tables of addresses. */
bool ceiling_open(void)
{
    const int64_t unit = (int64_t)SLICES << 21, least = (int64_t)512 << 20;
    int64_t bytes = 4 * machine_cache_bytes(INT32_MAX);
    int64_t most = (int64_t)(memory_of_machine(0) / 8) / unit * unit;
    if (ring.memory)
        return true;
    bytes = ((bytes > least ? bytes : least) + unit - 1) / unit * unit;
    bytes = bytes < most || most == 0 ? bytes : most;
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    ring.memory = memory;
    ring.bytes = (size_t)bytes;
    ring.slice = bytes / SLICES / (int64_t)sizeof(float);
    ring.next = 0;
    tn_parallel(clear_slices, NULL);
    return true;
}

void ceiling_close(void)
{
    if (ring.memory)
        munmap(ring.memory, ring.bytes);
    ring.memory = NULL;
}

int64_t ceiling_memory_bytes(void)
{
    return ring.memory ? (int64_t)ring.bytes : 0;
}

static float *next_slice(void)
{
    return ring.memory + ring.next++ % SLICES * ring.slice;
}

/* ---- one run on all threads ------------------------------------------------------------------------- */

typedef struct run {
    ceiling_kind kind;
    float *a, *b, *c;
    int64_t n; /* floats of each array over all threads; rounds of CEILING_PEAK on each           */
    int streams, repeat, peak;
    int32_t came; /* threads that took part: a busy team is entered by fewer                        */
} run;

static void run_on_thread(void *ctx, int32_t thread, int32_t threads)
{
    run *r = ctx;
    const ceiling_loops *l = loops();
    int64_t grains = r->n / GRAIN, begin = grains * thread / threads * GRAIN;
    int64_t n = (grains * (thread + 1) / threads - grains * thread / threads) / r->streams * r->streams * GRAIN;
    if (thread == 0)
        r->came = threads;
    for (int i = 0; i < r->repeat; i++) {
        if (r->kind == CEILING_READ)
            atomic_store_explicit(&ring.sink, l->read(r->a + begin, n, r->streams), memory_order_relaxed);
        else if (r->kind == CEILING_COPY)
            l->copy(r->b + begin, r->a + begin, n, r->streams);
        else if (r->kind == CEILING_TRIAD)
            l->triad(r->c + begin, r->a + begin, r->b + begin, n, r->streams);
        else if (r->kind == CEILING_UPDATE)
            l->update(r->a + begin, n, r->streams);
        else
            peaks[r->peak].run(r->n);
    }
}

static void count_threads(void *ctx, int32_t thread, int32_t threads)
{
    if (thread == 0)
        *(int32_t *)ctx = threads;
}

/* Threads that slept, or that the system has given to somebody else, miss an invitation or two. */
static void assemble(void)
{
    int32_t came = 0;
    for (int tries = 0; tries < 100 && came < tn_thread_count(); tries++)
        tn_parallel(count_threads, &came);
}

/* Seconds of one run. */
static double run_seconds(run *r)
{
    assemble();
    double begin = clock_seconds();
    tn_parallel(run_on_thread, r);
    return clock_seconds() - begin;
}

/* Bytes per second, of parts of memory that have not been used for a round. */
static double memory_rate(ceiling_kind kind, double arrays)
{
    double rate = 0;
    for (int streams = 1; streams <= 8; streams *= streams == 1 ? 4 : 2) {
        run r = {.kind = kind, .n = ring.slice, .streams = streams, .repeat = 1};
        r.a = next_slice();
        r.b = kind == CEILING_COPY || kind == CEILING_TRIAD ? next_slice() : NULL;
        r.c = kind == CEILING_TRIAD ? next_slice() : NULL;
        rate = fmax(rate, arrays * (double)sizeof(float) * (double)r.n / run_seconds(&r));
    }
    return rate;
}

static double cached_rate(int32_t threads)
{
    enum { REPEAT = 20, RUNS = 4 };
    long second = sysconf(_SC_LEVEL2_CACHE_SIZE);
    int64_t each = (second > 0 ? second : 1 << 20) / 8 / (int64_t)sizeof(float) / GRAIN * GRAIN, all = each * threads;
    double rate = 0;
    run r = {.kind = CEILING_COPY, .n = all < ring.slice ? all : ring.slice, .streams = 1, .repeat = REPEAT};
    r.a = next_slice();
    r.b = next_slice();
    for (int i = 0; i < RUNS; i++)
        rate = fmax(rate, 2.0 * sizeof(float) * (double)r.n * REPEAT / run_seconds(&r));
    return rate;
}

/* Runs of two milliseconds. */
static double peak_rate(int peak)
{
    enum { RUNS = 4 };
    double rate = 0;
    run r = {.kind = CEILING_PEAK, .n = 10000, .streams = 1, .repeat = 1, .peak = peak};
    r.n = (int64_t)(2e-3 / fmax(run_seconds(&r), 1e-6) * (double)r.n) + 1;
    for (int i = 0; i < RUNS; i++) {
        double seconds = run_seconds(&r);
        rate = fmax(rate, peaks[peak].run(1) * (double)r.n * r.came / seconds);
    }
    return rate;
}

void ceiling_measure(ceilings *c, int32_t threads)
{
    int32_t before = threads_limit(threads);
    *c = (ceilings){.threads = tn_thread_count()};
    c->read = memory_rate(CEILING_READ, 1);
    c->copy = memory_rate(CEILING_COPY, 2);
    c->triad = memory_rate(CEILING_TRIAD, 3);
    c->update = memory_rate(CEILING_UPDATE, 2);
    c->cached = cached_rate(c->threads);
    for (int p = 0; p < PEAKS; p++)
        if (!(peaks[p].flags & ~tn_cpu_flags()))
            c->peak[p] = peak_rate(p);
    threads_limit(before);
}

void ceiling_join(ceilings *c, const ceilings *other)
{
    double *mine[] = {&c->read, &c->copy, &c->triad, &c->update, &c->cached};
    const double *theirs[] = {&other->read, &other->copy, &other->triad, &other->update, &other->cached};
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        *mine[i] = fmax(*mine[i], *theirs[i]);
    for (int p = 0; p < PEAKS; p++)
        c->peak[p] = fmax(c->peak[p], other->peak[p]);
}

double ceiling_pass_seconds(ceiling_kind kind, double bytes, bool team)
{
    int repeat = (int)(1e6 / (bytes + 1)) + 1;
    float *other = ring.memory + SLICES / 2 * ring.slice;
    run r = {.kind = kind, .a = ring.memory, .b = other, .streams = 1, .repeat = team ? 1 : repeat};
    double least = INFINITY;
    r.n = ((int64_t)bytes / (int64_t)sizeof(float) + GRAIN - 1) / GRAIN * GRAIN;
    if (r.n > SLICES / 2 * ring.slice)
        return 0;
    for (int i = 0; i < 8; i++) {
        double begin = clock_seconds();
        if (!team)
            run_on_thread(&r, 0, 1);
        else
            for (int j = 0; j < repeat; j++)
                tn_parallel(run_on_thread, &r);
        least = fmin(least, (clock_seconds() - begin) / repeat);
    }
    return least * bytes / (sizeof(float) * (double)r.n);
}
