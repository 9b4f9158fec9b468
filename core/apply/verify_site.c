/* One implementation at one site against eager: numbers, in a child process first and then here, and time. */
#include "apply/verify.h"

#include "base/clock.h"
#include "base/text.h"
#include "run/guest.h"

#include <math.h>
#include <stdlib.h>

enum { TIMES = 5 };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of a few calls after one that warms up. */
static tn_status time_call(const device *device, const graph_binding *bound, const tn_call *call, double *seconds,
                           tn_error *err)
{
    double times[TIMES];
    arena a;
    tn_status status = arena_init(&a, device, 0, err);
    if (status != TN_OK)
        return status;
    status = run_bound_call(device, &a, bound, call, err);
    size_t size = a.peak;
    arena_close(&a);
    if (status != TN_OK || (status = arena_init(&a, device, size > 0 ? size : 64, err)) != TN_OK)
        return status;
    for (int i = -1; i < TIMES && status == TN_OK; i++) {
        double begin = clock_seconds();
        status = run_bound_call(device, &a, bound, call, err);
        if (status == TN_OK)
            status = device_sync(device, err);
        if (i >= 0)
            times[i] = clock_seconds() - begin;
    }
    arena_close(&a);
    if (status != TN_OK)
        return status;
    qsort(times, TIMES, sizeof times[0], ascending);
    *seconds += times[TIMES / 2];
    return TN_OK;
}

/* Plan and packed weights of an implementation that has not got the site: as applying makes them. */
static tn_status bind_for_now(const device *device, const tn_site *site, const tn_impl *impl, graph_binding *bound,
                              void **packed, tn_error *err)
{
    *bound = (graph_binding){
        .impl = impl,
        .plan = {.size = sizeof bound->plan, .threads = tn_thread_count(), .max_tokens = GRAPH_MAX_TOKENS}};
    tn_status status = impl->plan ? guest_plan(bound, site, &bound->plan, err) : TN_OK;
    if (status != TN_OK || bound->plan.packed_bytes == 0)
        return status;
    status = device_alloc(device, bound->plan.packed_bytes, packed, err);
    bound->packed = *packed;
    return status == TN_OK && impl->pack ? guest_pack(bound, site, *packed, device->queue, err) : status;
}

/* Times both here, with all threads, and compares once more: dividing the work must not change it. */
static tn_status measure(const verify_subject *s, const graph_binding *bound, tn_verify_row *row,
                         compare_figures *figures, tn_error *err)
{
    const device *device = s->target->device;
    const tn_site *site = &s->site->site;
    check_reference eager = {0}, kernel = {0};
    check_case size = {.batch = 1, .tokens = VERIFY_TOKENS};
    double ulps = row->tolerance_ulps;
    tn_status status = check_reference_open(&eager, device, site, 0, size, err);
    if (status == TN_OK)
        status = check_reference_open(&kernel, device, site, 0, size, err);
    if (status == TN_OK)
        status = time_call(device, bound, &kernel.call, &row->kernel_seconds, err);
    if (status == TN_OK) {
        compare_call(&eager.call, &kernel.call, ulps, eager.in.skip, figures);
        status = time_call(device, NULL, &eager.call, &row->eager_seconds, err);
    }
    if (status == TN_OK && figures->worst > 1)
        status = tn_fail(err, TN_E_VERIFY, site->path,
                         "wrong numbers with %d tokens on %d threads: %.3g times the tolerance of %g ulps (%s)",
                         VERIFY_TOKENS, (int)tn_thread_count(), figures->worst, ulps, figures->detail);
    check_reference_close(&eager);
    check_reference_close(&kernel);
    return status;
}

static tn_status measure_here(const verify_subject *s, verify_record *record, compare_figures *figures, tn_error *why)
{
    const device *device = s->target->device;
    graph_binding own = {0};
    void *packed = NULL;
    tn_status status = s->bound ? TN_OK : bind_for_now(device, &s->site->site, s->impl, &own, &packed, why);
    size_t bytes = own.plan.packed_bytes;
    if (status == TN_OK)
        status = measure(s, s->bound ? s->bound : &own, &record->row, figures, why);
    if (status == TN_OK && record->coverage.threads < tn_thread_count())
        record->coverage.threads = tn_thread_count();
    if (packed) {
        device_sync(device, NULL);
        device_free(device, packed, bytes);
    }
    return status;
}

static void add_gradients(verify_record *record, const compare_gradient *each, const char *path)
{
    for (size_t i = 0; i < COMPARE_GRADIENTS; i++) {
        verify_gradient *g = &record->gradients[i];
        double ulps = fmax(each[i].figures.ulps, g->figures.figures.ulps);
        if (!each[i].compared)
            continue;
        if (!g->figures.compared || each[i].figures.worst > g->figures.figures.worst)
            *g = (verify_gradient){each[i], path};
        g->figures.figures.ulps = ulps;
    }
}

/* Keeps the worst of all sites; a failure that has no figures is worse than all that have. */
static void add_result(tn_verify_row *row, const char *path, bool passed, double worst, const char *reason)
{
    bool first = !row->worst_site[0], worse = worst > row->largest_error;
    if (!first && (passed != row->passed ? passed : !worse))
        return;
    row->largest_error = worst;
    row->passed = row->passed && passed;
    text_cut(row->worst_site, sizeof row->worst_site, "%s", path);
    text_cut(row->reason, sizeof row->reason, "%s", reason);
}

static void count_site(verify_record *record, const graph_site *site)
{
    record->row.sites += record->last != site;
    record->last = site;
}

void verify_site_refused(verify_record *record, const graph_site *site, const char *reason)
{
    count_site(record, site);
    add_result(&record->row, site->site.path, false, INFINITY, reason);
}

/* A site of the same shape with other weights, or NULL. */
static const tn_site *find_other(const apply_target *target, const graph_site *site)
{
    const graph *g = target->graph;
    for (size_t i = 0; i < g->site_count; i++)
        if (g->sites[i] != site && plan_same_shape(&g->sites[i]->site, &site->site) &&
            !plan_same_weights(&g->sites[i]->site, &site->site, target->device->ops->host_memory))
            return &g->sites[i]->site;
    return NULL;
}

tn_status verify_site(const verify_subject *s, verify_record *record, tn_status *how, tn_error *why)
{
    compare_figures figures = {0};
    compare_gradient each[COMPARE_GRADIENTS] = {0};
    check_case cases[CHECK_FIRST_USE] = {{.batch = 1, .tokens = VERIFY_TOKENS}};
    size_t count = s->whole ? check_first_use_cases(&s->site->site, cases) : 1;
    check_subject subject = {.device = s->target->device,
                             .site = &s->site->site,
                             .impl = s->impl,
                             .bound = s->bound,
                             .gradients = s->target->training,
                             .other = find_other(s->target, s->site),
                             .unlike = s->unlike,
                             .coverage = &record->coverage,
                             .gradient_figures = each};
    count_site(record, s->site);
    tn_status status = check_site(&subject, cases, count, &figures, why);
    add_gradients(record, each, s->site->site.path);
    /* What went wrong in the child does not run here. */
    if (status == TN_OK)
        status = measure_here(s, record, &figures, why);
    *how = status;
    if (status == TN_E_MEMORY || status == TN_E_INTERNAL)
        return status;
    /* A kernel that crashed has no figures, and nothing is worse. */
    double worst = status == TN_OK || status == TN_E_VERIFY ? figures.worst : INFINITY;
    record->row.largest_ulps = fmax(figures.ulps, record->row.largest_ulps);
    add_result(&record->row, s->site->site.path, status == TN_OK, worst, why->message);
    return TN_OK;
}
