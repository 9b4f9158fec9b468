/* Performing operations: a bound kernel's forward, the device's eager implementation, and the contracts that eager mode
 * composes from others (ADD_RMS_NORM, MLP, MOE_BLOCK, LORA_LINEAR). */
#include "run/compose.h"

#include "device/visit.h"
#include "op/op.h"
#include "run/guest.h"
#include "run/observe.h"
#include "run/planning.h"

#include <string.h>

/* Columns begin .. begin + count - 1 of a matrix. */
static tn_tensor columns(const tn_tensor *t, int64_t begin, int64_t count)
{
    tn_tensor view = *t;
    view.shape[1] = count;
    if (t->data)
        view.data = (char *)t->data + (size_t)begin * tn_dtype_size(t->dtype);
    return view;
}

/* ---- steps --------------------------------------------------------------------------------------- */

/* A weight of one site as that of another, with what its values need where it is quantised. */
static void lend_weight(const tn_site *from, tn_role role, tn_site *to, tn_role as)
{
    to->param[as] = from->param[role];
    to->param[TN_ROLE_SCALE_OF(as)] = from->param[TN_ROLE_SCALE_OF(role)];
    to->param[TN_ROLE_ZERO_OF(as)] = from->param[TN_ROLE_ZERO_OF(role)];
    if (op_group_role(role) && op_group_role(as))
        to->param[op_group_role(as)] = from->param[op_group_role(role)];
}

tn_site compose_linear_site(const composer *c, tn_role weight, tn_role bias, int64_t in, int64_t out)
{
    const tn_site *outer = c->call->site;
    tn_site site = {.size = sizeof site,
                    .op = TN_OP_LINEAR,
                    .path = outer->path,
                    .class_name = "Linear",
                    .model_type = outer->model_type};
    site.meaning[TN_AXIS_DTYPE] = outer->meaning[TN_AXIS_DTYPE];
    lend_weight(outer, weight, &site, TN_ROLE_WEIGHT);
    if (bias != COMPOSE_NO_ROLE)
        site.param[TN_ROLE_BIAS] = outer->param[bias];
    site.features = site.param[TN_ROLE_BIAS].count > 0 ? TN_HAS_BIAS : 0;
    site.dim[TN_DIM_HIDDEN] = in;
    site.dim[TN_DIM_OUT] = out;
    return site;
}

void compose_part(composer *c, int part, const tn_site *otherwise, tn_call *call)
{
    const graph_site *site = c->parts ? c->parts[part] : NULL;
    call->site = site ? &site->site : otherwise;
    call->op = site ? site->site.op : call->op; /* a LINEAR may have an adapter around it             */
    if (c->status == TN_OK)
        c->status = site ? run_site_call(c->device, c->arena, site, call, c->err)
                         : run_bound_call(c->device, c->arena, NULL, call, c->err);
}

void compose_linear(composer *c, int part, tn_role weight, tn_role bias, const tn_tensor *x, const tn_tensor *y)
{
    tn_call call = run_make_call(TN_OP_LINEAR, NULL, RUN_TENSORS(x), RUN_TENSORS(y));
    if (c->parts && c->parts[part]) {
        compose_part(c, part, NULL, &call);
    } else {
        const tn_site site = compose_linear_site(c, weight, bias, x->shape[1], y->shape[1]);
        compose_part(c, part, &site, &call);
    }
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
        *gate = columns(both, layout == TN_LAYOUT_GATE_UP ? 0 : inter, inter);
        *up = columns(both, layout == TN_LAYOUT_GATE_UP ? inter : 0, inter);
    }
}

void compose_gate_up(composer *c, const tn_tensor *both)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    tn_tensor gate, up;
    if (site->meaning[TN_AXIS_LAYOUT] != TN_LAYOUT_SPLIT) {
        compose_linear(c, GRAPH_PART_GATE, TN_ROLE_GATE_UP, TN_ROLE_GATE_UP_BIAS, x, both);
        return;
    }
    compose_gate_up_views(site, both, &gate, &up);
    compose_linear(c, GRAPH_PART_GATE, TN_ROLE_GATE, TN_ROLE_GATE_BIAS, x, &gate);
    compose_linear(c, GRAPH_PART_UP, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &up);
}

/* Without a gate: down(act(up(x))). */
static void compose_up_down(composer *c)
{
    const tn_tensor *x = &c->call->in[0];
    tn_tensor p = compose_take(c, x->shape[0], c->call->site->dim[TN_DIM_INTER]);
    compose_linear(c, GRAPH_PART_UP, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &p);
    compose_eagerly(c, TN_OP_ACT, c->call->site, RUN_TENSORS(&p), RUN_TENSORS(&p));
    compose_linear(c, GRAPH_PART_DOWN, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS, &p, &c->call->out[0]);
}

static void compose_mlp(composer *c)
{
    const tn_site *site = c->call->site;
    tn_tensor both = compose_take(c, c->call->in[0].shape[0], 2 * site->dim[TN_DIM_INTER]), gate, up;
    compose_gate_up_views(site, &both, &gate, &up);
    compose_gate_up(c, &both);
    compose_eagerly(c, TN_OP_GLU, site, RUN_TENSORS(&gate, &up), RUN_TENSORS(&gate));
    compose_linear(c, GRAPH_PART_DOWN, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS, &gate, &c->call->out[0]);
}

/* ---- MOE_BLOCK ------------------------------------------------------------------------------------- */

tn_site compose_shared_site(const tn_site *block)
{
    tn_site shared = *block;
    shared.op = TN_OP_MLP;
    shared.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
    shared.features = block->features & TN_HAS_SHARED_BIAS ? TN_HAS_BIAS : 0;
    shared.dim[TN_DIM_INTER] = block->dim[TN_DIM_SHARED_INTER];
    lend_weight(block, TN_ROLE_SHARED_GATE, &shared, TN_ROLE_GATE);
    lend_weight(block, TN_ROLE_SHARED_UP, &shared, TN_ROLE_UP);
    lend_weight(block, TN_ROLE_SHARED_DOWN, &shared, TN_ROLE_DOWN);
    shared.param[TN_ROLE_GATE_BIAS] = block->param[TN_ROLE_SHARED_GATE_BIAS];
    shared.param[TN_ROLE_UP_BIAS] = block->param[TN_ROLE_SHARED_UP_BIAS];
    shared.param[TN_ROLE_DOWN_BIAS] = block->param[TN_ROLE_SHARED_DOWN_BIAS];
    return shared;
}

/* y += shared expert(x), times sigmoid(shared gate(x)) where the model has one. */
static void compose_shared(composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0], *y = &c->call->out[0];
    const graph_site *shared = c->parts ? c->parts[GRAPH_PART_SHARED] : NULL;
    tn_tensor z = compose_take(c, x->shape[0], x->shape[1]);
    tn_site inner = compose_shared_site(site);
    const tn_call mlp = run_make_call(TN_OP_MLP, shared ? &shared->site : &inner, RUN_TENSORS(x), RUN_TENSORS(&z));
    if (c->status == TN_OK)
        c->status = shared ? run_site_call(c->device, c->arena, shared, &mlp, c->err)
                           : run_eager_call(c->device, c->arena, &mlp, c->err);
    if (site->features & TN_HAS_SHARED_GATE) {
        tn_tensor gate = compose_take(c, x->shape[0], 1);
        compose_linear(c, GRAPH_PART_SHARED_GATE, TN_ROLE_SHARED_EXPERT_GATE, COMPOSE_NO_ROLE, x, &gate);
        /* sigmoid(gate) * z is a GLU whose gate is the same for all features of a token. */
        gate.shape[1] = z.shape[1];
        gate.stride[1] = 0;
        inner.meaning[TN_AXIS_ACT] = TN_ACT_SIGMOID;
        compose_eagerly(c, TN_OP_GLU, &inner, RUN_TENSORS(&gate, &z), RUN_TENSORS(&z));
    }
    compose_add(c, y, &z, y);
}

static void compose_moe(composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0], *y = &c->call->out[0];
    int64_t tokens = x->shape[0], top_k = site->dim[TN_DIM_TOP_K];
    tn_tensor weights = compose_take_as(c, site->features & TN_HAS_F32_ROUTING ? TN_F32 : x->dtype, tokens, top_k);
    tn_tensor experts = compose_take_as(c, TN_I32, tokens, top_k);
    tn_call route = run_make_call(TN_OP_MOE_ROUTE, NULL, RUN_TENSORS(x), RUN_TENSORS(&weights, &experts));
    tn_call apply = run_make_call(TN_OP_MOE_EXPERTS, NULL, RUN_TENSORS(x, &weights, &experts), RUN_TENSORS(y));
    if (c->call->out_count > 1) { /* logits, where they are wanted                                */
        route.out[2] = c->call->out[1];
        route.out_count = 3;
    }
    compose_part(c, GRAPH_PART_ROUTE, site, &route);
    compose_part(c, GRAPH_PART_EXPERTS, site, &apply);
    if (site->features & TN_HAS_SHARED_EXPERT)
        compose_shared(c);
}

/* h + r, then the norm of that: the sequence of the modeling files. */
static void compose_add_norm(composer *c)
{
    const tn_tensor *in = c->call->in, *out = c->call->out;
    tn_call norm = run_make_call(TN_OP_RMS_NORM, NULL, RUN_TENSORS(&out[0]), RUN_TENSORS(&out[1]));
    compose_add(c, &in[0], &in[1], &out[0]);
    compose_part(c, GRAPH_PART_NORM, c->call->site, &norm);
}

static void compose_adapted(composer *c)
{
    compose_linear(c, GRAPH_PART_LINEAR, TN_ROLE_WEIGHT, TN_ROLE_BIAS, &c->call->in[0], &c->call->out[0]);
    compose_lora(c);
}

static tn_status eager_with_parts(const device *device, arena *a, graph_site *const *parts, const tn_call *call,
                                  tn_error *err)
{
    composer c = {device, a, parts, call, err, TN_OK};
    size_t mark = arena_mark(a);
    if (call->op == TN_OP_ADD_RMS_NORM)
        compose_add_norm(&c);
    else if (call->op == TN_OP_MLP && call->site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_DOWN)
        compose_up_down(&c);
    else if (call->op == TN_OP_MLP)
        compose_mlp(&c);
    else if (call->op == TN_OP_MOE_BLOCK)
        compose_moe(&c);
    else if (call->op == TN_OP_LORA_LINEAR)
        compose_adapted(&c);
    else
        return run_step(a, NULL, call, device_scratch(device, call), device->ops->eager, err);
    arena_release(a, mark);
    return c.status;
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

tn_status run_site_backward(const device *device, arena *a, const graph_site *site, const tn_call *call, tn_error *err)
{
    return site->bound.impl ? run_bound_backward(device, a, &site->bound, call, err)
                            : compose_backward(device, a, site->part, call, err);
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
        return site ? run_site_backward(device, a, site, call, err) : run_bound_backward(device, a, bound, call, err);
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
