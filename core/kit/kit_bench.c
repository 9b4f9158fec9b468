/* Timing an implementation at a few real shapes, in turns with eager, in a child process. */
#include "base/clock.h"
#include "base/text.h"
#include "check/check.h"
#include "check/draw_site.h"
#include "device/guard.h"
#include "eager/eager.h"
#include "kit/kit.h"
#include "kit/kit_sites.h"
#include "op/op.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Batches last BATCH_SECONDS at least, so that the clock does not matter, and a measurement about TIME_SECONDS. */
enum { TOKENS = 3, SHAPES = 2, MOST_ROUNDS = 51, LEAST_ROUNDS = 5 };
static const int64_t all_tokens[TOKENS] = {1, 16, 512};
static const double BATCH_SECONDS = 2e-4, TIME_SECONDS = 0.4, CHILD_SECONDS = 120;

/* ---- shapes ----------------------------------------------------------------------------------------------------- */

/* Of a small model and of a larger one; experts are smaller than other MLPs. */
static const int64_t sizes[SHAPES][TN_DIM_MAX] = {{[TN_DIM_WIDTH] = 1024,
                                                   [TN_DIM_HIDDEN] = 1024,
                                                   [TN_DIM_INTER] = 3072,
                                                   [TN_DIM_OUT] = 1024,
                                                   [TN_DIM_HEAD] = 128,
                                                   [TN_DIM_Q_HEADS] = 16,
                                                   [TN_DIM_KV_HEADS] = 8,
                                                   [TN_DIM_EXPERTS] = 16,
                                                   [TN_DIM_TOP_K] = 4},
                                                  {[TN_DIM_WIDTH] = 4096,
                                                   [TN_DIM_HIDDEN] = 2048,
                                                   [TN_DIM_INTER] = 6144,
                                                   [TN_DIM_OUT] = 2048,
                                                   [TN_DIM_HEAD] = 128,
                                                   [TN_DIM_Q_HEADS] = 32,
                                                   [TN_DIM_KV_HEADS] = 8,
                                                   [TN_DIM_EXPERTS] = 32,
                                                   [TN_DIM_TOP_K] = 8}};
enum { EXPERT_SHARE = 8, GROUP_SHARE = 4 };

/* The first values that the implementation takes, without features. */
static tn_site real_site(const tn_impl *impl, tn_dtype dtype, int shape)
{
    tn_site site = draw_site_plain(impl->op);
    const op_row *row = op_find(impl->op);
    bool grouped = site.dim[TN_DIM_EXPERTS] > 0;
    site.meaning[TN_AXIS_DTYPE] = (int32_t)dtype;
    for (int axis = TN_AXIS_NORM; axis < TN_AXIS_MAX; axis++)
        for (int32_t v = 63; (row->needs >> axis & 1) && v > 0; v--)
            if ((impl->match.takes[axis] & TN_TAKES(v)) && draw_site_has_value(impl->op, (tn_axis)axis, v))
                site.meaning[axis] = v;
    for (int dim = 0; dim < TN_DIM_MAX; dim++) {
        int64_t size = sizes[shape][dim];
        if (grouped && dim == TN_DIM_INTER)
            size /= EXPERT_SHARE;
        if (grouped && dim == TN_DIM_OUT)
            size /= GROUP_SHARE;
        if (site.dim[dim] > 0 && size > 0)
            site.dim[dim] = kit_sites_fit(impl, (tn_dim)dim, size);
    }
    return site;
}

/* ---- in the child ------------------------------------------------------------------------------------------------ */

typedef struct bench_job {
    const tn_impl *impl;
    const check_reference *reference;
    int32_t threads;
    double *seconds; /* of eager and of the kernel; shared                                         */
    tn_error *why;   /* shared                                                                     */
} bench_job;

/* One of the two, with memory of its own. */
typedef struct contender {
    const graph_binding *bound;
    const tn_call *call;
    arena memory;
    int64_t calls; /* of a batch                                                                   */
    double times[MOST_ROUNDS];
} contender;

static tn_status run_batch(contender *c, int64_t calls, double *seconds, tn_error *err)
{
    tn_status status = TN_OK;
    double begin = clock_seconds();
    for (int64_t i = 0; i < calls && status == TN_OK; i++)
        status = run_bound_call(&cpu_device, &c->memory, c->bound, c->call, err);
    *seconds = (clock_seconds() - begin) / (double)calls;
    return status;
}

static tn_status open_contender(contender *c, const graph_binding *bound, const tn_call *call, tn_error *err)
{
    double seconds = 0;
    c->bound = bound;
    c->call = call;
    tn_status status = arena_init(&c->memory, &cpu_device, 0, err);
    if (status == TN_OK)
        status = run_bound_call(&cpu_device, &c->memory, bound, call, err);
    size_t size = c->memory.peak > 0 ? c->memory.peak : 64;
    if (status == TN_OK)
        status = arena_init(&c->memory, &cpu_device, size, err);
    for (int i = 0; i < 2 && status == TN_OK; i++)
        status = run_batch(c, 1, &seconds, err);
    c->calls = seconds > 0 && seconds < BATCH_SECONDS ? (int64_t)(BATCH_SECONDS / seconds) + 1 : 1;
    return status;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tn_status take_turns(contender both[2], double seconds[2], tn_error *err)
{
    tn_status status = TN_OK;
    double begin = clock_seconds();
    size_t rounds = 0;
    while (rounds < MOST_ROUNDS && (rounds < LEAST_ROUNDS || clock_seconds() - begin < TIME_SECONDS)) {
        for (int i = 0; i < 2 && status == TN_OK; i++)
            status = run_batch(&both[i], both[i].calls, &both[i].times[rounds], err);
        if (status != TN_OK)
            return status;
        rounds++;
    }
    for (int i = 0; i < 2; i++) {
        qsort(both[i].times, rounds, sizeof both[i].times[0], ascending);
        seconds[i] = both[i].times[rounds / 2];
    }
    return TN_OK;
}

static tn_status bind(const bench_job *job, graph_binding *bound, tn_error *err)
{
    const tn_site *site = job->reference->call.site;
    void *packed = NULL;
    tn_status status = TN_OK;
    *bound = (graph_binding){
        .impl = job->impl,
        .plan = {.size = sizeof bound->plan, .threads = job->threads, .max_tokens = job->reference->in.tokens}};
    if (job->impl->plan)
        status = job->impl->plan(site, &bound->plan, err);
    if (status == TN_OK && bound->plan.packed_bytes > 0) {
        status = device_alloc(&cpu_device, bound->plan.packed_bytes, &packed, err);
        if (status == TN_OK && job->impl->pack)
            status = job->impl->pack(site, &bound->plan, packed, cpu_device.queue, err);
    }
    bound->packed = packed; /* goes with the child                                                  */
    return status;
}

static int bench_child(void *ctx)
{
    const bench_job *job = ctx;
    contender *both = calloc(2, sizeof *both);
    graph_binding bound;
    threads_limit(0);
    threads_set(job->threads);
    threads_serial(false);
    tn_status status = both ? bind(job, &bound, job->why) : check_no_memory(job->why);
    if (status == TN_OK)
        status = open_contender(&both[0], NULL, &job->reference->call, job->why);
    if (status == TN_OK)
        status = open_contender(&both[1], &bound, &job->reference->call, job->why);
    if (status == TN_OK)
        status = take_turns(both, job->seconds, job->why);
    return status == TN_OK ? 0 : 1;
}

/* ---- ceilings ------------------------------------------------------------------------------------------------------
 */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The least time on this machine, over the time that was taken. f16 is summed in f32. What the caches hold is not read
 * from memory, and how fast it comes from there nobody has measured: 0. */
static double share_of(const tn_machine *m, const tn_check_row *row)
{
    int all = row->max_threads > 1;
    double peak = m->f32[all], bandwidth = larger(m->read[all], m->copy[all]);
    if (row->dtype == TN_BF16)
        peak = larger(peak, larger(m->bf16[all], m->amx_bf16[all]));
    if (peak <= 0 || bandwidth <= 0 || row->kernel_seconds <= 0)
        return 0;
    double computing = row->operations / peak, moving = row->bytes / bandwidth;
    if (moving > computing && row->bytes < (double)m->cache_bytes)
        return 0;
    return larger(computing, moving) / row->kernel_seconds;
}

/* ---- in the parent
 * ---------------------------------------------------------------------------------------------------- */

typedef struct shared {
    double seconds[2];
    tn_error why;
} shared;

/* Times one call and hands over its row. */
static tn_status time_call(kit *k, tn_check_row *row, const tn_impl *impl, const tn_site *site, int64_t tokens,
                           shared *results, tn_error *err)
{
    char ending[256], reason[512];
    check_reference r;
    check_case size = {.batch = 1, .tokens = tokens};
    tn_status status = check_reference_open(&r, &cpu_device, site, 0, size, err);
    if (status != TN_OK)
        return status;
    bench_job job = {impl, &r, row->max_threads, results->seconds, &results->why};
    *results = (shared){.why = TN_ERROR_INIT};
    status = guard_run(bench_child, &job, CHILD_SECONDS, ending, sizeof ending);
    text_cut(reason, sizeof reason, "%s", results->why.message[0] ? results->why.message : ending);
    row->result = status == TN_OK ? TN_CHECK_PASSED : TN_CHECK_DECLINED;
    row->reason = status == TN_OK ? "" : reason;
    row->min_tokens = row->max_tokens = tokens;
    row->eager_seconds = results->seconds[0];
    row->kernel_seconds = results->seconds[1];
    row->operations = op_operations(&r.call);
    row->bytes = op_bytes(&r.call);
    row->ceiling = k->machine ? share_of(k->machine, row) : 0;
    check_reference_close(&r);
    return kit_report(k, row);
}

static tn_status time_shape(kit *k, tn_check_row *row, const tn_impl *impl, const tn_site *like, shared *results,
                            tn_error *err)
{
    char shape[256];
    draw_site d;
    tn_status status = draw_site_open(&d, like, k->options.seed, err);
    if (status != TN_OK)
        return status;
    kit_sites_text(&d.site, shape, sizeof shape);
    row->shape = shape;
    if (select_match(&d.site, impl, NULL, 0) == TN_OK)
        for (int i = 0; i < TOKENS && status == TN_OK; i++)
            status = time_call(k, row, impl, &d.site, all_tokens[i], results, err);
    draw_site_close(&d);
    row->shape = "";
    return status;
}

tn_status kit_bench_impl(kit *k, const registry_kernel *kernel, int32_t index, tn_dtype dtype, tn_error *err)
{
    const tn_impl *impl = &kernel->kernel.impls[index];
    shared *results = mmap(NULL, sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tn_status status = TN_OK;
    if (results == MAP_FAILED)
        return check_no_memory(err);
    tn_check_row row = {.size = sizeof row,
                        .kind = TN_CHECK_TIME,
                        .kernel = kernel->kernel.id,
                        .op = impl->op,
                        .impl = index,
                        .dtype = dtype,
                        .shape = "",
                        .worst_shape = "",
                        .reason = "",
                        .max_threads = k->options.threads > 0 ? k->options.threads : tn_thread_count()};
    row.min_threads = row.max_threads;
    for (int i = 0; i < SHAPES && status == TN_OK; i++) {
        tn_site like = real_site(impl, dtype, i);
        status = time_shape(k, &row, impl, &like, results, err);
    }
    munmap(results, sizeof *results);
    return status;
}
