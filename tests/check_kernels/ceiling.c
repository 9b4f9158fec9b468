/* Measuring the ceilings of the machine. Loops for plain C are here, those for an instruction set in a file each. */
#include "ceiling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/kernel.h>
#include <time.h>
#include <unistd.h>
#define CEILING_BYTES 16
#include "ceiling_loops.h"

static const ceiling_loops loops_c = {loop_read, loop_copy, loop_triad, loop_update};

#if defined(__x86_64__)
extern const ceiling_loops ceiling_loops_avx2, ceiling_loops_avx512;
double ceiling_fma_avx2(int64_t rounds);
double ceiling_fma_avx512(int64_t rounds);
double ceiling_dot_avx512bf16(int64_t rounds);
double ceiling_dot_amx(int64_t rounds);
#endif

/* What the compiler's baseline has; it may have no fused product and sum, which then are two operations as well. */
static double peak_c(int64_t rounds)
{
    enum { CHAINS = 12 };
    vector sum[CHAINS], half = (vector){0} + 0.5f;
    for (int c = 0; c < CHAINS; c++)
        sum[c] = (vector){0} + (float)c;
    for (int64_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = sum[c] * half + half;
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"m"(sum[c]));
    return 2.0 * LANES * CHAINS * (double)rounds;
}

/* One line per kind of arithmetic. */
static const ceiling_peak peaks[] = {
    {"f32 C", "f32", 0, TN_F32, peak_c},
#if defined(__x86_64__)
    {"f32 AVX2", "f32", TN_CPU_AVX2, TN_F32, ceiling_fma_avx2},
    {"f32 AVX-512", "f32", TN_CPU_AVX512, TN_F32, ceiling_fma_avx512},
    {"bf16 AVX-512-BF16", "bf16", TN_CPU_AVX512_BF16, TN_BF16, ceiling_dot_avx512bf16},
    {"bf16 AMX", "amx", TN_CPU_AMX_BF16, TN_BF16, ceiling_dot_amx},
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

/* As the kernel says: what the C library makes of the processor's own tables is too large in virtual machines. */
int64_t ceiling_cache_bytes(void)
{
    long long kilobytes = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (f && fscanf(f, "%lldK", &kilobytes) != 1)
        kilobytes = 0;
    if (f)
        fclose(f);
    return kilobytes > 0 ? (int64_t)kilobytes << 10 : 32 << 20;
}

/* ---- one run on all threads ------------------------------------------------------------------------- */

typedef enum kind { READ, COPY, TRIAD, UPDATE, PEAK } kind;

typedef struct run {
    kind kind;
    float *a, *b, *c;
    int64_t n; /* floats of each array over all threads; rounds of PEAK on each                   */
    int streams, repeat, peak;
} run;

/* Three arrays, larger than the last cache each. */
static struct {
    float *memory;
    int64_t n;
    volatile float sink;
} buffer;

static void run_on_thread(void *ctx, int32_t thread, int32_t threads)
{
    const run *r = ctx;
    const ceiling_loops *l = loops();
    int64_t grains = r->n / GRAIN, begin = grains * thread / threads * GRAIN;
    int64_t n = (grains * (thread + 1) / threads - grains * thread / threads) / r->streams * r->streams * GRAIN;
    for (int i = 0; i < r->repeat; i++) {
        if (r->kind == READ)
            buffer.sink = l->read(r->a + begin, n, r->streams);
        else if (r->kind == COPY)
            l->copy(r->b + begin, r->a + begin, n, r->streams);
        else if (r->kind == TRIAD)
            l->triad(r->c + begin, r->a + begin, r->b + begin, n, r->streams);
        else if (r->kind == UPDATE)
            l->update(r->a + begin, n, r->streams);
        else
            peaks[r->peak].run(r->n);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of the fastest of several. */
static double best(run r, int runs)
{
    double least = 1e30;
    for (int i = 0; i < runs; i++) {
        double begin = now();
        tn_parallel(run_on_thread, &r);
        double seconds = now() - begin;
        least = seconds < least ? seconds : least;
    }
    return least;
}

static run memory_run(kind k, int streams, int64_t n, int repeat)
{
    return (run){.kind = k,
                 .a = buffer.memory,
                 .b = buffer.memory + buffer.n,
                 .c = buffer.memory + 2 * buffer.n,
                 .n = n / (GRAIN * 8) * (GRAIN * 8),
                 .streams = streams,
                 .repeat = repeat};
}

static double best_of_streams(kind k, double arrays)
{
    double rate = 0;
    for (int streams = 1; streams <= 8; streams *= streams == 1 ? 4 : 2) {
        run r = memory_run(k, streams, buffer.n, 1);
        double found = arrays * 4 * (double)r.n / best(r, 1);
        rate = found > rate ? found : rate;
    }
    return rate;
}

/* Zeros stay zeros whatever the loops do to them. Pages lie near the thread that writes them first. */
static void clear(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)ctx;
    (void)thread;
    memset(buffer.memory + begin, 0, (size_t)(end - begin) * sizeof(float));
}

bool ceilings_open(void)
{
    if (buffer.memory)
        return true;
    int64_t bytes = 4 * ceiling_cache_bytes(), largest = sysconf(_SC_PHYS_PAGES) / 24 * sysconf(_SC_PAGESIZE);
    bytes = (bytes < largest ? bytes : largest) / 4096 * 4096;
    buffer.n = bytes / 4;
    buffer.memory = aligned_alloc(4096, (size_t)bytes * 3);
    if (buffer.memory)
        tn_parallel_for(3 * buffer.n, 3 * buffer.n / tn_thread_count(), clear, NULL);
    return buffer.memory;
}

void ceilings_close(void)
{
    free(buffer.memory);
    buffer.memory = NULL;
}

void ceilings_join(ceilings *c, const ceilings *other)
{
    double *mine[] = {&c->read, &c->copy, &c->triad, &c->update, &c->cached};
    const double *theirs[] = {&other->read, &other->copy, &other->triad, &other->update, &other->cached};
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        *mine[i] = *mine[i] > *theirs[i] ? *mine[i] : *theirs[i];
    for (int p = 0; p < PEAKS; p++)
        c->peak[p] = c->peak[p] > other->peak[p] ? c->peak[p] : other->peak[p];
}

void ceilings_measure(ceilings *c, int threads)
{
    *c = (ceilings){.threads = threads};
    c->read = best_of_streams(READ, 1);
    c->copy = best_of_streams(COPY, 2);
    c->triad = best_of_streams(TRIAD, 3);
    c->update = best_of_streams(UPDATE, 2);
    long second = sysconf(_SC_LEVEL2_CACHE_SIZE);
    int64_t each = (second > 0 ? second : 1 << 20) / 8 / 4;
    run r = memory_run(COPY, 1, each * threads, 20);
    c->cached = 2 * 4 * (double)r.n * r.repeat / best(r, 4);
    for (int p = 0; p < PEAKS; p++) {
        if (peaks[p].flags & ~tn_cpu_flags())
            continue;
        run arithmetic = {.kind = PEAK, .n = 100000, .streams = 1, .repeat = 1, .peak = p};
        c->peak[p] = peaks[p].run(1) * (double)arithmetic.n * threads / best(arithmetic, 4);
    }
}

/* ---- the least time of some work ------------------------------------------------------------------------ */

double ceiling_flops_seconds(const ceilings *c, uint64_t flags, tn_dtype dtype, double flops, const char **which)
{
    double peak = 0;
    for (int p = 0; p < PEAKS; p++)
        if (!(peaks[p].flags & ~flags) && (peaks[p].dtype == TN_F32 || peaks[p].dtype == dtype) && c->peak[p] > peak) {
            peak = c->peak[p];
            *which = peaks[p].brief;
        }
    return peak > 0 ? flops / peak : 0;
}

/* What a byte costs that is written besides being read follows from reading and copying. */
double ceiling_memory_seconds(const ceilings *c, double read, double written, bool in_place)
{
    double write = 2 / (in_place ? c->update : c->copy) - 1 / c->read;
    return read / c->read + written * (write > 0 ? write : 0);
}

/* Seconds of one pass over bytes in cache: on this thread, or by entering the team for each pass. */
static double pass_seconds(kind k, double bytes, bool team)
{
    int repeat = (int)(1e6 / (bytes + 1)) + 1;
    run r = {.kind = k, .a = buffer.memory, .b = buffer.memory + buffer.n, .streams = 1, .repeat = team ? 1 : repeat};
    double least = 1e30;
    r.n = ((int64_t)bytes / 4 + GRAIN - 1) / GRAIN * GRAIN;
    for (int i = 0; i < 8; i++) {
        double begin = now();
        if (!team)
            run_on_thread(&r, 0, 1);
        else
            for (int j = 0; j < repeat; j++)
                tn_parallel(run_on_thread, &r);
        double seconds = (now() - begin) / repeat;
        least = seconds < least ? seconds : least;
    }
    return least * bytes / (4.0 * (double)r.n);
}

double ceiling_cached_seconds(const ceilings *c, double read, double written, bool in_place)
{
    double both = read < written ? read : written, sum = 0;
    if (read > 4.0 * (double)buffer.n || written > 4.0 * (double)buffer.n)
        return 0;
    for (int part = 0; part < 2; part++) {
        kind k = part ? READ : in_place ? UPDATE : COPY;
        double bytes = part ? read - both : both, alone = bytes > 0 ? pass_seconds(k, bytes, false) : 0;
        double team = bytes > 0 && c->threads > 1 ? pass_seconds(k, bytes, true) : alone;
        sum += team < alone ? team : alone;
    }
    return sum;
}
