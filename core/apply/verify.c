/* Every applied kernel at every site that it has, against eager: numbers and time. */
#include "apply/apply.h"
#include "apply/plan.h"
#include "base/clock.h"
#include "base/structs.h"
#include "base/text.h"
#include "check/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 16, TIMES = 5 };

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

/* Times both here, with all threads, and compares once more: dividing the work must not change it. */
static tn_status measure_site(const apply_target *target, const graph_site *site, tn_verify_row *row,
                              compare_figures *figures, tn_error *err)
{
    const device *device = target->device;
    check_reference eager = {0}, kernel = {0};
    check_case size = {.batch = 1, .tokens = TOKENS};
    double ulps = row->tolerance_ulps;
    tn_status status = check_reference_open(&eager, device, &site->site, 0, size, err);
    if (status == TN_OK)
        status = check_reference_open(&kernel, device, &site->site, 0, size, err);
    if (status == TN_OK)
        status = time_call(device, &site->bound, &kernel.call, &row->kernel_seconds, err);
    if (status == TN_OK) {
        compare_call(&eager.call, &kernel.call, ulps, eager.in.skip, figures);
        status = time_call(device, NULL, &eager.call, &row->eager_seconds, err);
    }
    if (status == TN_OK && figures->worst > 1)
        status = tn_fail(err, TN_E_VERIFY, site->site.path,
                         "wrong numbers with %d tokens on %d threads: %.3g times the tolerance of %g ulps (%s)", TOKENS,
                         (int)tn_thread_count(), figures->worst, ulps, figures->detail);
    check_reference_close(&eager);
    check_reference_close(&kernel);
    return status;
}

static tn_verify_row *find_row(tn_verify_row *const *rows, size_t *count, const graph_site *site)
{
    for (size_t i = 0; i < *count; i++)
        if (!strcmp(rows[i]->kernel, site->bound.kernel->kernel.id) && rows[i]->op == site->site.op)
            return rows[i];
    tn_verify_row *row = rows[(*count)++];
    const tn_tolerance *tolerance = &site->bound.impl->tolerance;
    *row = (tn_verify_row){.size = sizeof *row,
                           .kernel = site->bound.kernel->kernel.id,
                           .op = site->site.op,
                           .tolerance_ulps = compare_ulps(tolerance, (tn_dtype)site->site.meaning[TN_AXIS_DTYPE]),
                           .tokens = TOKENS,
                           .passed = true};
    return row;
}

static tn_status verify_site(const apply_target *target, const graph_site *site, tn_verify_row *row)
{
    compare_figures figures = {0};
    tn_error why = TN_ERROR_INIT;
    check_case size = {.batch = 1, .tokens = TOKENS};
    row->sites++;
    check_subject subject = {.device = target->device,
                             .site = &site->site,
                             .impl = site->bound.impl,
                             .bound = &site->bound,
                             .gradients = target->training};
    tn_status status = check_site(&subject, &size, 1, &figures, &why);
    if (status == TN_OK)
        status = measure_site(target, site, row, &figures, &why);
    if (status == TN_E_MEMORY || status == TN_E_INTERNAL)
        return status;
    /* A kernel that crashed has no figures, and nothing is worse. */
    double worst = status == TN_OK || status == TN_E_VERIFY ? figures.worst : INFINITY;
    row->largest_ulps = figures.ulps > row->largest_ulps ? figures.ulps : row->largest_ulps;
    if (worst <= row->largest_error && row->worst_site[0])
        return TN_OK;
    row->largest_error = worst;
    row->passed = status == TN_OK;
    text_cut(row->worst_site, sizeof row->worst_site, "%s", site->site.path);
    text_cut(row->reason, sizeof row->reason, "%s", why.message);
    return TN_OK;
}

tn_status verify_applied(apply_target *target, tn_verify_row ***rows, size_t *count, tn_error *err)
{
    const graph *g = target->graph;
    *rows = NULL;
    *count = 0;
    tn_verify_row **list = structs_list(g->site_count, sizeof **list);
    if (!list)
        return plan_no_memory(err);
    size_t used = 0;
    tn_status status = TN_OK;
    for (size_t i = 0; i < g->site_count && status == TN_OK; i++)
        if (g->sites[i]->bound.impl)
            status = verify_site(target, g->sites[i], find_row(list, &used, g->sites[i]));
    if (status != TN_OK) {
        free(list);
        return tn_fail(err, status, "verify", "a check could not be made; free some memory");
    }
    *rows = list;
    *count = used;
    for (size_t i = 0; i < used; i++)
        if (!list[i]->passed)
            status =
                tn_fail(err, TN_E_VERIFY, list[i]->kernel, "fails at %s: %s", list[i]->worst_site, list[i]->reason);
    return status;
}
