/* Is a kernel right at a site? Eager computes in this process, the kernel in a child. */
#include "check/check.h"

#include "base/tensor.h"
#include "base/text.h"
#include "check/fenced.h"
#include "op/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Most operations of the case of many tokens. */
static const double MOST_WORK = 2e9;

static const size_t MOST_PARAM_BYTES = (size_t)256 << 20;

enum { MAX_CASES = 4, RUNS_PER_CASE = 2 };

tn_status check_no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory while checking a kernel; free some memory");
}

size_t check_first_use_cases(const tn_site *site, check_case cases[3])
{
    cases[0] = (check_case){.batch = 1, .tokens = 1};
    cases[1] = (check_case){.batch = 1, .tokens = 19};
    cases[2] = (check_case){.batch = 2, .tokens = 33};
    return inputs_operations(site, 66) <= MOST_WORK ? 3 : 2;
}

void check_reference_close(check_reference *r)
{
    inputs_close(&r->in);
    free(r->memory);
    *r = (check_reference){0};
}

/* The optional outputs that the implementation gives. */
static void want_optional(tn_call *call, uint32_t optional)
{
    if (optional & op_optional_outputs(call->op))
        call->out_count = op_out_count(op_find(call->op), call->site, true);
}

tn_status check_reference_open(check_reference *r, const device *device, const tn_site *site, uint32_t optional,
                               check_case size, tn_error *err)
{
    *r = (check_reference){0};
    uint64_t seed = (uint64_t)site->op << 32 ^ (uint64_t)size.batch << 16 ^ (uint64_t)size.tokens ^ size.seed;
    tn_status status = inputs_draw_as(&r->in, site, size.batch, size.tokens, size.profile, seed, err);
    if (status != TN_OK)
        return status;
    want_optional(&r->in.call, optional);
    r->call = r->in.call;
    size_t bytes = 0;
    for (int i = 0; i < r->call.out_count; i++)
        bytes += tensor_padded_bytes(&r->call.out[i]);
    r->memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!r->memory) {
        check_reference_close(r);
        return check_no_memory(err);
    }
    bytes = 0;
    for (int i = 0; i < r->call.out_count; i++) {
        r->call.out[i].data = (char *)r->memory + bytes;
        bytes += tensor_padded_bytes(&r->call.out[i]);
    }
    status = run_alone(device, NULL, NULL, &r->call, err);
    if (status != TN_OK)
        check_reference_close(r);
    return status;
}

/* Each case twice: once at the end of its memory, once at the start with rows apart and in place; a heavy one once. */
static tn_status open_runs(const check_reference *refs, size_t case_count, fenced_run *runs, size_t *count,
                           tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < case_count && status == TN_OK; i++)
        for (int j = 0; j < RUNS_PER_CASE && status == TN_OK; j++) {
            if (j > 0 && inputs_operations(refs[i].in.call.site, refs[i].in.tokens) > MOST_WORK / 2)
                continue;
            fenced_run *run = &runs[(*count)++];
            *run = (fenced_run){.in = &refs[i].in,
                                .side = j == 0 ? FENCE_END : FENCE_START,
                                .padded = j > 0,
                                .in_place = j > 0 ? op_find(refs[i].in.call.op)->in_place : 0};
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

/* Gradients of each case, after its forward was found right. */
static tn_status check_all_gradients(const check_subject *s, const check_reference *refs, size_t case_count,
                                     const fenced_run *runs, size_t count, compare_figures *figures, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < case_count && status == TN_OK; i++) {
        size_t run = 0;
        while (run + 1 < count && runs[run].in != &refs[i].in)
            run++;
        /* The last case does for parameters as large as this: a check holds three copies of their gradients. */
        if (i + 1 < case_count && gradients_param_bytes(s->site) > MOST_PARAM_BYTES)
            continue;
        status = check_gradients(s, &refs[i].in, &refs[i].call, &runs[run].call, figures, err);
    }
    return status;
}

void check_coverage_text(const check_coverage *c, char *text, size_t size)
{
    if (!c->any) {
        text_cut(text, size, "nothing");
        return;
    }
    size_t used =
        text_cut(text, size, "%lld to %lld tokens, %s%d thread%s", (long long)c->least_tokens,
                 (long long)c->most_tokens, c->threads > 1 ? "1 and " : "", (int)c->threads, c->threads > 1 ? "s" : "");
    if (c->most_cached > 0)
        used += text_cut(text + used, size - used, ", up to %lld cached positions", (long long)c->most_cached);
    if (c->other_weights)
        used += text_cut(text + used, size - used, ", after a call with other weights");
    if (c->gradients)
        text_cut(text + used, size - used, ", gradients");
}

static void add_coverage(const check_subject *s, const check_case *cases, size_t case_count)
{
    check_coverage *c = s->coverage;
    for (size_t i = 0; c && i < case_count; i++) {
        int64_t tokens = cases[i].batch * cases[i].tokens;
        c->least_tokens = c->any && c->least_tokens < tokens ? c->least_tokens : tokens;
        c->most_tokens = c->most_tokens > tokens ? c->most_tokens : tokens;
        c->threads = c->threads > 1 ? c->threads : 1;
        c->gradients = c->gradients || s->gradients;
        c->any = true;
    }
}

tn_status check_site(const check_subject *s, const check_case *cases, size_t case_count, compare_figures *figures,
                     tn_error *err)
{
    if (!s->device->ops->host_memory)
        return tn_fail(err, TN_DECLINED, s->site->path, "kernels on the memory of device %s cannot be tried in a child",
                       s->device->ops->name);
    check_reference refs[MAX_CASES] = {0};
    fenced_run runs[MAX_CASES * RUNS_PER_CASE] = {0};
    compare_figures local = {0};
    size_t count = 0;
    double work = 0;
    tn_status status = TN_OK;
    for (size_t i = 0; i < case_count && status == TN_OK; i++) {
        status = check_reference_open(&refs[i], s->device, s->site, s->impl->optional_outputs, cases[i], err);
        work += 2 * inputs_operations(s->site, cases[i].batch * cases[i].tokens);
    }
    if (status == TN_OK)
        status = open_runs(refs, case_count, runs, &count, err);
    fenced_trial t = {.device = s->device,
                      .site = s->site,
                      .impl = s->impl,
                      .bound = s->bound,
                      .max_tokens = GRAPH_MAX_TOKENS,
                      .threads = tn_thread_count(),
                      .seconds = CHECK_LEAST_SECONDS + work / CHECK_SLOWEST,
                      .runs = runs,
                      .run_count = count};
    figures = figures ? figures : &local;
    add_coverage(s, cases, case_count);
    if (status == TN_OK)
        status = fenced_execute(&t, err);
    if (status == TN_OK)
        status = compare_runs(refs, case_count, runs, count, s->impl, figures, err);
    if (status == TN_OK && s->gradients)
        status = check_all_gradients(s, refs, case_count, runs, count, figures, err);
    for (size_t i = 0; i < count; i++)
        fenced_close_run(&runs[i]);
    for (size_t i = 0; i < case_count; i++)
        check_reference_close(&refs[i]);
    return status;
}
