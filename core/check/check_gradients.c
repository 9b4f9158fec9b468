/* Are a kernel's gradients right? Eager computes them in this process, the kernel in a child. */
#include "check/check.h"

#include "check/fenced.h"
#include "op/op.h"

/* Backward does about three times the work of forward. */
enum { MAX_RUNS = 2, BACKWARD_WORK = 3 };

/* Eager's gradients of the same inputs. */
static tn_status perform_eager(const check_subject *s, const inputs *in, gradients *g, tn_error *err)
{
    tn_status status = gradients_allocate(g, err);
    tn_call call = in->call;
    call.out_count = 0;
    call.grads = &g->grads;
    return status == TN_OK ? run_alone(s->device, NULL, NULL, &call, err) : status;
}

/* Twice, as forward: at the end of its memory, and at the start with rows apart and in place; once where parameters are
 * large. The choice of experts was found right; its order is the kernel's. */
static tn_status open_runs(const check_subject *s, const inputs *in, const gradients *wanted, fenced_run *runs,
                           size_t *count, tn_error *err)
{
    tn_status status = TN_OK;
    size_t most = gradients_param_bytes(s->site) > ((size_t)64 << 20) ? 1 : MAX_RUNS;
    while (*count < most && status == TN_OK) {
        fenced_run *run = &runs[*count];
        *run = (fenced_run){.in = in,
                            .wanted = wanted,
                            .side = *count == 0 ? FENCE_END : FENCE_START,
                            .padded = *count > 0,
                            .in_place = *count > 0 ? op_find(s->site->op)->in_place : 0};
        *count += 1;
        status = fenced_open_run(run, err);
    }
    return status;
}

static tn_status compare_runs(const check_subject *s, const gradients *eager, const fenced_run *runs, size_t count,
                              compare_figures *figures, tn_error *err)
{
    double ulps = compare_ulps(compare_gradient_tolerance(s->impl), (tn_dtype)s->site->meaning[TN_AXIS_DTYPE]);
    compare_figures own = {0};
    for (size_t i = 0; i < count; i++) {
        compare_gradients(s->site, &eager->grads, &runs[i].grads, ulps, runs[i].in->skip, &own, s->gradient_figures);
        /* Figures in ulps are forward's, whose tolerance is another. */
        if (own.worst > figures->worst)
            figures->worst = own.worst;
        if (own.worst > 1)
            return tn_fail(err, TN_E_VERIFY, s->site->path,
                           "wrong gradients with %lld tokens: %.3g times the tolerance of %g ulps (%s)",
                           (long long)runs[i].in->tokens, own.worst, ulps, own.detail);
    }
    return TN_OK;
}

tn_status check_gradients(const check_subject *s, const inputs *in, const tn_call *eager, const tn_call *forward,
                          compare_figures *figures, tn_error *err)
{
    gradients want = {0}, wanted = {0};
    fenced_run runs[MAX_RUNS] = {0};
    size_t count = 0;
    tn_status status = gradients_draw(&want, in, &eager->out[1], err);
    if (status == TN_OK)
        status = perform_eager(s, in, &want, err);
    if (status == TN_OK)
        status = gradients_draw(&wanted, in, &forward->out[1], err);
    if (status == TN_OK)
        status = open_runs(s, in, &wanted, runs, &count, err);
    double work = BACKWARD_WORK * MAX_RUNS * inputs_operations(s->site, in->tokens);
    fenced_trial t = {.device = s->device,
                      .site = s->site,
                      .impl = s->impl,
                      .bound = s->bound,
                      .max_tokens = GRAPH_MAX_TOKENS,
                      .threads = tn_thread_count(),
                      .seconds = CHECK_LEAST_SECONDS + work / CHECK_SLOWEST,
                      .runs = runs,
                      .run_count = count};
    if (status == TN_OK)
        status = fenced_execute(&t, err);
    if (status == TN_OK)
        status = compare_runs(s, &want, runs, count, figures, err);
    for (size_t i = 0; i < count; i++)
        fenced_close_run(&runs[i]);
    gradients_close(&want);
    gradients_close(&wanted);
    return status;
}
