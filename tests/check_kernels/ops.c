/* Golden operator files: what transformers computes, with what it should have. */
#include "check_kernels.h"
#include "host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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
        error = ours == 0 ? 0 : ours / (1.5 * mine);
    }
    if (error > s->group_worst || isnan(error))
        s->group_worst = error;
    if (!(error <= 1))
        check_fail(s, c, "output %d is %.3f of the bound away", o, error);
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
    void *packed = aligned_alloc(64, plan.packed_bytes / 64 * 64 + 64);
    call.packed = packed;
    call.scratch = aligned_alloc(64, plan.scratch_bytes / 64 * 64 + 64);
    if (status == TN_OK && plan.packed_bytes)
        status = impl->pack(&c->site, &plan, packed, &err);
    if (status == TN_OK)
        status = impl->forward(&call, &err);
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
    free(packed);
    free(call.scratch);
    case_free(c);
}
