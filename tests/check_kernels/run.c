/* Running a case: one placement at a time between guard pages, then the comparisons. */
#include "check_kernels.h"
#include "guard.h"
#include "host.h"

#include <fenv.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BUFFERS = 4096 };

/* A copy of a case between guard pages. */
typedef struct trial {
    tn_call call;
    tn_site site;
    tn_plan plan;
    const tn_impl *impl;
    tn_error err;
    tn_status status;
    guarded buffers[MAX_BUFFERS];
    size_t buffer_count;
    guarded *out[TN_CALL_TENSORS];
    tn_tensor *params[TN_ROLE_MAX];
} trial;

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

void group_begin(check_state *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->group, sizeof s->group, format, args);
    va_end(args);
    s->group_cases = s->group_failures = 0;
    s->group_worst = 0;
}

void group_end(check_state *s)
{
    if (!s->group_cases)
        return;
    if (s->group_failures)
        s->failed++;
    else
        s->passed++;
    printf("%s %-52s %4lld cases, largest error %.3f of the bound\n", s->group_failures ? "FAILED" : "passed", s->group,
           (long long)s->group_cases, s->group_worst);
}

static int64_t span_bytes(const tn_tensor *t)
{
    int64_t span = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        span += (t->shape[d] - 1) * t->stride[d];
    return tn_tensor_count(t) ? span * (int64_t)tn_dtype_size(t->dtype) : 0;
}

static guarded *add_buffer(trial *t, placement where, size_t bytes, size_t element, const char *name, int index)
{
    if (t->buffer_count == MAX_BUFFERS) {
        fprintf(stderr, "check_kernels: a case has too many tensors\n");
        exit(1);
    }
    guarded *g = &t->buffers[t->buffer_count++];
    *g = guarded_new(where, bytes, element, name, index);
    return g;
}

static guarded *copy_tensor(trial *t, placement where, tn_tensor *tensor, const char *name, int index)
{
    size_t bytes = (size_t)span_bytes(tensor);
    guarded *g = add_buffer(t, where, bytes, tn_dtype_size(tensor->dtype), name, index);
    memcpy(g->data, tensor->data, bytes);
    tensor->data = g->data;
    return g;
}

static void copy_params(trial *t, const check_case *c, placement where)
{
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *p = &c->site.param[role];
        if (!p->count)
            continue;
        t->params[role] = malloc((size_t)p->count * sizeof(tn_tensor));
        memcpy(t->params[role], p->tensors, (size_t)p->count * sizeof(tn_tensor));
        for (int64_t i = 0; i < p->count; i++)
            guarded_protect(copy_tensor(t, where, &t->params[role][i], "parameter", role));
        t->site.param[role].tensors = t->params[role];
    }
}

static void copy_tensors(trial *t, const check_case *c, placement where)
{
    guarded *in[TN_CALL_TENSORS];
    bool writable[TN_CALL_TENSORS] = {false};
    for (int32_t i = 0; i < c->call.in_count; i++)
        in[i] = copy_tensor(t, where, &t->call.in[i], "input", i);
    for (int32_t i = 0; i < c->call.out_count; i++) {
        tn_tensor *out = &t->call.out[i];
        if (c->alias[i] >= 0) {
            t->out[i] = NULL;
            writable[c->alias[i]] = true;
            out->data = in[c->alias[i]]->data;
        } else {
            t->out[i] = add_buffer(t, where, (size_t)span_bytes(out), tn_dtype_size(out->dtype), "output", i);
            out->data = t->out[i]->data;
        }
    }
    for (int32_t i = 0; i < c->call.in_count; i++)
        if (!writable[i])
            guarded_protect(in[i]);
}

static void trial_free(trial *t)
{
    for (size_t i = 0; i < t->buffer_count; i++)
        guarded_free(&t->buffers[i]);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        free(t->params[role]);
    free(t);
}

static void call_plan(void *ctx)
{
    trial *t = ctx;
    t->status = t->impl->plan ? t->impl->plan(&t->site, &t->plan, &t->err) : TN_OK;
}

static void call_pack(void *ctx)
{
    trial *t = ctx;
    t->status = t->impl->pack(&t->site, &t->plan, (void *)t->call.packed, &t->err);
}

static void call_forward(void *ctx)
{
    trial *t = ctx;
    t->status = t->impl->forward(&t->call, &t->err);
}

/* Calls body; false after a failure of the group. */
static bool step(check_state *s, const check_case *c, trial *t, const char *name, void (*body)(void *ctx))
{
    char text[256], label[sizeof s->group + sizeof c->what + 32];
    snprintf(label, sizeof label, "%s: %s: %s", s->group, c->what, name);
    fenv_t before, after;
    fegetenv(&before);
    bool survived = guarded_call(body, t, label, t->buffers, t->buffer_count, text, sizeof text);
    fegetenv(&after);
#if defined(__x86_64__)
    /* The status flags (the low six bits) may change; masks, rounding and flush-to-zero may not. */
    if ((before.__mxcsr ^ after.__mxcsr) & ~0x3fu) {
        check_fail(s, c, "%s changed MXCSR from %04x to %04x", name, before.__mxcsr, after.__mxcsr);
        fesetenv(&before);
    }
#endif
    if (!survived)
        check_fail(s, c, "%s %s", name, text);
    else if (t->status != TN_OK)
        check_fail(s, c, "%s returned %d: %s", name, t->status, t->err.message);
    return survived && t->status == TN_OK;
}

static int64_t call_tokens(const check_case *c)
{
    if (c->max_tokens)
        return c->max_tokens;
    const tn_tensor *x = &c->call.in[0];
    int64_t tokens = x->ndim ? tn_tensor_count(x) / (x->shape[x->ndim - 1] ? x->shape[x->ndim - 1] : 1) : 1;
    return tokens ? tokens : 1;
}

/* What the host would do: plan, pack, provide scratch. Scratch is filled by the guard's pattern, packed memory ends as
 * read-only. Both are 64-byte aligned, whatever the placement. */
static bool prepare(check_state *s, const check_case *c, trial *t, placement where)
{
    enum { ALIGN = 64 };
    placement aligned = where == PLACE_SHIFTED ? PLACE_LEFT : where;
    t->plan = (tn_plan){.size = sizeof t->plan, .threads = tn_thread_count(), .max_tokens = call_tokens(c)};
    if (!step(s, c, t, "plan", call_plan))
        return false;
    t->call.site = &t->site;
    t->call.plan = &t->plan;
    if (t->plan.packed_bytes) {
        size_t bytes = (t->plan.packed_bytes + ALIGN - 1) / ALIGN * ALIGN;
        guarded *packed = add_buffer(t, aligned, bytes, ALIGN, "packed memory", 0);
        t->call.packed = packed->data;
        if (!t->impl->pack || !step(s, c, t, "pack", call_pack))
            return false;
        guarded_protect(packed);
    }
    if (t->plan.scratch_bytes) {
        size_t bytes = (t->plan.scratch_bytes + ALIGN - 1) / ALIGN * ALIGN;
        t->call.scratch = add_buffer(t, aligned, bytes, ALIGN, "scratch", 0)->data;
    }
    return true;
}

/* Memory of an output that no element covers must be as it was. */
static bool gaps_untouched(const tn_tensor *out, const guarded *g)
{
    size_t element = tn_dtype_size(out->dtype), bytes = g->bytes;
    char *covered = calloc(bytes + 1, 1);
    bool same = true;
    for (int64_t i = 0, n = tn_tensor_count(out); i < n; i++)
        memset(covered + (size_t)element_offset(out, i) * element, 1, element);
    for (size_t b = 0; b < bytes; b++)
        same = same && (covered[b] || guarded_untouched(g, b, 1));
    free(covered);
    return same;
}

static trial *run_placement(check_state *s, const check_case *c, const tn_impl *impl, placement where)
{
    trial *t = calloc(1, sizeof *t);
    if (!t)
        exit(6);
    t->call = c->call;
    t->site = c->site;
    t->impl = impl;
    copy_params(t, c, where);
    copy_tensors(t, c, where);
    bool good = prepare(s, c, t, where) && step(s, c, t, "forward", call_forward);
    for (size_t i = 0; good && i < t->buffer_count; i++)
        if (!guarded_intact(&t->buffers[i])) {
            check_fail(s, c, "wrote beside %s %d", t->buffers[i].name, t->buffers[i].index);
            good = false;
        }
    for (int32_t i = 0; good && i < t->call.out_count; i++)
        if (t->out[i] && !gaps_untouched(&t->call.out[i], t->out[i])) {
            check_fail(s, c, "wrote between the rows of output %d", i);
            good = false;
        }
    if (good)
        return t;
    trial_free(t);
    return NULL;
}

/* NaN equals NaN. distance and bound may be infinite. */
static double error_of(double got, double want, double bound)
{
    if (got == want || (isnan(got) && isnan(want)))
        return 0;
    double distance = fabs(got - want);
    return isfinite(distance) && bound > 0 ? distance / bound : INFINITY;
}

/* Holds outputs against values; bound NULL: equal. */
static void compare(check_state *s, const check_case *c, const trial *t, int32_t o, const double *want,
                    const double *bound, const char *with)
{
    const tn_tensor *out = &t->call.out[o];
    for (int64_t i = 0, n = tn_tensor_count(out); i < n; i++) {
        double got = element_get(out, element_offset(out, i)), limit = bound ? bound[i] : 0;
        double error = error_of(got, want[i], limit);
        if (error > s->group_worst)
            s->group_worst = error;
        if (error > 1) {
            check_fail(s, c, "output %d element %lld is %.9g; %s has %.9g, bound %.3g", o, (long long)i, got, with,
                       want[i], limit);
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

/* The declared tolerance, per element: ulps * eps * the largest magnitude in the row. */
static double *declared_bound(const tn_impl *impl, const tn_tensor *out, const double *eager)
{
    int64_t n = tn_tensor_count(out), row = out->ndim ? out->shape[out->ndim - 1] : 1;
    double ulps = out->dtype == TN_F32    ? impl->tolerance.ulps_f32
                  : out->dtype == TN_BF16 ? impl->tolerance.ulps_bf16
                                          : impl->tolerance.ulps_f16;
    double *bound = malloc((size_t)(n + 1) * sizeof *bound);
    for (int64_t begin = 0; bound && begin < n; begin += row) {
        double largest = 0;
        for (int64_t i = begin; i < begin + row; i++)
            if (fabs(eager[i]) > largest && isfinite(eager[i]))
                largest = fabs(eager[i]);
        for (int64_t i = begin; i < begin + row; i++)
            bound[i] = ulps * unit_roundoff(out->dtype) * largest;
    }
    return bound;
}

static void compare_eager(check_state *s, const check_case *c, const trial *t)
{
    tn_call call = c->call;
    call.site = &c->site;
    void *memory[TN_CALL_TENSORS] = {NULL};
    for (int32_t i = 0; i < call.out_count; i++)
        call.out[i].data = memory[i] = calloc((size_t)span_bytes(&call.out[i]) + 1, 1);
    tn_error err = TN_ERROR_INIT;
    tn_status status = host_eager(&call, &err);
    if (status < 0)
        check_fail(s, c, "eager returned %d: %s", status, err.message);
    for (int32_t i = 0; status == TN_OK && i < call.out_count; i++) {
        double *eager = values_of(&call.out[i]), *bound = declared_bound(t->impl, &call.out[i], eager);
        compare(s, c, t, i, eager, bound, "eager");
        free(eager);
        free(bound);
    }
    for (int32_t i = 0; i < call.out_count; i++)
        free(memory[i]);
}

/* The plain C tier, with twice the bound: both may be at its ends. */
static void compare_tier_c(check_state *s, const check_case *c, const trial *t)
{
    host_restrict(0);
    trial *plain = run_placement(s, c, t->impl, PLACE_LEFT);
    host_restrict(s->tier->flags);
    for (int32_t o = 0; plain && o < c->call.out_count; o++) {
        double *want = values_of(&plain->call.out[o]), *bound = NULL;
        int64_t n = tn_tensor_count(&c->call.out[o]);
        if (!c->tiers_equal && c->bound[o]) {
            bound = malloc((size_t)(n + 1) * sizeof *bound);
            for (int64_t i = 0; bound && i < n; i++)
                bound[i] = 2 * c->bound[o][i];
        }
        if (bound || c->tiers_equal)
            compare(s, c, t, o, want, bound, "the plain C tier");
        free(want);
        free(bound);
    }
    if (plain)
        trial_free(plain);
}

static void compare_first(check_state *s, const check_case *c, const trial *first, const trial *t, placement where)
{
    static const char *const name[] = {"left", "right", "shifted"};
    for (int32_t o = 0; o < c->call.out_count; o++) {
        double *want = values_of(&first->call.out[o]);
        char with[64];
        snprintf(with, sizeof with, "one thread (here %d, memory %s)", (int)where + 1, name[where]);
        compare(s, c, t, o, want, NULL, with);
        free(want);
    }
}

void check_run(check_state *s, check_case *c)
{
    char reason[512] = "";
    const tn_impl *impl = host_impl(c->kernel, &c->site, reason, sizeof reason);
    s->group_cases++;
    if (!impl)
        check_fail(s, c, "%s", reason);
    host_restrict(s->tier->flags);
    trial *first = NULL;
    for (placement where = PLACE_LEFT; impl && where < PLACE_COUNT; where++) {
        host_threads((int32_t)where + 1);
        trial *t = run_placement(s, c, impl, where);
        if (!t)
            break;
        if (!first) {
            first = t;
            for (int32_t o = 0; o < c->call.out_count; o++)
                if (c->want[o])
                    compare(s, c, t, o, c->want[o], c->bound[o], "the reference");
        } else {
            compare_first(s, c, first, t, where);
            trial_free(t);
        }
    }
    host_threads(1);
    if (first && s->tier->flags)
        compare_tier_c(s, c, first);
    if (first && !c->skip_eager)
        compare_eager(s, c, first);
    if (first)
        trial_free(first);
    case_free(c);
}

void check_declined(check_state *s, check_case *c, const char *want)
{
    char reason[sizeof(tn_error)] = "";
    tn_error err = TN_ERROR_INIT;
    tn_plan plan = {.size = sizeof plan, .threads = 1, .max_tokens = 1};
    s->group_cases++;
    const tn_impl *impl = host_impl(c->kernel, &c->site, reason, sizeof reason);
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
