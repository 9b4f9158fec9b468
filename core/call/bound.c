/* Sites that are called again and again: parameters that can be pointed anew, scratch and a plan that are kept. Calls
 * hold the model's lock as readers. Pointing, applying, and a call that may take a kernel off the model (the first one
 * of its size, bind/shadow.h) are alone. */
#include "base/structs.h"
#include "base/tensor.h"
#include "call/site.h"
#include "check/compare.h"
#include "check/unclear.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "run/run.h"
#include "select/first_calls.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What calls of one thread at a time use again. */
typedef struct bound_scratch {
    arena memory;
    const tn_impl *impl; /* that the plan is of; NULL: none                                       */
    tn_plan plan, applied;
} bound_scratch;

struct tn_bound {
    graph_site own; /* place's, with parameters of its own                                        */
    tn_model *model;
    const graph_site *place; /* in the model's graph                                              */
    tn_tensor *tensors;      /* of all parameters                                                 */
    bound_scratch kept;
    int64_t expected; /* tokens                                                                   */
    atomic_bool taken;
    atomic_uint forks; /* model_forks when taken was last known to be somebody's here             */
};

/* ---- the lock ------------------------------------------------------------------------------------------------- */

/* In the child of a fork nobody is in a call. */
static void look_for_fork(tn_bound *b)
{
    unsigned now = model_forks(), before = atomic_load_explicit(&b->forks, memory_order_acquire);
    if (before != now && atomic_compare_exchange_strong(&b->forks, &before, now))
        atomic_store(&b->taken, false);
}

/* ---- scratch ---------------------------------------------------------------------------------------------------- */

static void scratch_close(bound_scratch *s)
{
    if (s->memory.device)
        arena_close(&s->memory);
}

/* The plan of what is applied for so many tokens: the one that was made for as many or more, or a new one. */
static tn_status plan_call(const tn_bound *b, const graph_binding *applied, bound_scratch *s, int64_t tokens,
                           graph_binding *bound, tn_error *err)
{
    *bound = *applied;
    if (!applied->impl)
        return TN_OK;
    if (s->impl == applied->impl && s->plan.max_tokens >= tokens &&
        !memcmp(&s->applied, &applied->plan, sizeof s->applied)) {
        bound->plan = s->plan;
        return TN_OK;
    }
    int64_t most = tokens > b->expected ? tokens : b->expected;
    s->impl = NULL;
    tn_status status = site_plan(applied, &b->own.site, most, bound, NULL);
    if (status != TN_OK)
        status = site_plan(applied, &b->own.site, tokens, bound, err);
    if (status != TN_OK)
        return status;
    s->impl = applied->impl;
    s->plan = bound->plan;
    s->applied = applied->plan;
    return TN_OK;
}

static tn_status perform(const device *device, arena *a, const graph_binding *bound, const tn_call *call, tn_error *err)
{
    return call->grads ? run_bound_backward(device, a, bound, call, err) : run_bound_call(device, a, bound, call, err);
}

/* With the memory that the call needs, which is kept. */
static tn_status perform_with(tn_bound *b, bound_scratch *s, const graph_binding *applied, const tn_call *call,
                              tn_error *err)
{
    const device *device = b->model->target.device;
    graph_binding bound;
    arena measuring = {0};
    tn_status status = plan_call(b, applied, s, op_tokens(call), &bound, err);
    if (status == TN_OK)
        status = arena_init(&measuring, device, 0, err);
    if (status == TN_OK)
        status = perform(device, &measuring, &bound, call, err);
    if (status == TN_OK && (!s->memory.device || s->memory.size < measuring.peak)) {
        scratch_close(s);
        s->memory = (arena){0};
        status = arena_init(&s->memory, device, measuring.peak > 0 ? measuring.peak : 64, err);
        if (status != TN_OK)
            s->memory = (arena){0};
    }
    if (status != TN_OK)
        return status;
    s->memory.used = 0;
    status = perform(device, &s->memory, &bound, call, err);
    return status == TN_OK ? device_sync(device, err) : status;
}

static tn_status perform_call(tn_bound *b, const graph_binding *applied, const tn_call *call, tn_error *err)
{
    if (!atomic_exchange(&b->taken, true)) {
        tn_status status = perform_with(b, &b->kept, applied, call, err);
        atomic_store(&b->taken, false);
        return status;
    }
    bound_scratch own = {0};
    tn_status status = perform_with(b, &own, applied, call, err);
    scratch_close(&own);
    return status;
}

/* Must the call be compared with eager? */
static bool is_watched(const graph_binding *applied, const tn_call *call)
{
    return applied->shadow && applied->impl && !call->grads && applied->first &&
           !first_calls_is_known(applied->first, call);
}

/* Checks the call, and performs it with what the site has now. */
static tn_status perform_locked(tn_bound *b, const tn_call *call, tn_error *err)
{
    model_calls_begin(b->model, false);
    tn_status status = op_check_call(call, err);
    bool watched = status == TN_OK && is_watched(&b->place->bound, call);
    if (status == TN_OK && !watched) {
        graph_binding applied = b->place->bound;
        applied.shadow = NULL;
        status = perform_call(b, &applied, call, err);
    }
    model_calls_end(b->model);
    if (!watched)
        return status;
    model_calls_begin(b->model, true);
    status = perform_call(b, &b->place->bound, call, err);
    model_calls_end(b->model);
    return status;
}

/* ---- the interface ------------------------------------------------------------------------------------------------
 */

static tn_bound *no_memory(tn_bound *b, const char *path, tn_error *err)
{
    tn_bound_close(b);
    tn_fail(err, TN_E_MEMORY, path, "out of memory");
    return NULL;
}

tn_bound *tn_site_bind(tn_model *model, const char *path, tn_op op, int64_t tokens, tn_error *err)
{
    const graph_site *place = site_find(model, path, op, err);
    int64_t count = 0, used = 0;
    if (!place)
        return NULL;
    if (tokens < 0) {
        tn_fail(err, TN_E_USAGE, path, "%lld tokens are none", (long long)tokens);
        return NULL;
    }
    for (int role = 0; role < TN_ROLE_MAX; role++)
        count += place->site.param[role].count;
    tn_bound *b = calloc(1, sizeof *b);
    if (!b || !(b->tensors = calloc((size_t)count + 1, sizeof *b->tensors)))
        return no_memory(b, path, err);
    b->model = model;
    b->place = place;
    b->expected = tokens;
    b->own.site = place->site;
    b->own.index = place->index;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &b->own.site.param[role];
        if (p->count > 0)
            memcpy(&b->tensors[used], p->tensors, (size_t)p->count * sizeof *p->tensors);
        p->tensors = p->count > 0 ? &b->tensors[used] : p->tensors;
        used += p->count;
    }
    atomic_store(&b->forks, model_forks());
    return b;
}

void tn_bound_close(tn_bound *b)
{
    if (!b)
        return;
    scratch_close(&b->kept);
    free(b->tensors);
    free(b);
}

const tn_site *tn_bound_site(const tn_bound *bound)
{
    return bound ? &bound->own.site : NULL;
}

const char *tn_bound_kernel(const tn_bound *bound, int64_t tokens)
{
    if (!bound)
        return NULL;
    model_calls_begin(bound->model, false);
    const graph_binding *has = &bound->place->bound;
    const char *id = has->impl && !(has->not_at >> graph_size_of(tokens) & 1) ? has->kernel->kernel.id : NULL;
    model_calls_end(bound->model);
    return id;
}

static bool points(const tn_tensor *now, const tn_tensor *t)
{
    bool layout = t->dtype == now->dtype && t->ndim == now->ndim;
    for (int32_t i = 0; layout && i < t->ndim; i++)
        layout = t->shape[i] == now->shape[i] && (t->shape[i] < 2 || t->stride[i] == now->stride[i]);
    return layout && t->data && (uintptr_t)t->data % (tn_dtype_size(t->dtype) ? tn_dtype_size(t->dtype) : 1) == 0;
}

tn_status tn_bound_point(tn_bound *bound, tn_role role, const tn_tensor *tensors, int64_t count, tn_error *err)
{
    if (!bound || !tensors)
        return structs_missing(!bound ? "bound" : "tensors", err);
    const char *path = bound->own.site.path;
    if ((int)role < 0 || role >= TN_ROLE_MAX || count < 1 || bound->own.site.param[role].count != count)
        return tn_fail(err, TN_E_USAGE, path, "it has not %lld tensors of role %d", (long long)count, (int)role);
    tn_param *p = &bound->own.site.param[role];
    tn_status status = TN_OK;
    look_for_fork(bound);
    model_calls_begin(bound->model, true);
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        if (!points(&p->tensors[i], &tensors[i]))
            status = tn_fail(err, TN_E_USAGE, path,
                             "%s %lld: its type, shape or strides are others than before, or it is not aligned",
                             tn_role_name(role), (long long)i);
    if (status == TN_OK && bound->place->bound.packed)
        status = tn_fail(err, TN_E_USAGE, path,
                         "kernel %s keeps a packed copy of its weights; borrow the model with "
                         "weights_change",
                         bound->place->bound.kernel->kernel.id);
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        bound->tensors[p->tensors - bound->tensors + i].data = tensors[i].data;
    model_calls_end(bound->model);
    return status;
}

tn_status tn_bound_forward(tn_bound *bound, const tn_tensor *in, int32_t in_count, const tn_tensor *out,
                           int32_t out_count, tn_error *err)
{
    tn_call call;
    if (!bound)
        return structs_missing("bound", err);
    look_for_fork(bound);
    tn_status status = site_fill_call(&call, &bound->own.site, in, in_count, out, out_count, err);
    return status == TN_OK ? perform_locked(bound, &call, err) : status;
}

tn_status tn_bound_backward(tn_bound *bound, const tn_tensor *in, int32_t in_count, const tn_grads *grads,
                            tn_error *err)
{
    tn_call call;
    tn_grads own = {0};
    if (!bound)
        return structs_missing("bound", err);
    if (!bound->model->target.training)
        return tn_fail(err, TN_E_USAGE, bound->own.site.path,
                       "gradients need a model that was opened for training (tn_model_options.training)");
    look_for_fork(bound);
    tn_status status = site_fill_call(&call, &bound->own.site, in, in_count, NULL, 0, err);
    if (status == TN_OK)
        status = site_fill_grads(&call, &own, grads, err);
    return status == TN_OK ? perform_locked(bound, &call, err) : status;
}

/* ---- comparing ----------------------------------------------------------------------------------------------------
 */

/* What has the site declares a tolerance of results, or of gradients. */
static tn_status find_ulps(const tn_bound *b, bool gradients, double *ulps, tn_error *err)
{
    model_calls_begin(b->model, false);
    const tn_impl *impl = b->place->bound.impl;
    if (impl)
        *ulps = compare_ulps(gradients ? compare_gradient_tolerance(impl) : &impl->tolerance,
                             (tn_dtype)b->own.site.meaning[TN_AXIS_DTYPE]);
    model_calls_end(b->model);
    return impl ? TN_OK : tn_fail(err, TN_E_USAGE, b->own.site.path, "no kernel has it, whose tolerance would count");
}

tn_status tn_bound_compare(const tn_bound *bound, const tn_tensor *in, int32_t in_count, const tn_tensor *out,
                           const tn_tensor *reference, int32_t out_count, double *units, tn_error *err)
{
    tn_call call, right;
    bool *skip = NULL;
    double ulps = 0;
    if (!bound || !units)
        return structs_missing(!bound ? "bound" : "units", err);
    tn_status status = site_fill_call(&call, &bound->own.site, in, in_count, out, out_count, err);
    if (status == TN_OK)
        status = site_fill_call(&right, &bound->own.site, in, in_count, reference, out_count, err);
    if (status == TN_OK)
        status = op_check_call(&call, err);
    if (status == TN_OK)
        status = op_check_call(&right, err);
    if (status == TN_OK)
        status = find_ulps(bound, false, &ulps, err);
    if (status == TN_OK)
        status = unclear_find(&right, &skip, err);
    compare_figures figures = {0};
    if (status == TN_OK)
        compare_call(&right, &call, ulps, skip, &figures);
    *units = figures.worst;
    free(skip);
    return status;
}

/* Have both the same gradients? */
static tn_status match_grads(const tn_bound *b, const tn_grads *a, const tn_grads *with, tn_error *err)
{
    bool same = true;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        same = same && !a->in[i].data == !with->in[i].data;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        same = same && a->param[role].count == with->param[role].count;
    return same ? TN_OK : tn_fail(err, TN_E_USAGE, b->own.site.path, "grads and reference have different gradients");
}

tn_status tn_bound_compare_grads(const tn_bound *bound, const tn_tensor *in, int32_t in_count, const tn_grads *grads,
                                 const tn_grads *reference, double *units, tn_error *err)
{
    tn_call call, right;
    tn_grads own = {0}, like = {0};
    double ulps = 0;
    bool *skip = NULL;
    if (!bound || !units)
        return structs_missing(!bound ? "bound" : "units", err);
    tn_status status = site_fill_call(&call, &bound->own.site, in, in_count, NULL, 0, err);
    right = call;
    if (status == TN_OK)
        status = site_fill_grads(&call, &own, grads, err);
    if (status == TN_OK)
        status = site_fill_grads(&right, &like, reference, err);
    if (status == TN_OK)
        status = op_check_call(&call, err);
    if (status == TN_OK)
        status = op_check_call(&right, err);
    if (status == TN_OK)
        status = match_grads(bound, &own, &like, err);
    if (status == TN_OK)
        status = find_ulps(bound, true, &ulps, err);
    if (status == TN_OK)
        status = unclear_find(&right, &skip, err);
    compare_figures figures = {0};
    if (status == TN_OK)
        compare_gradients(&right, &own, ulps, skip, &figures, NULL);
    *units = figures.worst;
    free(skip);
    return status;
}

tn_status tn_bound_unclear(const tn_bound *bound, const tn_tensor *in, int32_t in_count, bool *unclear, int64_t count,
                           tn_error *err)
{
    tn_call call;
    tn_grads own = {0}; /* a call for gradients has no results that would have to be there              */
    const tn_grads none = {.size = sizeof none};
    bool *found = NULL;
    if (!bound || !unclear)
        return structs_missing(!bound ? "bound" : "unclear", err);
    tn_status status = site_fill_call(&call, &bound->own.site, in, in_count, NULL, 0, err);
    if (status == TN_OK)
        status = site_fill_grads(&call, &own, &none, err);
    if (status == TN_OK)
        status = op_check_call(&call, err);
    const tn_tensor *x = &call.in[0];
    int64_t rows = 1;
    for (int32_t i = 0; status == TN_OK && i + 1 < x->ndim; i++)
        rows *= x->shape[i];
    if (status == TN_OK && rows != count)
        status = tn_fail(err, TN_E_USAGE, bound->own.site.path, "the call has %lld rows, and unclear %lld flags",
                         (long long)rows, (long long)count);
    if (status == TN_OK)
        status = unclear_find(&call, &found, err);
    for (int64_t i = 0; status == TN_OK && i < rows; i++)
        unclear[i] = found && found[i];
    free(found);
    return status;
}
