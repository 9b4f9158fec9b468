/* Running a case once, every buffer between guard pages. */
#include "attempt.h"
#include "device/device.h"
#include "far.h"
#include "host.h"

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t attempt_span(const tn_tensor *t)
{
    int64_t span = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        span += (t->shape[d] - 1) * t->stride[d];
    return tn_tensor_count(t) ? (int64_t)tn_dtype_bytes(t->dtype, span) : 0;
}

static guarded *add_buffer(attempt *t, placement where, size_t bytes, size_t element, const char *name, int index)
{
    if (t->buffer_count == ATTEMPT_BUFFERS) {
        fprintf(stderr, "check_kernels: a case has too many tensors\n");
        exit(1);
    }
    guarded *g = &t->buffers[t->buffer_count++];
    *g = guarded_new(where, bytes, element, name, index);
    return g;
}

static guarded *copy_tensor(attempt *t, placement where, tn_tensor *tensor, const char *name, int index)
{
    size_t bytes = (size_t)attempt_span(tensor);
    size_t element = tn_dtype_size(tensor->dtype);
    guarded *g = add_buffer(t, where, bytes, element ? element : 1, name, index); /* blocks lie at any address */
    memcpy(g->data, tensor->data, bytes);
    tensor->data = g->data;
    return g;
}

static void copy_params(attempt *t, const check_case *c, placement where)
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

static void add_result(attempt *t, tn_tensor *tensor, const guarded *memory, const double *want, const double *bound,
                       const char *name, int index, int64_t which)
{
    if (t->result_count == ATTEMPT_RESULTS) {
        fprintf(stderr, "check_kernels: a case has too many results\n");
        exit(1);
    }
    attempt_result *r = &t->results[t->result_count++];
    *r = (attempt_result){tensor, memory, want, bound, ""};
    if (which < 0)
        snprintf(r->name, sizeof r->name, "%s %d", name, index);
    else
        snprintf(r->name, sizeof r->name, "%s %d [%lld]", name, index, (long long)which);
}

/* Inputs, protected unless an output lies in them, and outputs. */
static void copy_tensors(attempt *t, const check_case *c, placement where)
{
    guarded *in[TN_CALL_TENSORS];
    bool writable[TN_CALL_TENSORS] = {false};
    for (int32_t i = 0; i < c->call.in_count; i++)
        in[i] = copy_tensor(t, where, &t->call.in[i], "input", i);
    for (int32_t i = 0; i < c->call.out_count; i++) {
        tn_tensor *out = &t->call.out[i];
        guarded *memory = NULL;
        if (c->alias[i] >= 0) {
            writable[c->alias[i]] = true;
            out->data = in[c->alias[i]]->data;
        } else {
            memory = add_buffer(t, where, (size_t)attempt_span(out), tn_dtype_size(out->dtype), "output", i);
            out->data = memory->data;
        }
        add_result(t, out, memory, c->want[i], c->bound[i], "output", i, -1);
    }
    for (int32_t i = 0; i < c->call.in_count; i++)
        if (!writable[i])
            guarded_protect(in[i]);
}

static void add_gradient(attempt *t, placement where, tn_tensor *grad, const double *want, const double *bound,
                         const char *name, int index, int64_t which)
{
    guarded *memory = add_buffer(t, where, (size_t)attempt_span(grad), tn_dtype_size(grad->dtype), name, index);
    grad->data = memory->data;
    add_result(t, grad, memory, want, bound, name, index, which);
}

static void copy_param_gradients(attempt *t, const check_case *c, placement where)
{
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *p = &c->grads.param[role];
        if (!p->count)
            continue;
        t->grad_params[role] = malloc((size_t)p->count * sizeof(tn_tensor));
        memcpy(t->grad_params[role], p->tensors, (size_t)p->count * sizeof(tn_tensor));
        t->grads.param[role].tensors = t->grad_params[role];
        int64_t each = tn_tensor_count(p->tensors);
        for (int64_t i = 0; i < p->count; i++) {
            const double *want = c->want_param[role], *bound = c->bound_param[role];
            add_gradient(t, where, &t->grad_params[role][i], want ? want + i * each : NULL,
                         bound ? bound + i * each : NULL, "gradient of role", role, p->count > 1 ? i : -1);
        }
    }
}

/* Inputs and upstream gradients, and the gradients that are wanted. There are no outputs. */
static void copy_gradients(attempt *t, const check_case *c, placement where)
{
    guarded *up[TN_CALL_TENSORS] = {NULL};
    bool writable[TN_CALL_TENSORS] = {false};
    t->call.grads = &t->grads;
    for (int32_t i = 0; i < c->call.out_count; i++)
        t->call.out[i].data = NULL;
    /* ROPE's backward must do without q and k. */
    for (int32_t i = 0; c->call.op == TN_OP_ROPE && i < 2; i++)
        t->call.in[i].data = NULL;
    for (int32_t i = 0; i < c->call.in_count; i++)
        if (t->call.in[i].data)
            guarded_protect(copy_tensor(t, where, &t->call.in[i], "input", i));
    for (int32_t i = 0; i < c->call.out_count; i++)
        if (t->grads.out[i].data)
            up[i] = copy_tensor(t, where, &t->grads.out[i], "upstream gradient", i);
    for (int32_t i = 0; i < c->call.in_count; i++) {
        int32_t alias = c->grad_alias[i];
        if (!t->grads.in[i].data)
            continue;
        if (alias < 0 || !up[alias]) {
            add_gradient(t, where, &t->grads.in[i], c->want_in[i], c->bound_in[i], "gradient of input", i, -1);
            continue;
        }
        writable[alias] = true;
        t->grads.in[i].data = up[alias]->data;
        add_result(t, &t->grads.in[i], NULL, c->want_in[i], c->bound_in[i], "gradient of input", i, -1);
    }
    for (int32_t i = 0; i < c->call.out_count; i++)
        if (up[i] && !writable[i])
            guarded_protect(up[i]);
    copy_param_gradients(t, c, where);
}

void attempt_free(attempt *t)
{
    if (!t)
        return;
    far_release(t);
    for (size_t i = 0; i < t->buffer_count; i++)
        guarded_free(&t->buffers[i]);
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        free(t->params[role]);
        free(t->grad_params[role]);
    }
    free(t);
}

static void call_plan(void *ctx)
{
    attempt *t = ctx;
    t->status = t->impl->plan ? t->impl->plan(&t->site, &t->plan, &t->err) : TN_OK;
}

static void call_pack(void *ctx)
{
    attempt *t = ctx;
    t->status = t->impl->pack(&t->site, &t->plan, (void *)t->call.packed, t->call.queue, &t->err);
}

static void call_forward(void *ctx)
{
    attempt *t = ctx;
    t->status = t->impl->forward(&t->call, &t->err);
    if (t->far && t->status == TN_OK)
        t->status = far_sync(&t->err);
}

static void call_backward(void *ctx)
{
    attempt *t = ctx;
    t->status = t->impl->backward(&t->call, &t->err);
    if (t->far && t->status == TN_OK)
        t->status = far_sync(&t->err);
}

static void call_far_supports(void *ctx)
{
    attempt *t = ctx;
    t->status = far_supports(&t->call, &t->err);
}

static void call_far_eager(void *ctx)
{
    attempt *t = ctx;
    t->status = far_eager(&t->call, &t->err);
}

#if defined(__x86_64__)
/* The status flags (the low six bits) may change; masks, rounding and flush-to-zero may not. */
#define MXCSR_CONTROL (~0x3fu)

typedef struct control {
    unsigned expected;
    _Atomic unsigned changed; /* what a thread of the team has instead; 0: nothing              */
} control;

static void check_control(void *ctx, int32_t thread, int32_t threads)
{
    (void)thread;
    (void)threads;
    control *c = ctx;
    fenv_t now;
    fegetenv(&now);
    if (((now.__mxcsr ^ c->expected) & MXCSR_CONTROL) == 0)
        return;
    c->changed = now.__mxcsr;
    now.__mxcsr = c->expected;
    fesetenv(&now);
}
#endif

/* Calls body; false after a failure of the group. */
static bool step(check_state *s, const check_case *c, attempt *t, const char *name, void (*body)(void *ctx))
{
    char text[256], label[sizeof s->group + sizeof c->what + 32];
    snprintf(label, sizeof label, "%s: %s: %s", s->group, c->what, name);
    fenv_t before;
    fegetenv(&before);
    bool survived = guarded_call(body, t, label, t->buffers, t->buffer_count, text, sizeof text);
#if defined(__x86_64__)
    control mxcsr = {.expected = before.__mxcsr};
    tn_parallel(check_control, &mxcsr);
    if (mxcsr.changed)
        check_fail(s, c, "%s changed MXCSR from %04x to %04x", name, mxcsr.expected, mxcsr.changed);
    /* Of a worker it is put back at the end of its work. */
    if (threads_changed() & THREADS_CONTROL)
        check_fail(s, c, "%s changed MXCSR on a thread of the team", name);
#endif
    if (!survived)
        check_fail(s, c, "%s %s", name, text);
    else if (t->status == TN_DECLINED && t->may_decline)
        check_skip(s, "%s%s", t->call.grads ? "gradients: " : "", t->err.message);
    else if (t->status != TN_OK)
        check_fail(s, c, "%s returned %d: %s", name, t->status, t->err.message);
    return survived && t->status == TN_OK;
}

int64_t attempt_tokens(const check_case *c)
{
    if (c->max_tokens)
        return c->max_tokens;
    const tn_tensor *x = &c->call.in[0];
    int64_t tokens = x->ndim ? tn_tensor_count(x) / (x->shape[x->ndim - 1] ? x->shape[x->ndim - 1] : 1) : 1;
    return tokens ? tokens : 1;
}

/* What there is by now, to the device. */
static bool place(check_state *s, const check_case *c, attempt *t)
{
    if (!t->far || far_place(t, &t->err) == TN_OK)
        return true;
    check_fail(s, c, "%s", t->err.message);
    return false;
}

/* Packed memory ends as read-only. */
static bool pack(check_state *s, const check_case *c, attempt *t, guarded *packed)
{
    t->call.packed = packed->data;
    if (!t->impl->pack || !place(s, c, t) || !step(s, c, t, "pack", call_pack))
        return false;
    if (t->far && far_fetch(packed, &t->err) != TN_OK) {
        check_fail(s, c, "pack: %s", t->err.message);
        return false;
    }
    guarded_protect(packed);
    return true;
}

/* What the host would do: plan, pack, provide scratch. Scratch is filled by the guard's pattern. It and packed memory
 * are 64-byte aligned, whatever the placement. */
static bool prepare(check_state *s, const check_case *c, attempt *t, placement where)
{
    enum { ALIGN = 64 };
    placement aligned = where == PLACE_SHIFTED ? PLACE_LEFT : where;
    t->plan = (tn_plan){.size = sizeof t->plan, .threads = tn_thread_count(), .max_tokens = attempt_tokens(c)};
    t->may_decline = t->far;
    if (!place(s, c, t) || !step(s, c, t, "plan", call_plan))
        return false;
    t->may_decline = false;
    t->call.plan = &t->plan;
    if (t->plan.packed_bytes) {
        size_t bytes = (t->plan.packed_bytes + ALIGN - 1) / ALIGN * ALIGN;
        if (!pack(s, c, t, add_buffer(t, aligned, bytes, ALIGN, "packed memory", 0)))
            return false;
    }
    size_t scratch = t->call.grads ? t->plan.backward_scratch_bytes : t->plan.scratch_bytes;
    if (scratch) {
        size_t bytes = (scratch + ALIGN - 1) / ALIGN * ALIGN;
        t->call.scratch = add_buffer(t, aligned, bytes, ALIGN, "scratch", 0)->data;
    }
    return place(s, c, t);
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

static attempt *attempt_new(const check_case *c, const tn_impl *impl)
{
    attempt *t = calloc(1, sizeof *t);
    if (!t) {
        fprintf(stderr, "check_kernels: out of memory\n");
        exit(6);
    }
    t->call = c->call;
    t->site = c->site;
    t->grads = c->grads;
    t->impl = impl;
    t->call.site = &t->site;
    return t;
}

/* Was nothing written but results? */
static bool rest_intact(check_state *s, const check_case *c, const attempt *t)
{
    for (size_t i = 0; i < t->buffer_count; i++)
        if (!guarded_intact(&t->buffers[i])) {
            check_fail(s, c, "wrote beside %s %d", t->buffers[i].name, t->buffers[i].index);
            return false;
        }
    for (size_t i = 0; i < t->result_count; i++)
        if (t->results[i].memory && !gaps_untouched(t->results[i].tensor, t->results[i].memory)) {
            check_fail(s, c, "wrote between the rows of %s", t->results[i].name);
            return false;
        }
    return true;
}

/* Everything back from the device. */
static bool fetch(check_state *s, const check_case *c, attempt *t)
{
    const guarded *changed;
    if (far_fetch_all(t, &changed, &t->err) != TN_OK)
        check_fail(s, c, "%s", t->err.message);
    else if (changed)
        check_fail(s, c, "wrote to %s %d, or beside it, which is read-only", changed->name, changed->index);
    else
        return true;
    return false;
}

/* The device's own operations: whether it has them, and then the call. Only gradients may be declined in the call. */
static bool perform_far_eager(check_state *s, const check_case *c, attempt *t)
{
    t->may_decline = true;
    if (!step(s, c, t, "supports", call_far_supports))
        return false;
    t->may_decline = t->call.grads != NULL;
    return place(s, c, t) && step(s, c, t, t->call.grads ? "backward" : "forward", call_far_eager);
}

static bool perform(check_state *s, const check_case *c, attempt *t, placement where)
{
    if (s->by == BY_DEVICE_EAGER)
        return perform_far_eager(s, c, t);
    bool backward = t->call.grads != NULL;
    return prepare(s, c, t, where) &&
           step(s, c, t, backward ? "backward" : "forward", backward ? call_backward : call_forward);
}

attempt *attempt_run(check_state *s, const check_case *c, const tn_impl *impl, placement where, bool backward)
{
    attempt *t = attempt_new(c, impl);
    t->far = s->by != BY_CPU;
    t->call.queue = t->far ? far_queue() : NULL;
    copy_params(t, c, where);
    if (backward)
        copy_gradients(t, c, where);
    else
        copy_tensors(t, c, where);
    bool good = perform(s, c, t, where) && (!t->far || fetch(s, c, t)) && rest_intact(s, c, t);
    s->group_runs += good;
    if (good)
        return t;
    attempt_free(t);
    return NULL;
}

attempt *attempt_eager(check_state *s, check_case *c, const tn_impl *impl, bool backward)
{
    attempt *t = attempt_new(c, impl);
    copy_params(t, c, PLACE_LEFT);
    if (backward)
        copy_gradients(t, c, PLACE_LEFT);
    else
        copy_tensors(t, c, PLACE_LEFT);
    t->status = host_eager(&t->call, &t->err);
    if (t->status == TN_OK)
        return t;
    if (t->status < 0)
        check_fail(s, c, "eager returned %d: %s", t->status, t->err.message);
    attempt_free(t);
    return NULL;
}
