/* Gradients of MOE_BLOCK, composed of those of its parts. What comes back to x is added up as automatic differentiation
 * does, each sum rounded to the model's dtype: experts, router, the shared expert's gate, the shared expert. */
#include "run/compose.h"

/* A gradient of the block's input, or data NULL where it is not wanted. */
static tn_tensor take_dx(composer *c)
{
    const tn_tensor *x = &c->call->in[0];
    tn_tensor dx = compose_take(c, x->shape[0], x->shape[1]);
    if (!c->call->grads->in[0].data)
        dx.data = NULL;
    return dx;
}

/* Adds more to the gradient of x, where that is wanted. */
static void add_dx(composer *c, const tn_tensor *more)
{
    tn_tensor dx = c->call->grads->in[0];
    if (!dx.data && !c->arena->measuring)
        return;
    if (!dx.data) {
        dx = c->call->in[0]; /* the shape                                                        */
        dx.data = NULL;
    }
    compose_add(c, &dx, more, &dx);
}

/* Route and experts again, then their gradients: of the experts into the gradient of x, of the router into more. */
static void routed_backward(composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    int64_t tokens = x->shape[0], top_k = site->dim[TN_DIM_TOP_K];
    tn_dtype weight_dtype = site->features & TN_HAS_F32_ROUTING ? TN_F32 : x->dtype;
    tn_tensor weights = compose_take_as(c, weight_dtype, tokens, top_k);
    tn_tensor dweights = compose_take_as(c, weight_dtype, tokens, top_k);
    tn_tensor experts = compose_take_as(c, TN_I32, tokens, top_k), more = take_dx(c), none = {0};
    tn_call route = run_make_call(TN_OP_MOE_ROUTE, site, RUN_TENSORS(x), RUN_TENSORS(&weights, &experts));
    compose_part(c, GRAPH_PART_ROUTE, site, &route);
    tn_call apply = run_make_call(TN_OP_MOE_EXPERTS, site, RUN_TENSORS(x, &weights, &experts), RUN_TENSORS(&none));
    tn_grads grads = *c->call->grads;
    grads.in[1] = dweights;
    apply.grads = &grads;
    compose_part_backward(c, GRAPH_PART_EXPERTS, site, &apply);
    tn_grads route_grads = {.size = sizeof route_grads, .out = {dweights}, .in = {more}};
    for (int role = TN_ROLE_ROUTER; role <= TN_ROLE_CORRECTION_BIAS; role++)
        route_grads.param[role] = grads.param[role];
    route_grads.param[TN_ROLE_EXPERT_SCALE] = grads.param[TN_ROLE_EXPERT_SCALE];
    route.grads = &route_grads;
    compose_part_backward(c, GRAPH_PART_ROUTE, site, &route);
    add_dx(c, &more);
}

/* z = mlp(x): through sigmoid(gate(x)) z, where the model has it. Leaves dL/dz in z. */
static void shared_gate_backward(composer *c, const tn_call *mlp, tn_tensor *z)
{
    const tn_tensor *x = &c->call->in[0];
    if (c->status == TN_OK && c->parts && c->parts[GRAPH_PART_SHARED])
        c->status = run_site_call(c->device, c->arena, c->parts[GRAPH_PART_SHARED], mlp, c->err);
    else if (c->status == TN_OK)
        c->status = run_eager_call(c->device, c->arena, mlp, c->err);
    tn_tensor gate = compose_take(c, x->shape[0], 1), dgate = compose_take(c, x->shape[0], 1), more = take_dx(c);
    compose_linear(c, GRAPH_PART_SHARED_GATE, TN_ROLE_SHARED_EXPERT_GATE, COMPOSE_NO_ROLE, x, &gate);
    /* A GLU whose gate is the same for all features of a token. */
    tn_tensor wide = gate, dwide = dgate;
    wide.shape[1] = dwide.shape[1] = z->shape[1];
    wide.stride[1] = dwide.stride[1] = 0;
    tn_site site = *mlp->site;
    site.meaning[TN_AXIS_ACT] = TN_ACT_SIGMOID;
    compose_glu_backward(c, &site, &wide, z, &c->call->grads->out[0], &dwide, z);
    compose_linear_backward(c, GRAPH_PART_SHARED_GATE, TN_ROLE_SHARED_EXPERT_GATE, COMPOSE_NO_ROLE, x, &dgate, &more);
    add_dx(c, &more);
}

static void shared_backward(composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    const tn_param *param = c->call->grads->param;
    const graph_site *shared = c->parts ? c->parts[GRAPH_PART_SHARED] : NULL;
    tn_site inner = compose_shared_site(site);
    tn_tensor z = {0};
    tn_grads grads = {.size = sizeof grads, .out = {c->call->grads->out[0]}, .in = {take_dx(c)}};
    bool gated = site->features & TN_HAS_SHARED_GATE;
    if (gated)
        z = compose_take(c, x->shape[0], x->shape[1]);
    tn_call mlp = run_make_call(TN_OP_MLP, shared ? &shared->site : &inner, RUN_TENSORS(x), RUN_TENSORS(&z));
    if (gated) {
        shared_gate_backward(c, &mlp, &z);
        grads.out[0] = z;
    }
    grads.param[TN_ROLE_GATE] = param[TN_ROLE_SHARED_GATE];
    grads.param[TN_ROLE_UP] = param[TN_ROLE_SHARED_UP];
    grads.param[TN_ROLE_DOWN] = param[TN_ROLE_SHARED_DOWN];
    grads.param[TN_ROLE_GATE_BIAS] = param[TN_ROLE_SHARED_GATE_BIAS];
    grads.param[TN_ROLE_UP_BIAS] = param[TN_ROLE_SHARED_UP_BIAS];
    grads.param[TN_ROLE_DOWN_BIAS] = param[TN_ROLE_SHARED_DOWN_BIAS];
    mlp.grads = &grads;
    compose_part_backward(c, GRAPH_PART_SHARED, &inner, &mlp);
    add_dx(c, &grads.in[0]);
}

void compose_moe_backward(composer *c)
{
    size_t mark = arena_mark(c->arena);
    routed_backward(c);
    arena_release(c->arena, mark);
    if (c->call->site->features & TN_HAS_SHARED_EXPERT)
        shared_backward(c);
}
