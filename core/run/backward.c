/* Gradients by eager: the device's own for primitive operations, and those of MLP and MOE_BLOCK, composed of them.
 * Nothing was kept from forward: what gradients need of its results is computed again. */
#include "run/compose.h"

tn_status compose_backward_step(const composer *c, const tn_call *call)
{
    const device *d = c->device;
    if (!d->ops->backward)
        return tn_fail(c->err, TN_DECLINED, call->site->path, "device %s has no gradients", d->ops->name);
    return run_step(c->arena, NULL, call, device_backward_scratch(d, call), d->ops->backward, c->err);
}

tn_status compose_linear_backward(const composer *c, tn_role weight, tn_role bias, const tn_tensor *x,
                                  const tn_tensor *dy, const tn_tensor *dx)
{
    tn_site site = compose_linear_site(c, weight, bias, x->shape[1], dy->shape[1]);
    tn_grads grads = {.size = sizeof grads};
    grads.out[0] = *dy;
    grads.in[0] = *dx;
    grads.param[TN_ROLE_WEIGHT] = c->call->grads->param[weight];
    if (bias != COMPOSE_NO_ROLE)
        grads.param[TN_ROLE_BIAS] = c->call->grads->param[bias];
    tn_call call = {
        .size = sizeof call, .op = TN_OP_LINEAR, .site = &site, .in_count = 1, .out_count = 1, .grads = &grads};
    call.in[0] = *x;
    return compose_backward_step(c, &call);
}

tn_status compose_glu_backward(const composer *c, const tn_site *site, const tn_tensor *gate, const tn_tensor *up,
                               const tn_tensor *dp, const tn_tensor *dgate, const tn_tensor *dup)
{
    tn_grads grads = {.size = sizeof grads};
    grads.out[0] = *dp;
    grads.in[0] = *dgate;
    grads.in[1] = *dup;
    tn_call call = {.size = sizeof call, .op = TN_OP_GLU, .site = site, .in_count = 2, .out_count = 1, .grads = &grads};
    call.in[0] = *gate;
    call.in[1] = *up;
    return compose_backward_step(c, &call);
}

/* From the gradients of gate and up to those of x: one product, or the sum of two. */
static tn_status mlp_gate_up_backward(const composer *c, const tn_tensor *dboth)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    tn_tensor dx = c->call->grads->in[0], dgate, dup, more;
    if (!dx.data) {
        dx = *x;
        dx.data = NULL;
    }
    if (site->meaning[TN_AXIS_LAYOUT] != TN_LAYOUT_SPLIT)
        return compose_linear_backward(c, TN_ROLE_GATE_UP, TN_ROLE_GATE_UP_BIAS, x, dboth, &dx);
    compose_gate_up_views(site, dboth, &dgate, &dup);
    tn_status status = compose_take(c, x->shape[0], x->shape[1], &more);
    if (!dx.data)
        more.data = NULL;
    if (status == TN_OK)
        status = compose_linear_backward(c, TN_ROLE_GATE, TN_ROLE_GATE_BIAS, x, &dgate, &dx);
    if (status == TN_OK)
        status = compose_linear_backward(c, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &dup, &more);
    return status == TN_OK && (dx.data || c->arena->measuring) ? compose_add(c, &dx, &more, &dx) : status;
}

/* y = down(p), p = act(gate) up. Memory: gate and up, their gradients, and p; dp lies where dgate will. */
static tn_status mlp_backward(const composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    int64_t tokens = x->shape[0], inter = site->dim[TN_DIM_INTER];
    size_t mark = arena_mark(c->arena);
    tn_tensor both, dboth, p, gate, up, dgate, dup, dy = c->call->grads->out[0];
    tn_status status = compose_take(c, tokens, 2 * inter, &both);
    if (status == TN_OK)
        status = compose_take(c, tokens, 2 * inter, &dboth);
    size_t before_p = arena_mark(c->arena);
    if (status == TN_OK)
        status = compose_take(c, tokens, inter, &p);
    compose_gate_up_views(site, &both, &gate, &up);
    compose_gate_up_views(site, &dboth, &dgate, &dup);
    if (!dy.data) {
        dy = *x; /* the shape of y                                                               */
        dy.data = NULL;
    }
    if (status == TN_OK)
        status = compose_gate_up(c, &both);
    if (status == TN_OK)
        status = compose_glu(c, site, &gate, &up, &p);
    if (status == TN_OK)
        status = compose_linear_backward(c, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS, &p, &dy, &dgate);
    arena_release(c->arena, before_p);
    if (status == TN_OK)
        status = compose_glu_backward(c, site, &gate, &up, &dgate, &dgate, &dup);
    if (status == TN_OK)
        status = mlp_gate_up_backward(c, &dboth);
    arena_release(c->arena, mark);
    return status;
}

/* Of p = act(u), into du, which may be dp. */
static tn_status act_backward(const composer *c, const tn_tensor *u, const tn_tensor *dp, const tn_tensor *du)
{
    tn_grads grads = {.size = sizeof grads};
    grads.out[0] = *dp;
    grads.in[0] = *du;
    tn_call call = {
        .size = sizeof call, .op = TN_OP_ACT, .site = c->call->site, .in_count = 1, .out_count = 1, .grads = &grads};
    call.in[0] = *u;
    return compose_backward_step(c, &call);
}

/* y = down(p), p = act(u), u = up(x). */
static tn_status up_down_backward(const composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    int64_t tokens = x->shape[0], inter = site->dim[TN_DIM_INTER];
    size_t mark = arena_mark(c->arena);
    tn_tensor u, p, dp, dy = c->call->grads->out[0], dx = c->call->grads->in[0];
    tn_tensor none = *x; /* the shape of y and dx                                                  */
    none.data = NULL;
    dy = dy.data ? dy : none;
    dx = dx.data ? dx : none;
    tn_status status = compose_take(c, tokens, inter, &u);
    if (status == TN_OK)
        status = compose_take(c, tokens, inter, &p);
    if (status == TN_OK)
        status = compose_take(c, tokens, inter, &dp);
    if (status == TN_OK)
        status = compose_linear(c, GRAPH_PART_UP, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &u);
    if (status == TN_OK)
        status = compose_act(c, site, &u, &p);
    if (status == TN_OK)
        status = compose_linear_backward(c, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS, &p, &dy, &dp);
    if (status == TN_OK)
        status = act_backward(c, &u, &dp, &dp);
    if (status == TN_OK)
        status = compose_linear_backward(c, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &dp, &dx);
    arena_release(c->arena, mark);
    return status;
}

tn_status run_eager_backward(const device *device, arena *a, const tn_call *call, tn_error *err)
{
    const composer c = {device, a, NULL, call, err};
    if (call->op == TN_OP_MLP)
        return call->site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_DOWN ? up_down_backward(&c) : mlp_backward(&c);
    if (call->op == TN_OP_MOE_BLOCK)
        return compose_moe_backward(&c);
    return compose_backward_step(&c, call);
}
