/* Timing an implementation at a few real shapes, in turns with eager, in a child process. */
#include "base/text.h"
#include "check/check.h"
#include "check/draw_site.h"
#include "check/timing.h"
#include "device/guard.h"
#include "eager/eager.h"
#include "op/match.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "verify/verify_plugin.h"
#include "verify/verify_plugin_sites.h"

#include <sys/mman.h>

/* Batches last BATCH_SECONDS at least, so that the clock does not matter, and a measurement about TIME_SECONDS. */
enum { TOKENS = 3, SHAPES = 2, LEAST_ROUNDS = 5 };
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
            site.dim[dim] = verify_plugin_sites_fit(impl, (tn_dim)dim, size);
    }
    if (impl->op == TN_OP_GATED_DELTA_RULE ||
        impl->op == TN_OP_SELECTIVE_SCAN) { /* value heads are the more, and of the same size      */
        int64_t more = site.dim[TN_DIM_Q_HEADS];
        site.dim[TN_DIM_Q_HEADS] = site.dim[TN_DIM_KV_HEADS];
        site.dim[TN_DIM_KV_HEADS] = more;
        site.dim[TN_DIM_HEAD_V] = verify_plugin_sites_fit(impl, TN_DIM_HEAD_V, site.dim[TN_DIM_HEAD]);
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

static int bench_child(void *ctx)
{
    static const timing_rules rules = {BATCH_SECONDS, TIME_SECONDS, LEAST_ROUNDS};
    const bench_job *job = ctx;
    graph_binding bound = {0};
    timing_call calls[2] = {{&cpu_device, NULL, &job->reference->call}, {&cpu_device, &bound, &job->reference->call}};
    timing_side sides[2] = {{.call = timing_bound, .ctx = &calls[0]}, {.call = timing_bound, .ctx = &calls[1]}};
    threads_limit(0);
    threads_set(job->threads);
    threads_serial(false);
    tn_status status = timing_bind(&cpu_device, job->reference->call.site, job->impl, &bound, job->why);
    if (status == TN_OK)
        status = timing_take_turns(&cpu_device, sides, 2, &rules, NULL, job->why);
    for (int i = 0; i < 2; i++)
        job->seconds[i] = sides[i].seconds;
    return status == TN_OK ? 0 : 1;
}

/* ---- ceilings --------------------------------------------------------------------------------------------------- */

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

/* ---- in the parent ---------------------------------------------------------------------------------------------- */

typedef struct shared {
    double seconds[2];
    tn_error why;
} shared;

/* Times one call and hands over its row. */
static tn_status time_call(verify_plugin *k, tn_check_row *row, const tn_impl *impl, const tn_site *site,
                           int64_t tokens, shared *results, tn_error *err)
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
    if (status != TN_OK && status != TN_E_KERNEL) {
        check_reference_close(&r);
        return tn_fail(err, status, row->kernel, "timing it %s", ending);
    }
    row->result = status == TN_OK ? TN_CHECK_PASSED : TN_CHECK_DECLINED;
    row->reason = status == TN_OK ? "" : reason;
    row->min_tokens = row->max_tokens = tokens;
    row->eager_seconds = results->seconds[0];
    row->kernel_seconds = results->seconds[1];
    row->operations = op_operations(&r.call);
    row->bytes = op_bytes(&r.call);
    row->ceiling = k->machine ? share_of(k->machine, row) : 0;
    check_reference_close(&r);
    return verify_plugin_report(k, row);
}

static tn_status time_shape(verify_plugin *k, tn_check_row *row, const tn_impl *impl, const tn_site *like,
                            shared *results, tn_error *err)
{
    char shape[256];
    draw_site d;
    tn_status status = draw_site_open(&d, like, k->options.seed, err);
    if (status != TN_OK)
        return status;
    verify_plugin_sites_text(&d.site, shape, sizeof shape);
    row->shape = shape;
    if (match_site(&d.site, impl, NULL, 0) == TN_OK)
        for (int i = 0; i < TOKENS && status == TN_OK; i++)
            status = time_call(k, row, impl, &d.site, all_tokens[i], results, err);
    draw_site_close(&d);
    row->shape = "";
    return status;
}

tn_status verify_plugin_bench_impl(verify_plugin *k, const registry_kernel *kernel, int32_t index, tn_dtype dtype,
                                   tn_error *err)
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
