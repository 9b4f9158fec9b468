/* Performing operations: a bound kernel's forward, the device's eager implementation, and the contracts that eager mode
 * composes from others (ADD_RMS_NORM, MLP, MOE_BLOCK). */
#include "run/compose.h"

#include "device/visit.h"
#include "op/op.h"
#include "run/guest.h"
#include "run/observe.h"
#include "run/planning.h"

#include <string.h>

tn_status run_step(arena *a, const graph_binding *bound, const tn_call *call, size_t scratch_bytes,
                   tn_status (*step)(const tn_call *, tn_error *), tn_error *err)
{
    size_t mark = arena_mark(a);
    tn_call with_scratch = *call;
    with_scratch.queue = a->device->queue;
    tn_status status = TN_OK;
    if (!bound && a->device->guest)
        status = planning_judge_device(a->device, call, scratch_bytes, err);
    if (status == TN_OK && scratch_bytes > 0)
        status = arena_take(a, scratch_bytes, &with_scratch.scratch, err);
    if (status == TN_OK && !a->measuring)
        status = a->observer ? observe_step(a, bound, &with_scratch, step, err)
                             : guest_step(a->device, bound, &with_scratch, step, err);
    arena_release(a, mark);
    return status;
}

tn_status compose_take(const composer *c, int64_t rows, int64_t width, tn_tensor *out)
{
    const tn_tensor *x = &c->call->in[0];
    void *data = NULL;
    tn_status status = arena_take(c->arena, (size_t)(rows * width) * tn_dtype_size(x->dtype), &data, c->err);
    *out = tn_tensor_dense(data, x->dtype, 2, (int64_t[]){rows, width});
    return status;
}

tn_tensor compose_columns(const tn_tensor *t, int64_t begin, int64_t count)
{
    tn_tensor view = *t;
    view.shape[1] = count;
    if (t->data)
        view.data = (char *)t->data + (size_t)begin * tn_dtype_size(t->dtype);
    return view;
}

/* ---- steps --------------------------------------------------------------------------------------- */

tn_site compose_linear_site(const composer *c, tn_role weight, tn_role bias, int64_t in, int64_t out)
{
    const tn_site *outer = c->call->site;
    tn_site site = {.size = sizeof site,
                    .op = TN_OP_LINEAR,
                    .path = outer->path,
                    .class_name = "Linear",
                    .model_type = outer->model_type};
    site.meaning[TN_AXIS_DTYPE] = outer->meaning[TN_AXIS_DTYPE];
    site.param[TN_ROLE_WEIGHT] = outer->param[weight];
    if (bias != COMPOSE_NO_ROLE)
        site.param[TN_ROLE_BIAS] = outer->param[bias];
    site.features = site.param[TN_ROLE_BIAS].count > 0 ? TN_HAS_BIAS : 0;
    site.dim[TN_DIM_HIDDEN] = in;
    site.dim[TN_DIM_OUT] = out;
    return site;
}

tn_status compose_linear(const composer *c, int part, tn_role weight, tn_role bias, const tn_tensor *x,
                         const tn_tensor *y)
{
    tn_call call = {.size = sizeof call, .op = TN_OP_LINEAR, .in_count = 1, .out_count = 1};
    call.in[0] = *x;
    call.out[0] = *y;
    if (c->parts && c->parts[part]) {
        call.site = &c->parts[part]->site;
        return run_bound_call(c->device, c->arena, &c->parts[part]->bound, &call, c->err);
    }
    tn_site site = compose_linear_site(c, weight, bias, x->shape[1], y->shape[1]);
    call.site = &site;
    return run_bound_call(c->device, c->arena, NULL, &call, c->err);
}

tn_status compose_glu(const composer *c, const tn_site *site, const tn_tensor *gate, const tn_tensor *up,
                      const tn_tensor *out)
{
    tn_call call = {.size = sizeof call, .op = TN_OP_GLU, .site = site, .in_count = 2, .out_count = 1};
    call.in[0] = *gate;
    call.in[1] = *up;
    call.out[0] = *out;
    return run_bound_call(c->device, c->arena, NULL, &call, c->err);
}

tn_status compose_act(const composer *c, const tn_site *site, const tn_tensor *x, const tn_tensor *out)
{
    tn_call call = {.size = sizeof call, .op = TN_OP_ACT, .site = site, .in_count = 1, .out_count = 1};
    call.in[0] = *x;
    call.out[0] = *out;
    return run_bound_call(c->device, c->arena, NULL, &call, c->err);
}

tn_status compose_add(const composer *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out)
{
    tn_call call = {.size = sizeof call, .op = TN_OP_ADD, .site = c->call->site, .in_count = 2, .out_count = 1};
    call.in[0] = *a;
    call.in[1] = *b;
    call.out[0] = *out;
    return run_bound_call(c->device, c->arena, NULL, &call, c->err);
}

/* ---- MLP ----------------------------------------------------------------------------------------- */

void compose_gate_up_views(const tn_site *site, const tn_tensor *both, tn_tensor *gate, tn_tensor *up)
{
    int64_t tokens = both->shape[0], inter = site->dim[TN_DIM_INTER];
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    if (layout == TN_LAYOUT_SPLIT) {
        /* Two dense halves: products with strided results are slower. */
        *gate = *up = tn_tensor_dense(both->data, both->dtype, 2, (int64_t[]){tokens, inter});
        if (both->data)
            up->data = (char *)both->data + (size_t)(tokens * inter) * tn_dtype_size(both->dtype);
    } else {
        *gate = compose_columns(both, layout == TN_LAYOUT_GATE_UP ? 0 : inter, inter);
        *up = compose_columns(both, layout == TN_LAYOUT_GATE_UP ? inter : 0, inter);
    }
}

tn_status compose_gate_up(const composer *c, const tn_tensor *both)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    if (site->meaning[TN_AXIS_LAYOUT] != TN_LAYOUT_SPLIT)
        return compose_linear(c, GRAPH_PART_GATE, TN_ROLE_GATE_UP, TN_ROLE_GATE_UP_BIAS, x, both);
    tn_tensor gate, up;
    compose_gate_up_views(site, both, &gate, &up);
    tn_status status = compose_linear(c, GRAPH_PART_GATE, TN_ROLE_GATE, TN_ROLE_GATE_BIAS, x, &gate);
    return status == TN_OK ? compose_linear(c, GRAPH_PART_UP, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &up) : status;
}

/* Without a gate: down(act(up(x))). */
static tn_status compose_up_down(const composer *c)
{
    const tn_tensor *x = &c->call->in[0];
    size_t mark = arena_mark(c->arena);
    tn_tensor p;
    tn_status status = compose_take(c, x->shape[0], c->call->site->dim[TN_DIM_INTER], &p);
    if (status == TN_OK)
        status = compose_linear(c, GRAPH_PART_UP, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &p);
    if (status == TN_OK)
        status = compose_act(c, c->call->site, &p, &p);
    if (status == TN_OK)
        status = compose_linear(c, GRAPH_PART_DOWN, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS, &p, &c->call->out[0]);
    arena_release(c->arena, mark);
    return status;
}

static tn_status compose_mlp(const composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0], *y = &c->call->out[0];
    size_t mark = arena_mark(c->arena);
    tn_tensor both, gate, up;
    tn_status status = compose_take(c, x->shape[0], 2 * site->dim[TN_DIM_INTER], &both);
    compose_gate_up_views(site, &both, &gate, &up);
    if (status == TN_OK)
        status = compose_gate_up(c, &both);
    if (status == TN_OK)
        status = compose_glu(c, site, &gate, &up, &gate);
    if (status == TN_OK)
        status = compose_linear(c, GRAPH_PART_DOWN, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS, &gate, y);
    arena_release(c->arena, mark);
    return status;
}

/* ---- MOE_BLOCK ------------------------------------------------------------------------------------- */

/* Route or experts: through the part's site, else eagerly with the outer site, which holds the same meaning. */
static tn_status step_inner(const composer *c, int part, tn_call *call)
{
    if (c->parts && c->parts[part]) {
        call->site = &c->parts[part]->site;
        return run_bound_call(c->device, c->arena, &c->parts[part]->bound, call, c->err);
    }
    call->site = c->call->site;
    return run_bound_call(c->device, c->arena, NULL, call, c->err);
}

tn_site compose_shared_site(const tn_site *block)
{
    tn_site shared = *block;
    shared.op = TN_OP_MLP;
    shared.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
    shared.features = block->features & TN_HAS_SHARED_BIAS ? TN_HAS_BIAS : 0;
    shared.dim[TN_DIM_INTER] = block->dim[TN_DIM_SHARED_INTER];
    shared.param[TN_ROLE_GATE] = block->param[TN_ROLE_SHARED_GATE];
    shared.param[TN_ROLE_UP] = block->param[TN_ROLE_SHARED_UP];
    shared.param[TN_ROLE_DOWN] = block->param[TN_ROLE_SHARED_DOWN];
    shared.param[TN_ROLE_GATE_BIAS] = block->param[TN_ROLE_SHARED_GATE_BIAS];
    shared.param[TN_ROLE_UP_BIAS] = block->param[TN_ROLE_SHARED_UP_BIAS];
    shared.param[TN_ROLE_DOWN_BIAS] = block->param[TN_ROLE_SHARED_DOWN_BIAS];
    return shared;
}

/* y += shared expert(x), times sigmoid(shared gate(x)) where the model has one. */
static tn_status compose_shared(const composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0], *y = &c->call->out[0];
    graph_site *shared = c->parts ? c->parts[GRAPH_PART_SHARED] : NULL;
    tn_tensor z;
    tn_status status = compose_take(c, x->shape[0], x->shape[1], &z);
    tn_call mlp = {.size = sizeof mlp, .op = TN_OP_MLP, .in_count = 1, .out_count = 1};
    mlp.in[0] = *x;
    mlp.out[0] = z;
    tn_site inner = compose_shared_site(site);
    mlp.site = shared ? &shared->site : &inner;
    if (status == TN_OK && shared)
        status = run_site_call(c->device, c->arena, shared, &mlp, c->err);
    else if (status == TN_OK)
        status = run_eager_call(c->device, c->arena, &mlp, c->err);
    if (status == TN_OK && (site->features & TN_HAS_SHARED_GATE)) {
        tn_tensor gate;
        status = compose_take(c, x->shape[0], 1, &gate);
        if (status == TN_OK)
            status = compose_linear(c, GRAPH_PART_SHARED_GATE, TN_ROLE_SHARED_EXPERT_GATE, COMPOSE_NO_ROLE, x, &gate);
        /* sigmoid(gate) * z is a GLU whose gate is the same for all features of a token. */
        gate.shape[1] = z.shape[1];
        gate.stride[1] = 0;
        inner.meaning[TN_AXIS_ACT] = TN_ACT_SIGMOID;
        if (status == TN_OK)
            status = compose_glu(c, &inner, &gate, &z, &z);
    }
    return status == TN_OK ? compose_add(c, y, &z, y) : status;
}

static tn_status compose_moe(const composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    int64_t shape[2] = {x->shape[0], site->dim[TN_DIM_TOP_K]};
    tn_dtype weight_dtype = site->features & TN_HAS_F32_ROUTING ? TN_F32 : x->dtype;
    size_t mark = arena_mark(c->arena);
    void *weights = NULL, *experts = NULL;
    tn_status status =
        arena_take(c->arena, (size_t)(shape[0] * shape[1]) * tn_dtype_size(weight_dtype), &weights, c->err);
    if (status == TN_OK)
        status = arena_take(c->arena, (size_t)(shape[0] * shape[1]) * sizeof(int32_t), &experts, c->err);
    tn_call route = {.size = sizeof route, .op = TN_OP_MOE_ROUTE, .in_count = 1, .out_count = 2};
    route.in[0] = *x;
    route.out[0] = tn_tensor_dense(weights, weight_dtype, 2, shape);
    route.out[1] = tn_tensor_dense(experts, TN_I32, 2, shape);
    tn_call apply = {.size = sizeof apply, .op = TN_OP_MOE_EXPERTS, .in_count = 3, .out_count = 1};
    apply.in[0] = *x;
    apply.in[1] = route.out[0];
    apply.in[2] = route.out[1];
    apply.out[0] = c->call->out[0];
    if (c->call->out_count > 1) { /* logits, where they are wanted                                */
        route.out[2] = c->call->out[1];
        route.out_count = 3;
    }
    if (status == TN_OK)
        status = step_inner(c, GRAPH_PART_ROUTE, &route);
    if (status == TN_OK)
        status = step_inner(c, GRAPH_PART_EXPERTS, &apply);
    if (status == TN_OK && (site->features & TN_HAS_SHARED_EXPERT))
        status = compose_shared(c);
    arena_release(c->arena, mark);
    return status;
}

/* h + r, then the norm of that: the sequence of the modeling files. */
static tn_status compose_add_norm(const composer *c)
{
    tn_call norm = {.size = sizeof norm, .op = TN_OP_RMS_NORM, .in_count = 1, .out_count = 1};
    norm.in[0] = c->call->out[0];
    norm.out[0] = c->call->out[1];
    tn_status status = compose_add(c, &c->call->in[0], &c->call->in[1], &c->call->out[0]);
    return status == TN_OK ? step_inner(c, GRAPH_PART_NORM, &norm) : status;
}

static tn_status eager_with_parts(const device *device, arena *a, graph_site *const *parts, const tn_call *call,
                                  tn_error *err)
{
    const composer c = {device, a, parts, call, err};
    if (call->op == TN_OP_ADD_RMS_NORM)
        return compose_add_norm(&c);
    if (call->op == TN_OP_MLP)
        return call->site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_DOWN ? compose_up_down(&c) : compose_mlp(&c);
    if (call->op == TN_OP_MOE_BLOCK)
        return compose_moe(&c);
    return run_step(a, NULL, call, device_scratch(device, call), device->ops->eager, err);
}

tn_status run_eager_call(const device *device, arena *a, const tn_call *call, tn_error *err)
{
    return eager_with_parts(device, a, NULL, call, err);
}

/* Does the kernel give every optional output that the call wants? */
static bool gives_all(const tn_impl *impl, const tn_call *call)
{
    uint32_t lacks = op_optional_outputs(call->op) & ~impl->optional_outputs;
    for (int32_t i = 0; lacks && i < call->out_count; i++)
        if ((lacks & 1u << i) && call->out[i].data)
            return false;
    return true;
}

/* Does the binding's kernel perform this call? */
static bool performs(const graph_binding *bound, const tn_call *call)
{
    return bound->impl && !(bound->not_at && (bound->not_at >> graph_size_of(op_tokens(call)) & 1)) &&
           gives_all(bound->impl, call);
}

/* With the plan and the number of threads that its scratch was sized for. */
static tn_status run_bound_step(arena *a, const graph_binding *bound, const tn_call *call, size_t scratch_bytes,
                                tn_status (*step)(const tn_call *, tn_error *), tn_error *err)
{
    tn_call with_plan = *call;
    with_plan.plan = &bound->plan;
    with_plan.packed = bound->packed;
    int32_t limit = threads_limit(bound->plan.threads);
    tn_status status = run_step(a, bound, &with_plan, scratch_bytes, step, err);
    threads_limit(limit);
    return status;
}

tn_status run_kernel_call(const device *device, arena *a, const graph_binding *bound, const tn_call *call,
                          tn_error *err)
{
    (void)device; /* the arena's                                                                    */
    return run_bound_step(a, bound, call, bound->plan.scratch_bytes, bound->impl->forward, err);
}

static tn_status perform_alone(const struct run_observer *observer, const device *device, const graph_site *site,
                               const graph_binding *bound, const tn_call *call, tn_error *err);

static tn_status perform_call(const device *device, arena *a, graph_site *const *parts, const graph_binding *bound,
                              const tn_call *call, tn_error *err)
{
    if (performs(bound, call))
        return bound->shadow && !a->measuring ? bound->shadow->perform(bound->shadow, device, a, bound, call, err)
                                              : run_kernel_call(device, a, bound, call, err);
    if (bound->alone)
        return a->measuring ? TN_OK : perform_alone(a->observer, device, NULL, NULL, call, err);
    return eager_with_parts(device, a, parts, call, err);
}

tn_status run_bound_call(const device *device, arena *a, const graph_binding *bound, const tn_call *call, tn_error *err)
{
    static const graph_binding eager;
    return perform_call(device, a, NULL, bound ? bound : &eager, call, err);
}

tn_status run_site_call(const device *device, arena *a, const graph_site *site, const tn_call *call, tn_error *err)
{
    return perform_call(device, a, site->part, &site->bound, call, err);
}

tn_status run_bound_backward(const device *device, arena *a, const graph_binding *bound, const tn_call *call,
                             tn_error *err)
{
    if (!bound || !bound->impl)
        return run_eager_backward(device, a, call, err);
    return run_bound_step(a, bound, call, bound->plan.backward_scratch_bytes, bound->impl->backward, err);
}

tn_status run_plan_for(const tn_impl *impl, const tn_site *site, const tn_plan *bound, int64_t tokens, tn_plan *plan,
                       tn_error *err)
{
    const tn_plan given = {.size = sizeof given, .threads = bound->threads, .max_tokens = tokens};
    tn_error why = TN_ERROR_INIT;
    uint64_t control = hoststate_control();
    visit outer = visit_begin("a kernel", NULL, "plan");
    *plan = given;
    bool planned = impl->plan && impl->plan(site, plan, &why) == TN_OK;
    visit_end(outer, NULL);
    hoststate_set_control(control);
    tn_status status = planned ? planning_judge(site, &given, plan, err) : TN_OK;
    if (!planned || plan->packed_bytes != bound->packed_bytes ||
        memcmp(plan->user, bound->user, sizeof plan->user) != 0)
        *plan = *bound;
    return status;
}

static tn_status perform(const device *device, arena *a, const graph_site *site, const graph_binding *bound,
                         const tn_call *call, tn_error *err)
{
    if (call->grads)
        return run_bound_backward(device, a, bound, call, err);
    return site ? run_site_call(device, a, site, call, err) : run_bound_call(device, a, bound, call, err);
}

static tn_status perform_alone(const struct run_observer *observer, const device *device, const graph_site *site,
                               const graph_binding *bound, const tn_call *call, tn_error *err)
{
    arena a;
    tn_status status = arena_init(&a, device, 0, err);
    if (status != TN_OK)
        return status;
    status = perform(device, &a, site, bound, call, err);
    size_t size = a.peak;
    arena_close(&a);
    /* Size 0 would measure again. */
    if (status == TN_OK)
        status = arena_init(&a, device, size > 0 ? size : 64, err);
    if (status != TN_OK)
        return status;
    a.observer = observer;
    bool every = guest_every(true);
    status = perform(device, &a, site, bound, call, err);
    guest_every(every);
    if (status == TN_OK)
        status = device_sync(device, err);
    arena_close(&a);
    return status;
}

tn_status run_alone(const device *device, const graph_site *site, const graph_binding *bound, const tn_call *call,
                    tn_error *err)
{
    return perform_alone(NULL, device, site, bound, call, err);
}
