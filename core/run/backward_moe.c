/* Gradients of MOE_BLOCK, composed of those of its parts. What comes back to x is added up as automatic differentiation
 * does, each sum rounded to the model's dtype: experts, router, the shared expert's gate, the shared expert. */
#include "run/compose.h"

/* A gradient of the block's input, or data NULL where it is not wanted. */
static tn_status take_dx(const composer *c, tn_tensor *dx)
{
    const tn_tensor *x = &c->call->in[0];
    tn_status status = compose_take(c, x->shape[0], x->shape[1], dx);
    if (!c->call->grads->in[0].data)
        dx->data = NULL;
    return status;
}

/* Adds more to the gradient of x, where that is wanted. */
static tn_status add_dx(const composer *c, const tn_tensor *more)
{
    tn_tensor dx = c->call->grads->in[0];
    if (!dx.data && !c->arena->measuring)
        return TN_OK;
    if (!dx.data) {
        dx = c->call->in[0]; /* the shape                                                        */
        dx.data = NULL;
    }
    return compose_add(c, &dx, more, &dx);
}

/* Route and experts again, then their gradients: of the experts into the gradient of x, of the router into more. */
static tn_status routed_backward(const composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    const int64_t shape[2] = {x->shape[0], site->dim[TN_DIM_TOP_K]};
    tn_dtype weight_dtype = site->features & TN_HAS_F32_ROUTING ? TN_F32 : x->dtype;
    size_t weight_bytes = (size_t)(shape[0] * shape[1]) * tn_dtype_size(weight_dtype);
    void *weights = NULL, *dweights = NULL, *experts = NULL;
    tn_tensor more = {0};
    tn_status status = arena_take(c->arena, weight_bytes, &weights, c->err);
    if (status == TN_OK)
        status = arena_take(c->arena, weight_bytes, &dweights, c->err);
    if (status == TN_OK)
        status = arena_take(c->arena, (size_t)(shape[0] * shape[1]) * sizeof(int32_t), &experts, c->err);
    if (status == TN_OK)
        status = take_dx(c, &more);
    tn_call route = {.size = sizeof route, .op = TN_OP_MOE_ROUTE, .site = site, .in_count = 1, .out_count = 2};
    route.in[0] = *x;
    route.out[0] = tn_tensor_dense(weights, weight_dtype, 2, shape);
    route.out[1] = tn_tensor_dense(experts, TN_I32, 2, shape);
    if (status == TN_OK)
        status = run_eager_call(c->device, c->arena, &route, c->err);
    tn_call apply = {.size = sizeof apply, .op = TN_OP_MOE_EXPERTS, .site = site, .in_count = 3, .out_count = 1};
    apply.in[0] = *x;
    apply.in[1] = route.out[0];
    apply.in[2] = route.out[1];
    tn_grads grads = *c->call->grads;
    grads.in[1] = tn_tensor_dense(dweights, weight_dtype, 2, shape);
    apply.grads = &grads;
    if (status == TN_OK)
        status = compose_backward_step(c, &apply);
    tn_grads route_grads = {.size = sizeof route_grads};
    route_grads.out[0] = grads.in[1];
    route_grads.in[0] = more;
    for (int role = TN_ROLE_ROUTER; role <= TN_ROLE_CORRECTION_BIAS; role++)
        route_grads.param[role] = grads.param[role];
    route_grads.param[TN_ROLE_EXPERT_SCALE] = grads.param[TN_ROLE_EXPERT_SCALE];
    route.grads = &route_grads;
    if (status == TN_OK)
        status = compose_backward_step(c, &route);
    return status == TN_OK ? add_dx(c, &more) : status;
}

/* z = mlp(x): through sigmoid(gate(x)) z, where the model has it. Leaves dL/dz in z. */
static tn_status shared_gate_backward(const composer *c, const tn_call *mlp, tn_tensor *z)
{
    const tn_tensor *x = &c->call->in[0];
    tn_tensor gate = {0}, dgate = {0}, more;
    tn_status status = run_eager_call(c->device, c->arena, mlp, c->err);
    if (status == TN_OK)
        status = compose_take(c, x->shape[0], 1, &gate);
    if (status == TN_OK)
        status = compose_take(c, x->shape[0], 1, &dgate);
    if (status == TN_OK)
        status = take_dx(c, &more);
    if (status == TN_OK)
        status = compose_linear(c, GRAPH_PART_SHARED_GATE, TN_ROLE_SHARED_EXPERT_GATE, COMPOSE_NO_ROLE, x, &gate);
    /* A GLU whose gate is the same for all features of a token. */
    tn_tensor wide = gate, dwide = dgate;
    wide.shape[1] = dwide.shape[1] = z->shape[1];
    wide.stride[1] = dwide.stride[1] = 0;
    tn_site site = *mlp->site;
    site.meaning[TN_AXIS_ACT] = TN_ACT_SIGMOID;
    if (status == TN_OK)
        status = compose_glu_backward(c, &site, &wide, z, &c->call->grads->out[0], &dwide, z);
    if (status == TN_OK)
        status = compose_linear_backward(c, TN_ROLE_SHARED_EXPERT_GATE, COMPOSE_NO_ROLE, x, &dgate, &more);
    return status == TN_OK ? add_dx(c, &more) : status;
}

static tn_status shared_backward(const composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    const tn_param *param = c->call->grads->param;
    tn_site inner = compose_shared_site(site);
    tn_call mlp = {.size = sizeof mlp, .op = TN_OP_MLP, .site = &inner, .in_count = 1, .out_count = 1};
    tn_grads grads = {.size = sizeof grads};
    mlp.in[0] = *x;
    grads.out[0] = c->call->grads->out[0];
    tn_status status = take_dx(c, &grads.in[0]);
    if (status == TN_OK && (site->features & TN_HAS_SHARED_GATE)) {
        status = compose_take(c, x->shape[0], x->shape[1], &mlp.out[0]);
        if (status == TN_OK)
            status = shared_gate_backward(c, &mlp, &mlp.out[0]);
        grads.out[0] = mlp.out[0];
    }
    grads.param[TN_ROLE_GATE] = param[TN_ROLE_SHARED_GATE];
    grads.param[TN_ROLE_UP] = param[TN_ROLE_SHARED_UP];
    grads.param[TN_ROLE_DOWN] = param[TN_ROLE_SHARED_DOWN];
    grads.param[TN_ROLE_GATE_BIAS] = param[TN_ROLE_SHARED_GATE_BIAS];
    grads.param[TN_ROLE_UP_BIAS] = param[TN_ROLE_SHARED_UP_BIAS];
    grads.param[TN_ROLE_DOWN_BIAS] = param[TN_ROLE_SHARED_DOWN_BIAS];
    mlp.grads = &grads;
    if (status == TN_OK)
        status = run_eager_backward(c->device, c->arena, &mlp, c->err);
    return status == TN_OK ? add_dx(c, &grads.in[0]) : status;
}

tn_status compose_moe_backward(const composer *c)
{
    size_t mark = arena_mark(c->arena);
    tn_status status = routed_backward(c);
    arena_release(c->arena, mark);
    if (status == TN_OK && (c->call->site->features & TN_HAS_SHARED_EXPERT))
        status = shared_backward(c);
    arena_release(c->arena, mark);
    return status;
}
