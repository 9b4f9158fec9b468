/* Running a case: one placement at a time, then the comparisons. */
#include "attempt.h"
#include "check/check_device.h"
#include "far.h"
#include "host.h"
#include "op/op.h"
#include "same_bits.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void check_fail(check_state *s, const check_case *c, const char *format, ...)
{
    s->group_failures++;
    if (s->group_failures > 8)
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("  FAILED %s: %s: %s\n", s->group, c ? c->what : "", text);
}

void check_skip(check_state *s, const char *format, ...)
{
    char reason[sizeof s->group_skips->reason];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    for (size_t i = 0; i < CHECK_SKIPS; i++) {
        check_skips *skip = &s->group_skips[i];
        if (skip->cases && strcmp(skip->reason, reason) && i + 1 < CHECK_SKIPS)
            continue;
        snprintf(skip->reason, sizeof skip->reason, "%s",
                 skip->cases && strcmp(skip->reason, reason) ? "other reasons" : reason);
        skip->cases++;
        return;
    }
}

static bool group_wanted(const check_state *s)
{
    return !s->only || !strncmp(s->group, s->only, strlen(s->only));
}

bool group_begin(check_state *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->group, sizeof s->group, format, args);
    va_end(args);
    s->group_cases = s->group_failures = s->group_runs = 0;
    s->groups++;
    s->group_seen = 0;
    memset(s->group_skips, 0, sizeof s->group_skips);
    s->group_worst = s->group_ratio = 0;
    return group_wanted(s);
}

/* A line for each reason; each counts. */
static void print_skips(check_state *s)
{
    for (size_t i = 0; i < CHECK_SKIPS && s->group_skips[i].cases; i++) {
        const check_skips *skip = &s->group_skips[i];
        printf("SKIPPED %s: %s", s->group, skip->reason);
        if (skip->cases > 1)
            printf(" (%lld cases)", (long long)skip->cases);
        printf("\n");
        s->skipped++;
    }
}

void group_end(check_state *s)
{
    if (!s->group_cases)
        return;
    print_skips(s);
    if (s->group_skips->cases && !s->group_runs && !s->group_failures)
        return;
    if (s->group_failures)
        s->failed++;
    else
        s->passed++;
    printf("%s %-52s %4lld cases, largest error %.3f of the bound", s->group_failures ? "FAILED" : "passed", s->group,
           (long long)s->group_cases, s->group_worst);
    if (s->group_ratio > 0)
        printf(", %.3f of transformers'", s->group_ratio);
    printf("\n");
}

/* NaN equals NaN. distance and bound may be infinite. */
static double error_of(double got, double want, double bound)
{
    if (got == want || (isnan(got) && isnan(want)))
        return 0;
    double distance = fabs(got - want);
    return isfinite(distance) && bound > 0 ? distance / bound : INFINITY;
}

/* Holds result number i against values; bound NULL: equal. */
static void compare(check_state *s, const check_case *c, const attempt *t, size_t i, const double *want,
                    const double *bound, const char *with)
{
    const attempt_result *r = &t->results[i];
    for (int64_t e = 0, n = tn_tensor_count(r->tensor); e < n; e++) {
        double got = element_get(r->tensor, element_offset(r->tensor, e)), limit = bound ? bound[e] : 0;
        double error = error_of(got, want[e], limit);
        if (error > s->group_worst)
            s->group_worst = error;
        if (error > 1) {
            check_fail(s, c, "%s element %lld is %.9g; %s has %.9g, bound %.3g", r->name, (long long)e, got, with,
                       want[e], limit);
            return;
        }
    }
}

static double *values_of(const tn_tensor *t)
{
    int64_t n = tn_tensor_count(t);
    double *v = malloc((size_t)(n + 1) * sizeof *v);
    for (int64_t i = 0; v && i < n; i++)
        v[i] = element_get(t, element_offset(t, i));
    return v;
}

/* What a row counts as at least on a device, whose kernels round in places of their own: denormals are as far apart as
 * the smallest normal numbers, so that rounding one is an error of that size. (core has a larger floor: compare_size.)
 */
static double smallest_normal(tn_dtype dtype)
{
    return dtype <= TN_F64 ? smallest(dtype) / (2 * unit_roundoff(dtype)) : 0;
}

/* The declared tolerance, per element: ulps * eps * the largest magnitude in the row, of a gradient in the tensor: sums
 * that cancel make whole rows of these small. A result in f32 of a model in a narrower type is as near as that type
 * allows. */
static double *declared_bound(check_by by, const tn_impl *impl, const tn_site *site, bool backward,
                              const tn_tensor *out, const double *eager)
{
    tn_dtype dtype = out->dtype == TN_F32 ? (tn_dtype)site->meaning[TN_AXIS_DTYPE] : out->dtype;
    const tn_tolerance *g = &impl->gradient_tolerance;
    bool own = backward && (g->ulps_f32 > 0 || g->ulps_bf16 > 0 || g->ulps_f16 > 0);
    const tn_tolerance *tolerance = own ? g : &impl->tolerance;
    int64_t n = tn_tensor_count(out), row = backward ? n : out->ndim ? out->shape[out->ndim - 1] : 1;
    double ulps = dtype == TN_F32 ? tolerance->ulps_f32 : dtype == TN_BF16 ? tolerance->ulps_bf16 : tolerance->ulps_f16;
    double *bound = malloc((size_t)(n + 1) * sizeof *bound);
    for (int64_t begin = 0; bound && begin < n; begin += row) {
        double largest = by == BY_CPU ? 0 : smallest_normal(dtype);
        for (int64_t i = begin; i < begin + row; i++)
            if (fabs(eager[i]) > largest && isfinite(eager[i]))
                largest = fabs(eager[i]);
        for (int64_t i = begin; i < begin + row; i++)
            bound[i] = ulps * unit_roundoff(dtype) * largest;
    }
    return bound;
}

/* Room for numbers of the device: how far its own operations may be from the CPU's, in core too. */
static double *device_bound(check_by by, const check_case *c, bool backward, const tn_tensor *out, const double *eager)
{
    tn_impl like = {.size = sizeof like};
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    double ulps = backward ? check_device_gradient_ulps(dtype) : check_device_ulps(c->site.op, dtype);
    like.tolerance = (tn_tolerance){.ulps_f32 = ulps, .ulps_bf16 = ulps, .ulps_f16 = ulps};
    return declared_bound(by, &like, &c->site, backward, out, eager);
}

static void compare_eager(check_state *s, check_case *c, const attempt *t, bool backward)
{
    attempt *eager = attempt_eager(s, c, t->impl, backward);
    for (size_t i = 0; eager && i < t->result_count; i++) {
        const tn_tensor *out = eager->results[i].tensor;
        double *want = values_of(out);
        double *bound = t->impl ? declared_bound(s->by, t->impl, &c->site, backward, out, want)
                                : device_bound(s->by, c, backward, out, want);
        compare(s, c, t, i, want, bound, "eager");
        free(want);
        free(bound);
    }
    attempt_free(eager);
}

/* The plain C tier, with twice the bound: both may be at its ends. */
static void compare_tier_c(check_state *s, const check_case *c, const attempt *t, bool backward)
{
    host_restrict(0);
    attempt *plain = attempt_run(s, c, t->impl, PLACE_LEFT, backward);
    host_restrict(s->tier->flags);
    for (size_t o = 0; plain && o < plain->result_count; o++) {
        const double *given = plain->results[o].bound;
        double *want = values_of(plain->results[o].tensor), *bound = NULL;
        int64_t n = tn_tensor_count(plain->results[o].tensor);
        bool equal = c->tiers_equal && !backward;
        if (!equal && given) {
            bound = malloc((size_t)(n + 1) * sizeof *bound);
            for (int64_t i = 0; bound && i < n; i++)
                bound[i] = 2 * given[i];
        }
        if (bound || equal)
            compare(s, c, t, o, want, bound, "the plain C tier");
        free(want);
        free(bound);
    }
    attempt_free(plain);
}

static void compare_first(check_state *s, const check_case *c, const attempt *first, const attempt *t, placement where)
{
    static const char *const name[] = {"left", "right", "shifted"};
    for (size_t o = 0; o < first->result_count; o++) {
        double *want = values_of(first->results[o].tensor);
        char with[64];
        snprintf(with, sizeof with, "one thread (here %d, memory %s)", (int)where + 1, name[where]);
        compare(s, c, t, o, want, NULL, with);
        free(want);
    }
}

/* One direction: every placement with its number of threads, against all that it must agree with. */
static void check_direction(check_state *s, check_case *c, const tn_impl *impl, bool backward)
{
    attempt *first = NULL;
    for (placement where = PLACE_LEFT; where < PLACE_COUNT; where++) {
        host_threads((int32_t)where + 1);
        attempt *t = attempt_run(s, c, impl, where, backward);
        if (!t)
            break;
        if (!first) {
            first = t;
            for (size_t o = 0; o < t->result_count; o++)
                if (t->results[o].want)
                    compare(s, c, t, o, t->results[o].want, t->results[o].bound, "the reference");
        } else {
            compare_first(s, c, first, t, where);
            attempt_free(t);
        }
    }
    host_threads(1);
    if (first && !backward && impl->traits & TN_SAME_BITS)
        same_bits(s, c, impl, first);
    if (first && s->tier->flags)
        compare_tier_c(s, c, first, backward);
    if (first && !c->skip_eager)
        compare_eager(s, c, first, backward);
    attempt_free(first);
}

/* The same on a device, with what the CPU's eager says: a case's own bounds follow from the arithmetic of the kernels
 * for the CPU. */
static void check_device_direction(check_state *s, check_case *c, const tn_impl *impl, bool backward)
{
    static const placement places[] = {PLACE_LEFT, PLACE_RIGHT};
    attempt *first = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        attempt *t = attempt_run(s, c, impl, places[i], backward);
        if (!t)
            break;
        if (first)
            compare_first(s, c, first, t, places[i]);
        else
            compare_eager(s, c, t, backward);
        if (first)
            attempt_free(t);
        else
            first = t;
    }
    attempt_free(first);
}

static void check_on_device(check_state *s, check_case *c, const tn_impl *impl)
{
    int64_t before = s->group_runs;
    if (c->skip_eager) {
        check_skip(s, "eager does not define the result");
        return;
    }
    check_device_direction(s, c, impl, false);
    if (s->group_runs > before && check_has_backward(s, c, impl))
        check_device_direction(s, c, impl, true);
}

bool check_performer(check_state *s, const check_case *c, const tn_impl **impl)
{
    char reason[512] = "";
    *impl = NULL;
    if (s->by == BY_DEVICE_EAGER)
        return true;
    *impl = host_impl(s->by == BY_CPU ? "cpu" : far_name(), c->kernel, &c->site, reason, sizeof reason);
    if (*impl)
        return true;
    if (s->by == BY_CPU)
        check_fail(s, c, "%s", reason);
    else
        check_skip(s, "%s", reason);
    return false;
}

bool check_has_backward(check_state *s, const check_case *c, const tn_impl *impl)
{
    if (!c->grads.size)
        return false;
    if (!impl || impl->backward)
        return true;
    if (s->by == BY_CPU)
        check_fail(s, c, "the implementation has no backward");
    else
        check_skip(s, "gradients: the kernel has none on device %s", far_name());
    return false;
}

/* The first of a group is run, and those that follow begin elsewhere in each: cases vary in loops, and no value of one
 * shall be left out of all. */
static bool is_left_out(const check_state *s)
{
    return !group_wanted(s) || (s->group_seen > 0 && (s->groups + s->group_seen) % s->every != 0);
}

bool check_pass_over(check_state *s)
{
    bool out = is_left_out(s);
    s->group_seen += out;
    return out;
}

bool check_left_out(check_state *s, check_case *c)
{
    bool out = is_left_out(s);
    s->group_seen++;
    if (out)
        case_free(c);
    return out;
}

void check_run(check_state *s, check_case *c)
{
    if (check_left_out(s, c))
        return;
    const tn_impl *impl;
    s->group_cases++;
    bool there = check_performer(s, c, &impl);
    if (there && s->by != BY_CPU) {
        check_on_device(s, c, impl);
    } else if (there) {
        check_direction(s, c, impl, false);
        if (check_has_backward(s, c, impl))
            check_direction(s, c, impl, true);
    }
    case_free(c);
}

void check_declined(check_state *s, check_case *c, const char *want)
{
    char reason[sizeof(tn_error)] = "";
    tn_error err = TN_ERROR_INIT;
    tn_plan plan = {.size = sizeof plan, .threads = 1, .max_tokens = 1};
    if (check_left_out(s, c))
        return;
    s->group_cases++;
    if (s->by != BY_CPU) {
        check_skip(s, "what is declined: kernels of a device have limits of their own");
        case_free(c);
        return;
    }
    /* What the table of operations refuses no kernel sees. */
    bool refused = op_check_site(&c->site, &err) != TN_OK;
    snprintf(reason, sizeof reason, "%s", err.message);
    const tn_impl *impl = refused ? NULL : host_impl("cpu", c->kernel, &c->site, reason, sizeof reason);
    if (impl) {
        tn_status status = impl->plan ? impl->plan(&c->site, &plan, &err) : TN_OK;
        snprintf(reason, sizeof reason, "%s", err.message);
        if (status != TN_DECLINED)
            check_fail(s, c, "not declined (plan returned %d)", status);
    }
    if (!strstr(reason, want))
        check_fail(s, c, "declined with '%s'; expected '%s'", reason, want);
    case_free(c);
}
