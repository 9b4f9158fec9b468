/* Is a kernel right at a site? Eager computes in this process, the kernel in a child. */
#include "graph/check.h"

#include "graph/fenced.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Multiplications per second that even the plainest kernel under a sanitizer manages on a busy machine. */
static const double SLOWEST = 2e7, LEAST_SECONDS = 5;
/* Largest number of multiplications for the case of many tokens. */
static const double MOST_WORK = 1e9;

enum { MAX_CASES = 4, RUNS_PER_CASE = 2 };

size_t check_first_use_cases(const tn_site *site, check_case cases[3])
{
    cases[0] = (check_case){1, 1};
    cases[1] = (check_case){1, 19};
    cases[2] = (check_case){2, 33};
    return inputs_work(site, 66) <= MOST_WORK ? 3 : 2;
}

tn_status check_perform(const tn_device *device, const graph_binding *bound, const tn_call *call, tn_error *err)
{
    arena a;
    tn_status status = arena_init(&a, device, 0, err);
    if (status != TN_OK)
        return status;
    status = run_bound_call(device, &a, bound, call, err);
    size_t size = a.peak;
    arena_close(&a);
    /* Size 0 would measure again. */
    if (status == TN_OK)
        status = arena_init(&a, device, size > 0 ? size : 64, err);
    if (status != TN_OK)
        return status;
    status = run_bound_call(device, &a, bound, call, err);
    arena_close(&a);
    return status;
}

void check_reference_close(check_reference *r)
{
    inputs_close(&r->in);
    free(r->memory);
    *r = (check_reference){0};
}

static size_t padded_bytes(const tn_tensor *t)
{
    return ((size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype) + 63) / 64 * 64;
}

tn_status check_reference_open(check_reference *r, const tn_device *device, const tn_site *site, check_case size,
                               tn_error *err)
{
    *r = (check_reference){0};
    uint64_t seed = (uint64_t)site->op << 32 ^ (uint64_t)size.batch << 16 ^ (uint64_t)size.tokens;
    tn_status status = inputs_draw(&r->in, site, size.batch, size.tokens, seed, err);
    if (status != TN_OK)
        return status;
    r->call = r->in.call;
    size_t bytes = 0;
    for (int i = 0; i < r->call.out_count; i++)
        bytes += padded_bytes(&r->call.out[i]);
    r->memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!r->memory) {
        check_reference_close(r);
        return plan_no_memory(err);
    }
    bytes = 0;
    for (int i = 0; i < r->call.out_count; i++) {
        r->call.out[i].data = (char *)r->memory + bytes;
        bytes += padded_bytes(&r->call.out[i]);
    }
    status = check_perform(device, NULL, &r->call, err);
    if (status != TN_OK)
        check_reference_close(r);
    return status;
}

/* How many of its first results may replace the inputs of the same number. */
static int works_in_place(const tn_site *site)
{
    return site->op == TN_OP_ROPE ? 2 : site->op == TN_OP_RMS_NORM || site->op == TN_OP_ADD_RMS_NORM ? 1 : 0;
}

/* Each case twice: once at the end of its memory, once at the start with rows apart and in place; a heavy one once. */
static tn_status open_runs(const check_reference *refs, size_t case_count, fenced_run *runs, size_t *count,
                           tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < case_count && status == TN_OK; i++)
        for (int j = 0; j < RUNS_PER_CASE && status == TN_OK; j++) {
            if (j > 0 && inputs_work(refs[i].in.call.site, refs[i].in.tokens) > MOST_WORK / 2)
                continue;
            fenced_run *run = &runs[(*count)++];
            *run = (fenced_run){.in = &refs[i].in,
                                .side = j == 0 ? FENCE_END : FENCE_START,
                                .padded = j > 0,
                                .in_place = j > 0 ? works_in_place(refs[i].in.call.site) : 0};
            status = fenced_open_run(run, err);
        }
    return status;
}

static tn_status compare_runs(const check_reference *refs, size_t case_count, const fenced_run *runs, size_t count,
                              const tn_impl *impl, compare_figures *figures, tn_error *err)
{
    const tn_site *site = refs[0].in.call.site;
    double ulps = compare_ulps(&impl->tolerance, (tn_dtype)site->meaning[TN_AXIS_DTYPE]);
    for (size_t i = 0; i < count; i++) {
        size_t ref = 0;
        while (ref + 1 < case_count && &refs[ref].in != runs[i].in)
            ref++;
        compare_call(&refs[ref].call, &runs[i].call, ulps, refs[ref].in.skip, figures);
        if (figures->worst > 1)
            return tn_fail(err, TN_E_VERIFY, site->path,
                           "wrong numbers with %lld tokens: %.3g times the tolerance of %g ulps (%s)",
                           (long long)refs[ref].in.tokens, figures->worst, ulps, figures->detail);
    }
    return TN_OK;
}

tn_status check_site(const tn_device *device, const tn_site *site, const tn_impl *impl, const graph_binding *bound,
                     const check_case *cases, size_t case_count, compare_figures *figures, tn_error *err)
{
    if (!device->host_memory)
        return tn_fail(err, TN_DECLINED, site->path, "kernels on the memory of device %s cannot be tried in a child",
                       device->name);
    check_reference refs[MAX_CASES] = {0};
    fenced_run runs[MAX_CASES * RUNS_PER_CASE] = {0};
    compare_figures local = {0};
    size_t count = 0;
    double work = 0;
    tn_status status = TN_OK;
    for (size_t i = 0; i < case_count && status == TN_OK; i++) {
        status = check_reference_open(&refs[i], device, site, cases[i], err);
        work += 2 * inputs_work(site, cases[i].batch * cases[i].tokens);
    }
    if (status == TN_OK)
        status = open_runs(refs, case_count, runs, &count, err);
    fenced_trial t = {.site = site,
                      .impl = impl,
                      .bound = bound,
                      .max_tokens = PLAN_MAX_TOKENS,
                      .threads = tn_thread_count(),
                      .seconds = LEAST_SECONDS + work / SLOWEST,
                      .runs = runs,
                      .run_count = count};
    if (status == TN_OK)
        status = fenced_execute(&t, err);
    if (status == TN_OK)
        status = compare_runs(refs, case_count, runs, count, impl, figures ? figures : &local, err);
    for (size_t i = 0; i < count; i++)
        fenced_close_run(&runs[i]);
    for (size_t i = 0; i < case_count; i++)
        check_reference_close(&refs[i]);
    return status;
}
