/* Performing operations: a bound kernel's forward, the device's eager implementation, and the contracts that eager mode
 * composes from others (MLP, MOE_BLOCK). */
#include "graph/run.h"

#include <string.h>

/* What a composition works with. parts NULL: every step is eager, its parameters taken from the outer site. */
typedef struct composer {
    const tn_device *device;
    arena *arena;
    graph_site *const *parts;
    const tn_call *call;
    tn_error *err;
} composer;

#define NO_ROLE TN_ROLE_MAX

tn_status run_step(arena *a, const tn_call *call, size_t scratch_bytes, tn_status (*step)(const tn_call *, tn_error *),
                   tn_error *err)
{
    size_t mark = arena_mark(a);
    tn_call with_scratch = *call;
    tn_status status = TN_OK;
    if (scratch_bytes > 0)
        status = arena_take(a, scratch_bytes, &with_scratch.scratch, err);
    if (status == TN_OK && !a->measuring)
        status = step(&with_scratch, err);
    arena_release(a, mark);
    return status;
}

static tn_status take_like(const composer *c, int64_t rows, int64_t width, tn_tensor *out)
{
    const tn_tensor *x = &c->call->in[0];
    void *data = NULL;
    tn_status status = arena_take(c->arena, (size_t)(rows * width) * tn_dtype_size(x->dtype), &data, c->err);
    *out = tn_tensor_dense(data, x->dtype, 2, (int64_t[]){rows, width});
    return status;
}

/* One product: through the part's own site where there is one, else eagerly with the outer site's parameters. */
static tn_status step_linear(const composer *c, int part, tn_role weight, tn_role bias, const tn_tensor *x,
                             const tn_tensor *y)
{
    tn_call call = {.size = sizeof call, .op = TN_OP_LINEAR, .in_count = 1, .out_count = 1};
    call.in[0] = *x;
    call.out[0] = *y;
    if (c->parts && c->parts[part]) {
        call.site = &c->parts[part]->site;
        return run_bound_call(c->device, c->arena, &c->parts[part]->bound, &call, c->err);
    }
    const tn_site *outer = c->call->site;
    tn_site site = {.size = sizeof site,
                    .op = TN_OP_LINEAR,
                    .path = outer->path,
                    .class_name = "Linear",
                    .model_type = outer->model_type};
    site.meaning[TN_AXIS_DTYPE] = outer->meaning[TN_AXIS_DTYPE];
    site.param[TN_ROLE_WEIGHT] = outer->param[weight];
    if (bias != NO_ROLE)
        site.param[TN_ROLE_BIAS] = outer->param[bias];
    site.features = site.param[TN_ROLE_BIAS].count > 0 ? TN_HAS_BIAS : 0;
    site.dim[TN_DIM_HIDDEN] = x->shape[1];
    site.dim[TN_DIM_OUT] = y->shape[1];
    call.site = &site;
    return run_bound_call(c->device, c->arena, NULL, &call, c->err);
}

static tn_status step_glu(const composer *c, const tn_tensor *gate, const tn_tensor *up, const tn_tensor *out)
{
    tn_call call = {.size = sizeof call, .op = TN_OP_GLU, .site = c->call->site, .in_count = 2, .out_count = 1};
    call.in[0] = *gate;
    call.in[1] = *up;
    call.out[0] = *out;
    return run_bound_call(c->device, c->arena, NULL, &call, c->err);
}

static tn_tensor columns(const tn_tensor *t, int64_t begin, int64_t count)
{
    tn_tensor view = *t;
    view.shape[1] = count;
    if (t->data)
        view.data = (char *)t->data + (size_t)begin * tn_dtype_size(t->dtype);
    return view;
}

static tn_status compose_mlp(const composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0], *y = &c->call->out[0];
    int64_t tokens = x->shape[0], inter = site->dim[TN_DIM_INTER];
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    size_t mark = arena_mark(c->arena);
    tn_tensor both, gate, up;
    tn_status status = take_like(c, tokens, 2 * inter, &both);
    if (layout == TN_LAYOUT_SPLIT) {
        /* Two dense halves: products with strided results are slower. */
        gate = tn_tensor_dense(both.data, both.dtype, 2, (int64_t[]){tokens, inter});
        up = gate;
        if (both.data)
            up.data = (char *)both.data + (size_t)(tokens * inter) * tn_dtype_size(both.dtype);
        if (status == TN_OK)
            status = step_linear(c, GRAPH_PART_GATE, TN_ROLE_GATE, TN_ROLE_GATE_BIAS, x, &gate);
        if (status == TN_OK)
            status = step_linear(c, GRAPH_PART_UP, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &up);
    } else {
        gate = columns(&both, layout == TN_LAYOUT_GATE_UP ? 0 : inter, inter);
        up = columns(&both, layout == TN_LAYOUT_GATE_UP ? inter : 0, inter);
        if (status == TN_OK)
            status = step_linear(c, GRAPH_PART_GATE, TN_ROLE_GATE_UP, TN_ROLE_GATE_UP_BIAS, x, &both);
    }
    if (status == TN_OK)
        status = step_glu(c, &gate, &up, &gate);
    if (status == TN_OK)
        status = step_linear(c, GRAPH_PART_DOWN, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS, &gate, y);
    arena_release(c->arena, mark);
    return status;
}

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

/* y += shared expert(x), times sigmoid(shared gate(x)) where the model has one. */
static tn_status compose_shared(const composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0], *y = &c->call->out[0];
    graph_site *shared = c->parts ? c->parts[GRAPH_PART_SHARED] : NULL;
    tn_tensor z;
    tn_status status = take_like(c, x->shape[0], x->shape[1], &z);
    tn_call mlp = {.size = sizeof mlp, .op = TN_OP_MLP, .in_count = 1, .out_count = 1};
    mlp.in[0] = *x;
    mlp.out[0] = z;
    tn_site inner = *site;
    inner.op = TN_OP_MLP;
    inner.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
    inner.features = 0;
    inner.dim[TN_DIM_INTER] = site->dim[TN_DIM_SHARED_INTER];
    inner.param[TN_ROLE_GATE] = site->param[TN_ROLE_SHARED_GATE];
    inner.param[TN_ROLE_UP] = site->param[TN_ROLE_SHARED_UP];
    inner.param[TN_ROLE_DOWN] = site->param[TN_ROLE_SHARED_DOWN];
    mlp.site = shared ? &shared->site : &inner;
    if (status == TN_OK && shared)
        status = run_site_call(c->device, c->arena, shared, &mlp, c->err);
    else if (status == TN_OK)
        status = run_eager_call(c->device, c->arena, &mlp, c->err);
    if (status == TN_OK && (site->features & TN_HAS_SHARED_GATE)) {
        tn_tensor gate;
        status = take_like(c, x->shape[0], 1, &gate);
        if (status == TN_OK)
            status = step_linear(c, GRAPH_PART_SHARED_GATE, TN_ROLE_SHARED_EXPERT_GATE, NO_ROLE, x, &gate);
        /* sigmoid(gate) * z is a GLU whose gate is the same for all features of a token. */
        gate.shape[1] = z.shape[1];
        gate.stride[1] = 0;
        tn_call scale = {.size = sizeof scale, .op = TN_OP_GLU, .site = &inner, .in_count = 2, .out_count = 1};
        inner.meaning[TN_AXIS_ACT] = TN_ACT_SIGMOID;
        scale.in[0] = gate;
        scale.in[1] = z;
        scale.out[0] = z;
        if (status == TN_OK)
            status = run_bound_call(c->device, c->arena, NULL, &scale, c->err);
    }
    tn_call add = {.size = sizeof add, .op = TN_OP_ADD, .site = site, .in_count = 2, .out_count = 1};
    add.in[0] = *y;
    add.in[1] = z;
    add.out[0] = *y;
    return status == TN_OK ? run_bound_call(c->device, c->arena, NULL, &add, c->err) : status;
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
    if (status == TN_OK)
        status = step_inner(c, GRAPH_PART_ROUTE, &route);
    if (status == TN_OK)
        status = step_inner(c, GRAPH_PART_EXPERTS, &apply);
    if (status == TN_OK && (site->features & TN_HAS_SHARED_EXPERT))
        status = compose_shared(c);
    arena_release(c->arena, mark);
    return status;
}

static tn_status eager_with_parts(const tn_device *device, arena *a, graph_site *const *parts, const tn_call *call,
                                  tn_error *err)
{
    const composer c = {device, a, parts, call, err};
    if (call->op == TN_OP_MLP)
        return compose_mlp(&c);
    if (call->op == TN_OP_MOE_BLOCK)
        return compose_moe(&c);
    return run_step(a, call, device->scratch(call), device->eager, err);
}

tn_status run_eager_call(const tn_device *device, arena *a, const tn_call *call, tn_error *err)
{
    return eager_with_parts(device, a, NULL, call, err);
}

tn_status run_bound_call(const tn_device *device, arena *a, const graph_binding *bound, const tn_call *call,
                         tn_error *err)
{
    if (!bound || !bound->impl)
        return eager_with_parts(device, a, NULL, call, err);
    tn_call with_plan = *call;
    with_plan.plan = &bound->plan;
    with_plan.packed = bound->packed;
    int32_t limit = threads_limit(bound->plan.threads);
    tn_status status = run_step(a, &with_plan, bound->plan.scratch_bytes, bound->impl->forward, err);
    threads_limit(limit);
    return status;
}

tn_status run_site_call(const tn_device *device, arena *a, const graph_site *site, const tn_call *call, tn_error *err)
{
    if (site->bound.impl)
        return run_bound_call(device, a, &site->bound, call, err);
    return eager_with_parts(device, a, site->part, call, err);
}
