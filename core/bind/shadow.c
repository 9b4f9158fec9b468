/* Shadow: calls of applied kernels are performed by eager as well, on the live data: the first of each size, before its
 * result is used, and others that are drawn at random. Eager comes first, into memory of its own, because kernels may
 * work in place. */
#include "bind/shadow.h"

#include "base/notices.h"
#include "base/tensor.h"
#include "base/text.h"
#include "bind/apply.h"
#include "check/callfile.h"
#include "check/compare.h"
#include "check/unclear.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "run/run.h"
#include "select/first_calls.h"

#include <stdlib.h>
#include <string.h>

enum { PATH = 4096 };

struct apply_shadow {
    run_shadow hook; /* first: what bindings point to                                              */
    apply_target *target;
    double fraction; /* of the calls; 0: only the first of each size                                 */
    char *prefix;
    uint64_t calls[]; /* by site                                                                   */
};

/* ---- which calls ------------------------------------------------------------------------------------------ */

/* SplitMix64: one number for each call of each site, the same in every run. */
static double draw(uint64_t site, uint64_t call)
{
    uint64_t x = (site << 40 ^ call) * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0x2545f4914f6cdd1d);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

static bool is_drawn(struct apply_shadow *s, const tn_call *call)
{
    const graph *g = s->target->graph;
    if (s->fraction <= 0)
        return false;
    const graph_site *site = (const graph_site *)(const void *)call->site; /* its first member          */
    if (site->index >= g->site_count || &g->sites[site->index]->site != call->site)
        return false;
    return draw(site->index, s->calls[site->index]++) < s->fraction;
}

/* ---- one comparison --------------------------------------------------------------------------------------- */

/* What is kept of a call. */
typedef struct kept {
    tn_call eager; /* outputs in memory of its own                                                  */
    tn_call given; /* the call with its inputs as they were                                         */
    bool *skip;
    void *memory;
} kept;

static void copy_tensor(const tn_tensor *from, const tn_tensor *to)
{
    int64_t width = from->ndim > 0 ? from->shape[from->ndim - 1] : 1;
    int64_t rows = width > 0 ? tn_tensor_count(from) / width : 0;
    for (int64_t row = 0; row < rows; row++)
        memcpy((char *)(uintptr_t)tensor_row(to, row), tensor_row(from, row),
               (size_t)width * tn_dtype_size(from->dtype));
}

/* Is the input's memory that of an output, so that the kernel will overwrite it? */
static bool is_overwritten(const tn_call *call, int input)
{
    for (int i = 0; i < call->out_count; i++)
        if (call->in[input].data && call->in[input].data == call->out[i].data)
            return true;
    return false;
}

/* Places the outputs of eager and copies of what will be overwritten behind base; NULL: counts only. */
static size_t place(kept *k, const tn_call *call, char *base)
{
    size_t used = 0;
    for (int i = 0; i < call->out_count; i++) {
        const tn_tensor *t = &call->out[i];
        k->eager.out[i] = tn_tensor_dense(base && t->data ? base + used : NULL, t->dtype, t->ndim, t->shape);
        used += tensor_padded_bytes(t);
    }
    for (int i = 0; i < call->in_count; i++) {
        const tn_tensor *t = &call->in[i];
        if (!is_overwritten(call, i))
            continue;
        k->given.in[i] = tn_tensor_dense(base ? base + used : NULL, t->dtype, t->ndim, t->shape);
        if (base)
            copy_tensor(t, &k->given.in[i]);
        k->eager.in[i] = k->given.in[i];
        used += tensor_padded_bytes(t);
    }
    return used;
}

/* Eager's results, and where rounding decides. */
static tn_status keep_call(kept *k, const device *device, const tn_call *call, tn_error *err)
{
    *k = (kept){.eager = *call, .given = *call};
    int32_t outs = 0;
    while (outs < call->out_count && call->out[outs].data) /* unwanted ones are the last ones          */
        outs++;
    k->eager.out_count = k->given.out_count = outs;
    size_t bytes = place(k, call, NULL);
    k->memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!k->memory)
        return tn_fail(err, TN_E_MEMORY, call->site->path,
                       "out of memory to compare a call of its kernel with eager; free some memory");
    place(k, call, k->memory);
    tn_status status = unclear_find(call, &k->skip, err);
    return status == TN_OK ? run_alone(device, NULL, NULL, &k->eager, err) : status;
}

static void kept_close(kept *k)
{
    free(k->memory);
    free(k->skip);
}

/* ---- a wrong one ------------------------------------------------------------------------------------------ */

/* Where the call went; "" when there is none, or why it could not be written. */
static void write_call(const struct apply_shadow *s, const registry_kernel *kernel, const kept *k,
                       const compare_figures *figures, int32_t threads, char *text, size_t size)
{
    char path[PATH];
    tn_error why = TN_ERROR_INIT;
    text[0] = '\0';
    if (!s->prefix)
        return;
    text_cut(path, sizeof path, "%s-%s.safetensors", s->prefix, kernel->kernel.id);
    const callfile_facts facts = {kernel->kernel.id, kernel->file, figures->detail, figures->worst, threads};
    if (callfile_write(path, &facts, &k->given, &k->eager, &why) == TN_OK)
        text_cut(text, size, "; the call is in %s: tenon check %s --replay %s", path, kernel->file, path);
    else
        text_cut(text, size, "; the call could not be written: %s: %s", why.where, why.message);
}

/* "7 tokens", "1 token with 300 keys" */
static void name_size(const tn_call *call, char *text, size_t size)
{
    int64_t tokens = op_tokens(call);
    size_t used = text_cut(text, size, "%lld token%s", (long long)tokens, tokens == 1 ? "" : "s");
    if (call->op == TN_OP_ATTENTION)
        text_cut(text + used, size - used, " with %lld keys", (long long)call->in[1].shape[1]);
}

/* Eager's results stand, and the kernel goes. own: a copy of what was bound. */
static void turn_off(const struct apply_shadow *s, const graph_binding *own, const tn_call *call, const kept *k,
                     const compare_figures *figures, double ulps)
{
    const registry_kernel *kernel = own->kernel;
    char where[PATH + 256], with[64], reason[320];
    for (int i = 0; i < k->eager.out_count; i++)
        copy_tensor(&k->eager.out[i], &call->out[i]);
    write_call(s, kernel, k, figures, own->plan.threads, where, sizeof where);
    name_size(call, with, sizeof with);
    text_cut(reason, sizeof reason, "wrong in an earlier run at %s with %s: %s", call->site->path, with,
             figures->detail);
    first_calls_failed(s->target, kernel, reason);
    apply_take_off(s->target, kernel);
    notices_add("%s is wrong at %s with %s: %s, %.3g times the tolerance of %g ulps; it is taken off, and results "
                "are eager's from here on%s",
                kernel->kernel.id, call->site->path, with, figures->detail, figures->worst, ulps, where);
}

static tn_status compare(struct apply_shadow *s, const device *device, arena *a, const graph_binding *bound,
                         const tn_call *call, tn_error *err)
{
    const graph_binding own = *bound; /* what is taken off is gone                                  */
    kept k;
    tn_status status = keep_call(&k, device, call, err);
    if (status == TN_OK)
        status = run_kernel_call(device, a, &own, call, err);
    if (status == TN_OK)
        status = device_sync(device, err);
    if (status == TN_OK) {
        compare_figures figures = {0};
        double ulps = compare_ulps(&own.impl->tolerance, (tn_dtype)call->site->meaning[TN_AXIS_DTYPE]);
        compare_call(&k.eager, &k.given, ulps, k.skip, &figures);
        if (figures.worst > 1)
            turn_off(s, &own, call, &k, &figures, ulps);
        else if (own.first)
            first_calls_passed(s->target, own.first, call);
    }
    kept_close(&k);
    return status;
}

static tn_status perform(run_shadow *hook, const device *device, arena *a, const graph_binding *bound,
                         const tn_call *call, tn_error *err)
{
    struct apply_shadow *s = (struct apply_shadow *)(void *)hook;
    bool drawn = is_drawn(s, call), first = bound->first && first_calls_is_new(bound->first, call);
    return drawn || first ? compare(s, device, a, bound, call, err) : run_kernel_call(device, a, bound, call, err);
}

/* ---- on and off ------------------------------------------------------------------------------------------- */

void shadow_unbind(apply_target *target)
{
    for (size_t i = 0; i < target->graph->site_count; i++)
        target->graph->sites[i]->bound.shadow = NULL;
}

void shadow_bind(apply_target *target)
{
    struct apply_shadow *s = target->shadow;
    shadow_unbind(target);
    for (size_t i = 0; s && i < target->graph->site_count; i++) {
        graph_binding *bound = &target->graph->sites[i]->bound;
        if (bound->impl && target->device->ops->host_memory && (s->fraction > 0 || bound->first))
            bound->shadow = &s->hook;
    }
}

run_shadow *shadow_hook(const apply_target *target)
{
    return &target->shadow->hook;
}

tn_status shadow_open(apply_target *target, tn_error *err)
{
    struct apply_shadow *s = target->shadow;
    if (s)
        return TN_OK;
    s = calloc(1, sizeof *s + (target->graph->site_count + 1) * sizeof s->calls[0]);
    if (!s)
        return tn_fail(err, TN_E_MEMORY, "shadow", "out of memory");
    s->hook.perform = perform;
    s->target = target;
    target->shadow = s;
    return TN_OK;
}

void shadow_close(apply_target *target)
{
    struct apply_shadow *s = target->shadow;
    target->shadow = NULL;
    if (s)
        free(s->prefix);
    free(s);
}

tn_status shadow_set(apply_target *target, double fraction, const char *prefix, tn_error *err)
{
    if (!(fraction >= 0 && fraction <= 1))
        return tn_fail(err, TN_E_USAGE, "shadow", "%g is no fraction of calls; give 0 to 1", fraction);
    if (target->session_count > 0)
        return tn_fail(err, TN_E_USAGE, "shadow",
                       "cannot change while sessions of the model are open; free them first");
    if (fraction > 0 && !target->device->ops->host_memory)
        return tn_fail(err, TN_E_KERNEL, "shadow", "the results of device %s cannot be looked at here",
                       target->device->ops->name);
    char *copy = prefix ? strdup(prefix) : NULL;
    if ((prefix && !copy) || shadow_open(target, NULL) != TN_OK) {
        free(copy);
        return tn_fail(err, TN_E_MEMORY, "shadow", "out of memory");
    }
    struct apply_shadow *s = target->shadow;
    free(s->prefix);
    s->prefix = copy;
    s->fraction = fraction;
    memset(s->calls, 0, target->graph->site_count * sizeof s->calls[0]);
    shadow_bind(target);
    return TN_OK;
}
