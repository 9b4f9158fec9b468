/* One implementation at one site against eager: numbers, in a child process first and then here, and time. */
#include "base/text.h"
#include "check/timing.h"
#include "plugin/kernels_config_read.h"
#include "select/alike.h"
#include "select/check_plan.h"
#include "verify/verify.h"

#include <math.h>

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
    static const timing_rules rules = {.least_rounds = 5};
    timing_call calls[2] = {{device, bound, &kernel.call}, {device, NULL, &eager.call}};
    timing_side sides[2] = {{.call = timing_bound, .ctx = &calls[0]}, {.call = timing_bound, .ctx = &calls[1]}};
    if (status == TN_OK)
        status = timing_take_turns(device, sides, 2, &rules, NULL, err);
    if (status == TN_OK) {
        compare_call(&eager.call, &kernel.call, ulps, eager.in.skip, figures);
        row->kernel_seconds += sides[0].seconds;
        row->eager_seconds += sides[1].seconds;
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
    graph_binding own = s->bound ? *s->bound : (graph_binding){0};
    own.shadow = NULL; /* it is the kernel that is timed                                             */
    tn_status status = s->bound ? TN_OK : timing_bind(device, &s->site->site, s->impl, &own, why);
    if (status == TN_OK)
        status = measure(s, &own, &record->row, figures, why);
    if (status == TN_OK && record->coverage.threads < tn_thread_count())
        record->coverage.threads = tn_thread_count();
    if (own.packed && !s->bound) {
        device_sync(device, NULL);
        device_free(device, (void *)(uintptr_t)own.packed, own.plan.packed_bytes);
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

tn_status verify_site(const verify_subject *s, verify_record *record, tn_status *how, tn_error *why)
{
    compare_figures figures = {0};
    compare_gradient each[COMPARE_GRADIENTS] = {0};
    device cpu;
    check_case cases[CHECK_FIRST_USE] = {{.batch = 1, .tokens = VERIFY_TOKENS}};
    size_t count = s->whole ? check_first_use_cases(&s->site->site, cases) : 1;
    check_subject subject = {.device = s->target->device,
                             .site = &s->site->site,
                             .impl = s->impl,
                             .bound = s->bound,
                             .gradients = s->target->training,
                             .other = plan_other_weights(s->target, s->site->index),
                             .unlike = s->unlike,
                             .coverage = &record->coverage,
                             .gradient_figures = each,
                             .cpu = plan_open_cpu(s->target, &cpu)};
    count_site(record, s->site);
    tn_status status = check_site(&subject, cases, count, &figures, why);
    if (subject.cpu)
        device_close(&cpu);
    add_gradients(record, each, s->site->site.path);
    /* What went wrong in the child does not run here; and elsewhere calls cannot be timed on memory of the host. */
    if (status == TN_OK && s->target->device->ops->host_memory)
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
