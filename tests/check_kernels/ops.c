/* Golden operator files: what transformers computes, with what it should have. */
#include "check_kernels.h"
#include "host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The rms error of a kernel over that of transformers' eager mode, at most. */
#define GOLDEN_NARROW 1.0

bool golden_get(const tn_safetensors *file, int64_t n, const char *name, tn_tensor *t)
{
    char full[96];
    snprintf(full, sizeof full, "%lld.%s", (long long)n, name);
    return tn_safetensors_get(file, full, t);
}

double golden_number(const tn_safetensors *file, int64_t n, const char *name, double absent)
{
    tn_tensor t;
    return golden_get(file, n, name, &t) ? element_get(&t, 0) : absent;
}

void golden_copy(tn_tensor *to, const tn_tensor *from)
{
    for (int64_t i = 0, count = tn_tensor_count(to); i < count; i++)
        element_set(to, element_offset(to, i), element_get(from, element_offset(from, i)));
}

/* Tensors without gaps are compared in the order in which they lie in memory: a case may see a file's tensor with its
 * dimensions in another order. */
static double rms_error(const tn_tensor *got, const tn_tensor *truth, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = element_get(got, i) - element_get(truth, i);
        sum += d * d;
    }
    return count ? sqrt(sum / (double)count) : 0;
}

static void hold_error(check_state *s, check_case *c, const char *what, int32_t index, double error)
{
    if (error > s->group_worst || isnan(error))
        s->group_worst = error;
    if (!(error <= 1))
        check_fail(s, c, "%s %d is %.3f of the bound away", what, index, error);
}

/* f32: element by element; the narrow types: all elements together. */
static void hold(check_state *s, check_case *c, int32_t o, const tn_tensor *truth, const tn_tensor *theirs)
{
    const tn_tensor *out = &c->call.out[o];
    int64_t count = tn_tensor_count(out);
    double error = 0;
    if (count != tn_tensor_count(truth)) {
        check_fail(s, c, "output %d has %lld elements, the golden has %lld", o, (long long)count,
                   (long long)tn_tensor_count(truth));
        return;
    }
    if (out->dtype == TN_F32) {
        for (int64_t i = 0; i < count; i++) {
            double want = element_get(truth, i), e = fabs(element_get(out, i) - want) / (2e-5 + 2e-5 * fabs(want));
            error = e > error || isnan(e) ? e : error;
        }
    } else {
        double ours = rms_error(out, truth, count), mine = rms_error(theirs, truth, count);
        error = ours == 0 ? 0 : ours / (GOLDEN_NARROW * mine);
    }
    hold_error(s, c, "output", o, error);
}

/* want: the truth in the order of elements. */
static void hold_gradient(check_state *s, check_case *c, const tn_tensor *got, const double *want, const char *what,
                          int32_t index)
{
    double error = 0, sum = 0, truth = 0;
    int64_t count = tn_tensor_count(got);
    for (int64_t i = 0; i < count; i++) {
        double d = element_get(got, element_offset(got, i)) - want[i];
        double e = fabs(d) / (2e-5 + 2e-5 * fabs(want[i]));
        error = e > error || isnan(e) ? e : error;
        sum += d * d;
        truth += want[i] * want[i];
    }
    if (got->dtype != TN_F32 && count)
        error = sqrt(sum / (double)count) / (2e-5 + 4 * unit_roundoff(got->dtype) * sqrt(truth / (double)count));
    hold_error(s, c, what, index, error);
}

static void hold_gradients(check_state *s, check_case *c)
{
    for (int32_t i = 0; i < c->call.in_count; i++)
        if (c->want_in[i])
            hold_gradient(s, c, &c->grads.in[i], c->want_in[i], "gradient of input", i);
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *p = &c->grads.param[role];
        for (int64_t i = 0; c->want_param[role] && i < p->count; i++)
            hold_gradient(s, c, &p->tensors[i], c->want_param[role] + i * tn_tensor_count(p->tensors),
                          "gradient of role", role);
    }
}

static void values(double *to, const tn_tensor *from)
{
    for (int64_t i = 0, count = tn_tensor_count(from); i < count; i++)
        to[i] = element_get(from, element_offset(from, i));
}

void golden_upstream(check_case *c, int32_t out, const tn_tensor *from)
{
    golden_copy(&c->grads.out[out], from);
}

void golden_grad_in(check_case *c, int32_t in, const tn_tensor *truth)
{
    case_want_in(c, in);
    values(c->want_in[in], truth);
}

void golden_grad_param(check_case *c, tn_role role, int64_t index, const tn_tensor *truth)
{
    if (!c->want_param[role])
        case_want_param(c, role);
    values(c->want_param[role] + index * tn_tensor_count(c->site.param[role].tensors), truth);
}

static tn_status run_both(const tn_impl *impl, check_case *c, const tn_plan *plan, tn_call *call, tn_error *err)
{
    tn_status status = TN_OK;
    void *packed = aligned_alloc(64, plan->packed_bytes / 64 * 64 + 64);
    void *scratch = aligned_alloc(64, plan->scratch_bytes / 64 * 64 + 64);
    void *backward = aligned_alloc(64, plan->backward_scratch_bytes / 64 * 64 + 64);
    call->packed = packed;
    call->scratch = scratch;
    if (plan->packed_bytes)
        status = impl->pack(&c->site, plan, packed, err);
    if (status == TN_OK)
        status = impl->forward(call, err);
    if (status == TN_OK && c->grads.size) {
        call->scratch = backward;
        call->grads = &c->grads;
        status = impl->backward ? impl->backward(call, err)
                                : tn_fail(err, TN_DECLINED, NULL, "the implementation has no backward");
    }
    free(packed);
    free(scratch);
    free(backward);
    return status;
}

void golden_run(check_state *s, check_case *c, const tn_safetensors *file, int64_t n, const char *const *names)
{
    char reason[512] = "";
    tn_error err = TN_ERROR_INIT;
    tn_call call = c->call;
    const tn_impl *impl = host_impl(c->kernel, &c->site, reason, sizeof reason);
    tn_plan plan = {.size = sizeof plan, .threads = tn_thread_count(), .max_tokens = 4096};
    tn_status status = TN_OK;
    host_restrict(s->tier->flags);
    s->group_cases++;
    if (!impl)
        status = tn_fail(&err, TN_DECLINED, NULL, "%s", reason);
    else if (impl->plan)
        status = impl->plan(&c->site, &plan, &err);
    call.site = &c->site;
    call.plan = &plan;
    if (status == TN_OK)
        status = run_both(impl, c, &plan, &call, &err);
    if (status != TN_OK)
        check_fail(s, c, "%s", err.message);
    for (int32_t o = 0; status == TN_OK && o < call.out_count; o++) {
        char name[64];
        tn_tensor truth, theirs;
        snprintf(name, sizeof name, "%s%s", names[o], c->call.out[o].dtype == TN_BF16 ? "_bf16" : "_f16");
        if (!golden_get(file, n, names[o], &truth) || !golden_get(file, n, name, &theirs))
            check_fail(s, c, "the file lacks output %s", names[o]);
        else
            hold(s, c, o, &truth, &theirs);
    }
    if (status == TN_OK)
        hold_gradients(s, c);
    case_free(c);
}
