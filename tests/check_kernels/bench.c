/* Timing. A call is timed in batches that are long against the clock, in turns with eager; the median of the batches is
 * reported with the quartiles. Hot: the same tensors again and again, where they fit into the last cache. Cold: going
 * round copies of everything, four times as many bytes as that cache holds. */
#include "base/clock.h"
#include "bench_set.h"
#include "device/machine.h"
#include "least.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_COPIES = 32768, MAX_BATCHES = 401 };

const bench_model bench_models[BENCH_MODELS] = {
    {"0.6B", 1024, 3072, 16, 8, 128, 0, 0},
    {"8B", 4096, 12288, 32, 8, 128, 0, 0},
    {"30B-A3B", 2048, 768, 32, 4, 128, 128, 8},
};
const int64_t bench_tokens[BENCH_TOKENS] = {1, 16, 512, 4096};

typedef struct timing {
    double median, low, high; /* seconds per call                                                 */
} timing;

/* One line of the report. */
typedef struct row {
    const check_case *c;
    bench_work work;
    bool backward, cold;
    int threads;
} row;

/* ---- what is asked for --------------------------------------------------------------------------------- */

bool bench_wanted(check_state *s, tn_dtype dtype, double flops, const char *format, ...)
{
    char text[sizeof s->group - 8];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(s->group, sizeof s->group, "%s %s", text, tn_dtype_name(dtype));
    if (s->bench.dtype && s->bench.dtype != dtype)
        return false;
    if (s->bench.filter && !strstr(s->group, s->bench.filter))
        return false;
    if (flops <= s->bench.most_flops)
        return true;
    printf("%-40s left out: %.0f GFLOP a call; --long times it\n", s->group, flops * 1e-9);
    return false;
}

/* ---- ceilings ---------------------------------------------------------------------------------------------- */

/* Of one thread and of all: the best of the last few measurements, a new one at most every two seconds. Neighbours of
 * a shared machine make its memory slower for minutes, and disturb single measurements. */
enum { KEPT = 6 };
static struct {
    ceilings one[KEPT], all[KEPT];
    double when;
    size_t next;
} measured;

static void refresh(const check_state *s, bool now_or_never)
{
    if (!now_or_never && clock_seconds() - measured.when < 2)
        return;
    host_threads(s->bench.threads);
    ceiling_measure(&measured.one[measured.next], 1);
    ceiling_measure(&measured.all[measured.next], 0);
    measured.next = (measured.next + 1) % KEPT;
    measured.when = clock_seconds();
}

static ceilings current(int threads)
{
    const ceilings *from = threads == 1 ? measured.one : measured.all;
    ceilings best = from[0];
    best.threads = threads;
    for (int i = 1; i < KEPT; i++)
        ceiling_join(&best, &from[i]);
    return best;
}

static void print_ceiling(const char *name, double one, double all, const char *unit)
{
    if (one > 0)
        printf("  %-28s %9.1f %9.1f %s\n", name, one * 1e-9, all * 1e-9, unit);
}

static void print_ceilings(const check_state *s)
{
    for (int i = 0; i < KEPT; i++)
        refresh(s, true);
    const ceilings one = current(1), all = current(s->bench.threads);
    printf("  %-28s %9s %9d threads\n", "ceilings, measured now", "1", s->bench.threads);
    print_ceiling("memory, read", one.read, all.read, "GB/s");
    print_ceiling("memory, copy", one.copy, all.copy, "GB/s");
    print_ceiling("memory, triad", one.triad, all.triad, "GB/s");
    print_ceiling("memory, update in place", one.update, all.update, "GB/s");
    print_ceiling("second cache, copy", one.cached, all.cached, "GB/s");
    for (int p = 0; ceiling_peak_at(p); p++)
        print_ceiling(ceiling_peak_at(p)->name, one.peak[p], all.peak[p], "GFLOP/s");
}

bool bench_open(check_state *s)
{
    static const struct {
        uint64_t flag;
        const char *name;
    } names[] = {{TN_CPU_AVX2, "avx2"},
                 {TN_CPU_AVX_VNNI, "avxvnni"},
                 {TN_CPU_AVX512, "avx512"},
                 {TN_CPU_AVX512_VNNI, "avx512vnni"},
                 {TN_CPU_AVX512_BF16, "avx512bf16"},
                 {TN_CPU_AVX512_FP16, "avx512fp16"},
                 {TN_CPU_AMX_BF16, "amx"},
                 {TN_CPU_NEON, "neon"}};
    char name[128];
    host_threads(s->bench.threads);
    s->bench.threads = tn_thread_count();
    if (!ceiling_open())
        return false;
    machine_cpu_name(name, sizeof name);
    printf("%s; in use:", name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (host_flags() & names[i].flag)
            printf(" %s", names[i].name);
    printf("; last cache %lld MB, memory measured in %lld MB\n", (long long)(machine_cache_bytes(INT32_MAX) >> 20),
           (long long)(ceiling_memory_bytes() >> 20));
    print_ceilings(s);
    printf("%-40s %-10s %2s %-3s %-4s %10s %9s %7s %-7s %6s %s\n", "", "tier", "n", "", "", "median", "quartiles",
           "rate", "", "eager", "ceiling");
    return true;
}

void bench_close(check_state *s)
{
    printf("again, at the end:\n");
    print_ceilings(s);
    ceiling_close();
}

/* ---- one line ------------------------------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing timing_of(double *seconds, size_t n)
{
    if (!n)
        return (timing){0, 0, 0};
    qsort(seconds, n, sizeof *seconds, ascending);
    return (timing){seconds[n / 2], seconds[n / 4], seconds[n - 1 - n / 4]};
}

typedef tn_status (*caller)(bench_set *set, size_t index, bool backward, tn_error *err);

/* Where the next call goes: cold calls go round the copies, whoever calls. */
typedef struct place {
    bench_set *set;
    size_t at;
    bool backward, cold;
} place;

/* Seconds of each of some calls; 0: a call failed. */
static double batch(place *p, caller call, size_t calls, tn_error *err)
{
    double begin = clock_seconds();
    for (size_t i = 0; i < calls; i++)
        if (call(p->set, p->cold ? p->at++ : 0, p->backward, err) != TN_OK)
            return 0;
    return (clock_seconds() - begin) / (double)calls;
}

/* A caller with the calls of a batch, some 100 us, and the seconds that batches took for each call. */
typedef struct sampler {
    caller call;
    size_t calls, count;
    double seconds[MAX_BATCHES];
} sampler;

static void sample(sampler *m, place *p, tn_error *err)
{
    if (m->calls && m->count < MAX_BATCHES)
        m->seconds[m->count++] = batch(p, m->call, m->calls, err);
}

/* The first call brings memory and caches into their states; where it takes half a second that does not matter. */
static void sampler_start(sampler *m, caller call, place *p, tn_error *err)
{
    *m = (sampler){.call = call, .calls = 1};
    double each = batch(p, call, 1, err);
    if (each > 0.5)
        m->seconds[m->count++] = each;
    while (each > 0 && each * (double)m->calls < 100e-6 && m->calls < 1 << 20) {
        m->calls *= 2;
        each = batch(p, call, m->calls, err);
    }
    if (each <= 0)
        m->calls = 0;
}

/* Twice at least, five times where that is a matter of a second. Eager has every second turn. */
static void measure(place *p, double budget, timing *kernel, timing *eager, tn_error *err)
{
    sampler ours, theirs = {.calls = 0};
    tn_error declined = TN_ERROR_INIT;
    sampler_start(&ours, bench_set_kernel, p, err);
    if (ours.calls && p->set->eager.arena)
        sampler_start(&theirs, bench_set_eager, p, &declined);
    double begin = clock_seconds(), spent = 0;
    for (int i = 0; ours.calls && i < MAX_BATCHES; i++, spent = clock_seconds() - begin) {
        if (ours.count >= 2 && spent > budget && (ours.count >= 5 || spent > 1))
            break;
        sample(&ours, p, err);
        if (i % 2 == 0 && (spent < 1 || !theirs.count))
            sample(&theirs, p, &declined);
    }
    *kernel = timing_of(ours.seconds, ours.count);
    *eager = timing_of(theirs.seconds, theirs.count);
}

static double least_seconds(const check_state *s, const row *r, const char **which)
{
    const ceilings c = current(r->threads);
    const check_case *k = r->c;
    bool in_place = r->backward ? k->grad_alias[0] >= 0 : k->alias[0] >= 0;
    double memory = r->cold ? least_memory_seconds(&c, r->work.read, r->work.written, in_place)
                            : least_cached_seconds(&c, r->work.read, r->work.written, in_place);
    double flops =
        least_flops_seconds(&c, s->tier->flags, (tn_dtype)k->site.meaning[TN_AXIS_DTYPE], r->work.flops, which);
    if (memory > flops)
        *which = r->cold ? "mem" : "cache";
    return memory > flops ? memory : flops;
}

static void print_time(double seconds)
{
    const char *unit = seconds < 1e-3 ? "us" : seconds < 1 ? "ms" : "s ";
    printf(" %7.2f %s", seconds * (seconds < 1e-3 ? 1e6 : seconds < 1 ? 1e3 : 1), unit);
}

static void print_row(const check_state *s, const row *r, timing t, timing eager)
{
    const char *which = "";
    double least = least_seconds(s, r, &which);
    char quartiles[32];
    snprintf(quartiles, sizeof quartiles, "%+.0f %+.0f%%", 100 * (t.low / t.median - 1), 100 * (t.high / t.median - 1));
    printf("%-40s %-10s %2d %-3s %-4s", s->group, s->tier->name, r->threads, r->backward ? "bwd" : "fwd",
           r->cold ? "cold" : "hot");
    print_time(t.median);
    printf(" %9s", quartiles);
    if (r->work.flops > 0 && strcmp(which, "mem") && strcmp(which, "cache"))
        printf(" %7.1f GFLOP/s", r->work.flops / t.median * 1e-9);
    else
        printf(" %7.1f GB/s   ", (r->work.read + r->work.written) / t.median * 1e-9);
    if (eager.median > 0)
        printf(" %5.2fx", eager.median / t.median);
    else
        printf(" %6s", "-");
    printf(" %3.0f%% %s\n", 100 * least / t.median, which);
    fflush(stdout);
}

static void run_row(check_state *s, bench_set *set, const row *r)
{
    tn_error err = TN_ERROR_INIT;
    timing kernel, eager;
    place p = {.set = set, .backward = r->backward, .cold = r->cold};
    refresh(s, false);
    host_threads(r->threads);
    tn_status status = bench_set_plan(set, r->c, r->backward, s->tier->flags, &err);
    if (status == TN_OK)
        measure(&p, s->bench.seconds, &kernel, &eager, &err);
    if (status == TN_OK && kernel.median > 0)
        print_row(s, r, kernel, eager);
    else
        printf("%-40s %-10s %2d %-3s %s\n", s->group, s->tier->name, r->threads, r->backward ? "bwd" : "fwd",
               err.message);
}

/* Enough copies for four times the last cache, in no more than half of the memory that is free. */
static size_t copies_of(const check_case *c, bench_work work)
{
    double round = 4 * (double)machine_cache_bytes(INT32_MAX), free_bytes = 0.5 * (double)sysconf(_SC_AVPHYS_PAGES);
    double each = (double)bench_set_bytes(c), touched = work.read + work.written;
    free_bytes *= (double)sysconf(_SC_PAGESIZE);
    double count = touched > 0 ? round / touched + 1 : 1;
    if (count * each > free_bytes)
        count = free_bytes / each;
    return count < 1 ? 1 : count > MAX_COPIES ? MAX_COPIES : (size_t)count;
}

void bench_run(check_state *s, check_case *c, bench_work forward, bench_work backward)
{
    char reason[512] = "";
    random_state r = {1};
    host_restrict(~UINT64_C(0));
    const tn_impl *impl = host_impl("cpu", c->kernel, &c->site, reason, sizeof reason);
    bool both = impl && impl->backward && backward.read > 0;
    if (both && backward.flops > s->bench.most_flops) {
        printf("%-40s bwd left out: %.0f GFLOP a call; --long times it\n", s->group, backward.flops * 1e-9);
        both = false;
    }
    if (both && !c->grads.size)
        case_grads(c, &r);
    bench_set set = {0};
    if (!impl)
        printf("%-40s %s\n", s->group, reason);
    else if (!bench_set_open(&set, c, impl, copies_of(c, forward)))
        printf("%-40s left out: %zu MB do not fit into memory\n", s->group, bench_set_bytes(c) >> 20);
    double hot = (double)machine_cache_bytes(1);
    for (int all = s->bench.threads > 1 ? 0 : 1; set.copies && all < 2; all++)
        for (int back = 0; back <= both; back++)
            for (int cold = 0; cold < 2; cold++) {
                row line = {c, back ? backward : forward, back, cold, all ? s->bench.threads : 1};
                if (cold || line.work.read + line.work.written < hot / 2)
                    run_row(s, &set, &line);
            }
    bench_set_close(&set);
    case_free(c);
}
