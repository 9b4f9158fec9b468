/* Gradients by eager: the device's own for primitive operations, and those of MLP and MOE_BLOCK, composed of them and
 * of the kernels of their parts. Nothing was kept from forward: what gradients need of its results is computed again.
 */
#include "run/compose.h"

/* A call whose results are not there. */
static tn_call backward_call(tn_op op, const tn_site *site, run_tensors in, const tn_grads *grads)
{
    tn_call call = run_make_call(op, site, in, (run_tensors){NULL, 0});
    call.out_count = 1;
    call.grads = grads;
    return call;
}

void compose_part_backward(composer *c, int part, const tn_site *otherwise, tn_call *call)
{
    const graph_site *site = c->parts ? c->parts[part] : NULL;
    call->site = site ? &site->site : otherwise;
    if (c->status == TN_OK)
        c->status = site ? run_site_backward(c->device, c->arena, site, call, c->err)
                         : run_eager_backward(c->device, c->arena, call, c->err);
}

void compose_linear_backward(composer *c, int part, tn_role weight, tn_role bias, const tn_tensor *x,
                             const tn_tensor *dy, const tn_tensor *dx)
{
    const tn_site site = compose_linear_site(c, weight, bias, x->shape[1], dy->shape[1]);
    tn_grads grads = {.size = sizeof grads, .out = {*dy}, .in = {*dx}};
    grads.param[TN_ROLE_WEIGHT] = c->call->grads->param[weight];
    if (bias != COMPOSE_NO_ROLE)
        grads.param[TN_ROLE_BIAS] = c->call->grads->param[bias];
    tn_call call = backward_call(TN_OP_LINEAR, &site, RUN_TENSORS(x), &grads);
    compose_part_backward(c, part, &site, &call);
}

void compose_glu_backward(composer *c, const tn_site *site, const tn_tensor *gate, const tn_tensor *up,
                          const tn_tensor *dp, const tn_tensor *dgate, const tn_tensor *dup)
{
    const tn_grads grads = {.size = sizeof grads, .out = {*dp}, .in = {*dgate, *dup}};
    const tn_call call = backward_call(TN_OP_GLU, site, RUN_TENSORS(gate, up), &grads);
    compose_backward_step(c, &call);
}

/* The gradient t of what has x's shape, or a tensor of that shape without data where it is not wanted. */
static tn_tensor gradient_like(const tn_tensor *t, const tn_tensor *x)
{
    tn_tensor none = *x;
    none.data = NULL;
    return t->data ? *t : none;
}

/* From the gradients of gate and up to those of x: one product, or the sum of two. */
static void mlp_gate_up_backward(composer *c, const tn_tensor *dboth)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    tn_tensor dx = gradient_like(&c->call->grads->in[0], x), dgate, dup;
    if (site->meaning[TN_AXIS_LAYOUT] != TN_LAYOUT_SPLIT) {
        compose_linear_backward(c, GRAPH_PART_GATE, TN_ROLE_GATE_UP, TN_ROLE_GATE_UP_BIAS, x, dboth, &dx);
        return;
    }
    compose_gate_up_views(site, dboth, &dgate, &dup);
    tn_tensor more = compose_take(c, x->shape[0], x->shape[1]);
    if (!dx.data)
        more.data = NULL;
    compose_linear_backward(c, GRAPH_PART_GATE, TN_ROLE_GATE, TN_ROLE_GATE_BIAS, x, &dgate, &dx);
    compose_linear_backward(c, GRAPH_PART_UP, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &dup, &more);
    if (dx.data || c->arena->measuring)
        compose_add(c, &dx, &more, &dx);
}

/* y = down(p), p = act(gate) up. Memory: gate and up, their gradients, and p; dp lies where dgate will. */
static void mlp_backward(composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    int64_t tokens = x->shape[0], inter = site->dim[TN_DIM_INTER];
    tn_tensor gate, up, dgate, dup, dy = gradient_like(&c->call->grads->out[0], x);
    tn_tensor both = compose_take(c, tokens, 2 * inter), dboth = compose_take(c, tokens, 2 * inter);
    size_t before_p = arena_mark(c->arena);
    tn_tensor p = compose_take(c, tokens, inter);
    compose_gate_up_views(site, &both, &gate, &up);
    compose_gate_up_views(site, &dboth, &dgate, &dup);
    compose_gate_up(c, &both);
    compose_eagerly(c, TN_OP_GLU, site, RUN_TENSORS(&gate, &up), RUN_TENSORS(&p));
    compose_linear_backward(c, GRAPH_PART_DOWN, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS, &p, &dy, &dgate);
    arena_release(c->arena, before_p);
    compose_glu_backward(c, site, &gate, &up, &dgate, &dgate, &dup);
    mlp_gate_up_backward(c, &dboth);
}

/* y = down(p), p = act(u), u = up(x). */
static void up_down_backward(composer *c)
{
    const tn_site *site = c->call->site;
    const tn_tensor *x = &c->call->in[0];
    int64_t tokens = x->shape[0], inter = site->dim[TN_DIM_INTER];
    tn_tensor dy = gradient_like(&c->call->grads->out[0], x), dx = gradient_like(&c->call->grads->in[0], x);
    tn_tensor u = compose_take(c, tokens, inter), p = compose_take(c, tokens, inter);
    tn_tensor dp = compose_take(c, tokens, inter); /* du, too                                          */
    compose_linear(c, GRAPH_PART_UP, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &u);
    compose_eagerly(c, TN_OP_ACT, site, RUN_TENSORS(&u), RUN_TENSORS(&p));
    compose_linear_backward(c, GRAPH_PART_DOWN, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS, &p, &dy, &dp);
    const tn_grads grads = {.size = sizeof grads, .out = {dp}, .in = {dp}};
    const tn_call act = backward_call(TN_OP_ACT, site, RUN_TENSORS(&u), &grads);
    compose_backward_step(c, &act);
    compose_linear_backward(c, GRAPH_PART_UP, TN_ROLE_UP, TN_ROLE_UP_BIAS, x, &dp, &dx);
}

/* The product inside an adapter, and the factors beside it. */
static void adapted_backward(composer *c)
{
    const tn_tensor *x = &c->call->in[0];
    const tn_param *param = c->call->grads->param;
    tn_tensor dx = gradient_like(&c->call->grads->in[0], x), dy = c->call->grads->out[0];
    if (!dy.data)
        dy = tn_tensor_dense(NULL, x->dtype, 2, (int64_t[]){x->shape[0], c->call->site->dim[TN_DIM_OUT]});
    if (dx.data || c->arena->measuring || param[TN_ROLE_WEIGHT].count || param[TN_ROLE_BIAS].count)
        compose_linear_backward(c, GRAPH_PART_LINEAR, TN_ROLE_WEIGHT, TN_ROLE_BIAS, x, &dy, &dx);
    compose_lora_backward(c, &dy, &dx);
}

tn_status compose_backward(const device *device, arena *a, graph_site *const *parts, const tn_call *call, tn_error *err)
{
    composer c = {device, a, parts, call, err, TN_OK};
    size_t mark = arena_mark(a);
    if (call->op == TN_OP_MLP && call->site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_DOWN)
        up_down_backward(&c);
    else if (call->op == TN_OP_MLP)
        mlp_backward(&c);
    else if (call->op == TN_OP_MOE_BLOCK)
        compose_moe_backward(&c);
    else if (call->op == TN_OP_LORA_LINEAR)
        adapted_backward(&c);
    else
        compose_backward_step(&c, call);
    arena_release(a, mark);
    return c.status;
}

tn_status run_eager_backward(const device *device, arena *a, const tn_call *call, tn_error *err)
{
    return compose_backward(device, a, NULL, call, err);
}
