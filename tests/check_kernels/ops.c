/* Golden operator files: what transformers computes, with what it should have. */
#include "goldens.h"

#include "attempt.h"
#include "host.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* In a narrow type a kernel's rms error is at most that of transformers' eager mode. Where both do no more than round a
 * sum in f32 once, the order of that sum decides which of two equally near neighbours is taken, and the difference is
 * as large as the sum's own error: a few f32 units of the output, whose rms stands for it. */
#define SUM_UNITS 8

/* What is wrong with the case of the moment. */
static struct {
    char lacks[96]; /* the tensor that was looked for last in vain                               */
    char wrong[160];
    bool looked;
} problem;

void golden_begin(void)
{
    memset(&problem, 0, sizeof problem);
}

void golden_end(check_state *s, bool claimed, const char *crash)
{
    const check_case unknown = {.what = "the case"};
    if (crash[0])
        check_fail(s, &unknown, "%s", crash);
    else if (!s->group_cases && problem.looked)
        check_fail(s, &unknown, "%s%s", problem.wrong[0] ? problem.wrong : "lacks the tensor ",
                   problem.wrong[0]   ? ""
                   : problem.lacks[0] ? problem.lacks
                                      : "?");
    if (!s->group_cases && (claimed || s->group_failures))
        s->group_cases = 1;
}

bool golden_get(const tn_safetensors *file, int64_t n, const char *name, tn_tensor *t)
{
    char full[96];
    snprintf(full, sizeof full, "%lld.%s", (long long)n, name);
    problem.looked = true;
    if (tn_safetensors_get(file, full, t))
        return true;
    snprintf(problem.lacks, sizeof problem.lacks, "%s", full);
    return false;
}

/* A file may hold anything. */
static bool same_count(int64_t want, const tn_tensor *from)
{
    if (want == tn_tensor_count(from))
        return true;
    snprintf(problem.wrong, sizeof problem.wrong, "a tensor has %lld elements where the shapes of others ask for %lld",
             (long long)tn_tensor_count(from), (long long)want);
    return false;
}

double golden_number(const tn_safetensors *file, int64_t n, const char *name, double absent)
{
    tn_tensor t;
    return golden_get(file, n, name, &t) ? element_get(&t, 0) : absent;
}

void golden_copy(tn_tensor *to, const tn_tensor *from)
{
    int64_t count = tn_tensor_count(to);
    for (int64_t i = 0; same_count(count, from) && i < count; i++)
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

static double rms(const tn_tensor *t, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += element_get(t, i) * element_get(t, i);
    return count ? sqrt(sum / (double)count) : 0;
}

static void hold_error(check_state *s, check_case *c, const char *what, double error)
{
    if (error > s->group_worst || isnan(error))
        s->group_worst = error;
    if (!(error <= 1))
        check_fail(s, c, "%s is %.3f of the bound away", what, error);
}

/* What rounds at every step, as transformers does, is as often a little farther from the truth as it is nearer, by
 * chance: the eager modes are held to this many times transformers' error, the CPU's in tests/eager. A device's kernels
 * of several products are the vendor's operators one after the other, each of which rounds. */
static double times_theirs(const check_state *s, const check_case *c)
{
    tn_op op = c->site.op;
    bool steps = op == TN_OP_MLP || op == TN_OP_MOE_BLOCK || op == TN_OP_MOE_EXPERTS;
    return s->by == BY_DEVICE_EAGER || (s->by == BY_DEVICE_KERNEL && steps) ? 1.5 : 1;
}

/* f32: element by element; the narrow types: all elements together. */
static void hold(check_state *s, check_case *c, const attempt_result *r, const tn_tensor *truth,
                 const tn_tensor *theirs)
{
    const tn_tensor *out = r->tensor;
    int64_t count = tn_tensor_count(out);
    double error = 0;
    if (!same_count(count, truth) || !same_count(count, theirs)) {
        check_fail(s, c, "%s: %s", r->name, problem.wrong);
        return;
    }
    if (out->dtype == TN_F32) {
        for (int64_t i = 0; i < count; i++) {
            double want = element_get(truth, i), e = fabs(element_get(out, i) - want) / (2e-5 + 2e-5 * fabs(want));
            error = e > error || isnan(e) ? e : error;
        }
    } else {
        double ours = rms_error(out, truth, count), mine = rms_error(theirs, truth, count);
        error =
            ours == 0 ? 0 : ours / (times_theirs(s, c) * mine + SUM_UNITS * unit_roundoff(TN_F32) * rms(truth, count));
        s->group_ratio = fmax(s->group_ratio, ours == 0 ? 0 : ours / mine);
    }
    hold_error(s, c, r->name, error);
}

static void hold_outputs(check_state *s, check_case *c, const attempt *t, const tn_safetensors *file, int64_t n,
                         const char *const *names)
{
    for (size_t o = 0; o < t->result_count; o++) {
        char name[64];
        tn_tensor truth, theirs;
        snprintf(name, sizeof name, "%s%s", names[o], t->results[o].tensor->dtype == TN_BF16 ? "_bf16" : "_f16");
        if (!golden_get(file, n, names[o], &truth) || !golden_get(file, n, name, &theirs))
            check_fail(s, c, "the file lacks the tensor %s", problem.lacks);
        else
            hold(s, c, &t->results[o], &truth, &theirs);
    }
}

/* want: the truth in the order of elements. */
static void hold_gradient(check_state *s, check_case *c, const attempt_result *r)
{
    double error = 0, sum = 0, truth = 0;
    int64_t count = tn_tensor_count(r->tensor);
    for (int64_t i = 0; i < count; i++) {
        double d = element_get(r->tensor, element_offset(r->tensor, i)) - r->want[i];
        double e = fabs(d) / (2e-5 + 2e-5 * fabs(r->want[i]));
        error = e > error || isnan(e) ? e : error;
        sum += d * d;
        truth += r->want[i] * r->want[i];
    }
    double u = unit_roundoff(r->tensor->dtype);
    if (r->tensor->dtype != TN_F32 && count)
        error = sqrt(sum / (double)count) / (2e-5 + 4 * u * sqrt(truth / (double)count));
    hold_error(s, c, r->name, error);
}

static void values(double *to, int64_t count, const tn_tensor *from)
{
    for (int64_t i = 0; same_count(count, from) && i < count; i++)
        to[i] = element_get(from, element_offset(from, i));
}

void golden_upstream(check_case *c, int32_t out, const tn_tensor *from)
{
    golden_copy(&c->grads.out[out], from);
}

void golden_grad_in(check_case *c, int32_t in, const tn_tensor *truth)
{
    case_want_in(c, in);
    values(c->want_in[in], tn_tensor_count(&c->call.in[in]), truth);
}

void golden_grad_param(check_case *c, tn_role role, int64_t index, const tn_tensor *truth)
{
    if (!c->want_param[role])
        case_want_param(c, role);
    int64_t each = tn_tensor_count(c->site.param[role].tensors);
    values(c->want_param[role] + index * each, each, truth);
}

/* With Gaussian sparsity eager's roundings decide which gates near the cut are open, and their gradients with them. */
static bool has_sure_gradients(check_state *s, const check_case *c)
{
    bool sure =
        s->by != BY_DEVICE_EAGER || !(c->site.features & TN_HAS_SPARSITY) || c->site.meaning[TN_AXIS_DTYPE] == TN_F32;
    if (!sure)
        check_skip(s, "gradients: rounding decides which gates are open");
    return sure;
}

static void run_both(check_state *s, check_case *c, const tn_impl *impl, const tn_safetensors *file, int64_t n,
                     const char *const *names)
{
    attempt *t = attempt_run(s, c, impl, PLACE_LEFT, false);
    if (t)
        hold_outputs(s, c, t, file, n, names);
    attempt_free(t);
    if (!t || !check_has_backward(s, c, impl) || !has_sure_gradients(s, c))
        return;
    t = attempt_run(s, c, impl, PLACE_LEFT, true);
    for (size_t i = 0; t && i < t->result_count; i++)
        if (t->results[i].want)
            hold_gradient(s, c, &t->results[i]);
    attempt_free(t);
}

void golden_run(check_state *s, check_case *c, const tn_safetensors *file, int64_t n, const char *const *names)
{
    const tn_impl *impl;
    s->group_cases++;
    if (problem.wrong[0])
        check_fail(s, c, "%s", problem.wrong);
    else if (check_performer(s, c, &impl))
        run_both(s, c, impl, file, n, names);
    case_free(c);
}
