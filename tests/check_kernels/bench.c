/* Timing. A call is timed in batches that are long against the clock; the median of the batches is reported with the
 * tenth and ninetieth percentile. Hot: the same tensors again and again. Cold: going round more copies of everything
 * than the caches hold. */
#include "check_kernels.h"
#include "host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Twice the 32 MB last-level cache of the machines at hand. */
static const size_t COLD_BYTES = (size_t)64 << 20;

enum { MAX_COPIES = 4096, MAX_BATCHES = 201 };

/* One set of tensors, ready to be called. */
typedef struct bench_copy {
    tn_call call;
    tn_site site;
    tn_plan plan;
    tn_tensor *params[TN_ROLE_MAX];
    void *memory, *packed, *scratch;
} bench_copy;

typedef struct bench_set {
    bench_copy *copies;
    size_t count;
    const tn_impl *impl; /* NULL: eager */
    host_eager_state eager;
} bench_set;

typedef struct timing {
    double median, low, high; /* seconds per call */
} timing;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t span_bytes(const tn_tensor *t)
{
    int64_t span = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        span += (t->shape[d] - 1) * t->stride[d];
    return tn_tensor_count(t) ? span * (int64_t)tn_dtype_size(t->dtype) : 0;
}

static size_t padded(const tn_tensor *t)
{
    return ((size_t)span_bytes(t) + 63) / 64 * 64;
}

static size_t copy_bytes(const check_case *c)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < c->call.in_count; i++)
        bytes += padded(&c->call.in[i]);
    for (int32_t i = 0; i < c->call.out_count; i++)
        bytes += c->alias[i] < 0 ? padded(&c->call.out[i]) : 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < c->site.param[role].count; i++)
            bytes += padded(&c->site.param[role].tensors[i]);
    return bytes;
}

static void *must(void *memory)
{
    if (!memory) {
        fprintf(stderr, "check_kernels: out of memory\n");
        exit(6);
    }
    return memory;
}

static char *take(tn_tensor *t, char *at)
{
    memcpy(at, t->data, (size_t)span_bytes(t));
    t->data = at;
    return at + padded(t);
}

static void copy_init(bench_copy *b, const check_case *c, size_t bytes)
{
    b->call = c->call;
    b->site = c->site;
    char *at = b->memory = must(aligned_alloc(64, bytes + 64));
    for (int32_t i = 0; i < c->call.in_count; i++)
        at = take(&b->call.in[i], at);
    for (int32_t i = 0; i < c->call.out_count; i++) {
        if (c->alias[i] < 0)
            at = take(&b->call.out[i], at);
        else
            b->call.out[i].data = b->call.in[c->alias[i]].data;
    }
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *p = &c->site.param[role];
        if (!p->count)
            continue;
        b->params[role] = must(malloc((size_t)p->count * sizeof(tn_tensor)));
        memcpy(b->params[role], p->tensors, (size_t)p->count * sizeof(tn_tensor));
        for (int64_t i = 0; i < p->count; i++)
            at = take(&b->params[role][i], at);
        b->site.param[role].tensors = b->params[role];
    }
    b->call.site = &b->site;
}

static tn_status copy_plan(bench_copy *b, const check_case *c, const tn_impl *impl, tn_error *err)
{
    const tn_tensor *x = &c->call.in[0];
    int64_t tokens = c->max_tokens ? c->max_tokens : tn_tensor_count(x) / x->shape[x->ndim - 1];
    b->plan = (tn_plan){.size = sizeof b->plan, .threads = tn_thread_count(), .max_tokens = tokens};
    tn_status status = impl->plan ? impl->plan(&b->site, &b->plan, err) : TN_OK;
    b->call.plan = &b->plan;
    if (b->plan.packed_bytes)
        b->call.packed = b->packed = must(aligned_alloc(64, b->plan.packed_bytes / 64 * 64 + 64));
    if (b->plan.scratch_bytes)
        b->call.scratch = b->scratch = must(aligned_alloc(64, b->plan.scratch_bytes / 64 * 64 + 64));
    if (status == TN_OK && b->packed)
        status = impl->pack(&b->site, &b->plan, b->packed, err);
    return status;
}

static void set_free(bench_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        bench_copy *b = &set->copies[i];
        for (int role = 0; role < TN_ROLE_MAX; role++)
            free(b->params[role]);
        free(b->memory);
        free(b->packed);
        free(b->scratch);
    }
    free(set->copies);
    host_eager_close(&set->eager);
}

static tn_status set_init(bench_set *set, const check_case *c, const tn_impl *impl, bool cold, tn_error *err)
{
    size_t bytes = copy_bytes(c), count = cold ? COLD_BYTES / (bytes + 1) + 2 : 1;
    if (count > MAX_COPIES)
        count = MAX_COPIES;
    *set = (bench_set){.impl = impl, .count = count, .copies = must(calloc(count, sizeof(bench_copy)))};
    tn_status status = TN_OK;
    for (size_t i = 0; i < count; i++) {
        copy_init(&set->copies[i], c, bytes);
        if (impl && status == TN_OK)
            status = copy_plan(&set->copies[i], c, impl, err);
    }
    if (!impl)
        status = host_eager_open(&set->eager, &set->copies[0].call, err);
    return status;
}

static tn_status set_call(bench_set *set, size_t index, tn_error *err)
{
    const tn_call *call = &set->copies[index % set->count].call;
    return set->impl ? set->impl->forward(call, err) : host_eager_forward(&set->eager, call, err);
}

static double batch(bench_set *set, size_t first, size_t calls, tn_error *err)
{
    double begin = now();
    for (size_t i = 0; i < calls; i++)
        set_call(set, first + i, err);
    return now() - begin;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing measure(bench_set *set, tn_error *err)
{
    double seconds[MAX_BATCHES], begin = now();
    size_t calls = 1, at = 0, n = 0;
    while (batch(set, at, calls, err) < 100e-6 && calls < 1 << 20)
        at += calls, calls *= 2;
    while (n < MAX_BATCHES && (n < 9 || now() - begin < 0.3)) {
        seconds[n++] = batch(set, at, calls, err) / (double)calls;
        at += calls;
    }
    qsort(seconds, n, sizeof *seconds, ascending);
    return (timing){seconds[n / 2], seconds[n / 10], seconds[n - 1 - n / 10]};
}

bool bench_wanted(const check_state *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(((check_state *)s)->group, sizeof s->group, format, args);
    va_end(args);
    return !s->filter || strstr(s->group, s->filter);
}

/* Time of one call; 0 when the implementation does not do it. */
static timing bench_one(const check_case *c, const tn_impl *impl, bool cold)
{
    bench_set set;
    tn_error err = TN_ERROR_INIT;
    timing t = {0, 0, 0};
    if (set_init(&set, c, impl, cold, &err) == TN_OK && set_call(&set, 0, &err) == TN_OK)
        t = measure(&set, &err);
    if (err.code)
        printf("  %s: %s\n", impl ? "kernel" : "eager", err.message);
    set_free(&set);
    return t;
}

void bench_run(check_state *s, check_case *c, double bytes, double flops)
{
    char reason[512] = "";
    const tn_impl *impl = host_impl(c->kernel, &c->site, reason, sizeof reason);
    if (!impl)
        printf("%-44s %s\n", s->group, reason);
    host_restrict(s->tier->flags);
    for (int cold = 0; impl && cold < 2; cold++) {
        timing t = bench_one(c, impl, cold), eager = bench_one(c, NULL, cold);
        if (!t.median)
            continue;
        printf("%-44s %-10s %-4s %10.2f us (%.2f .. %.2f)", s->group, s->tier->name, cold ? "cold" : "hot",
               t.median * 1e6, t.low * 1e6, t.high * 1e6);
        if (bytes)
            printf("  %7.1f GB/s", bytes / t.median * 1e-9);
        if (flops)
            printf("  %7.1f GFLOP/s", flops / t.median * 1e-9);
        if (eager.median)
            printf("  %6.2f x eager (%.2f us)", eager.median / t.median, eager.median * 1e6);
        printf("\n");
        fflush(stdout);
    }
    case_free(c);
}
