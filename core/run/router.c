/* Logits of routers, made once more: the contract of MOE_ROUTE gives no gradient to its logits. */
#include "run/router.h"

#include "run/compose.h"

/* A site that lives as long as the tape's calls: in the arena. */
static tn_site *make_site(graph_run *r, const tn_site *of)
{
    const tn_call call = {.site = of};
    const composer c = {.call = &call};
    const tn_param *router = &of->param[TN_ROLE_ROUTER];
    void *memory = NULL;
    if (r->status == TN_OK)
        r->status = arena_take(r->arena, sizeof(tn_site), &memory, r->err);
    tn_site *site = memory;
    if (site) {
        bool has_bias = of->param[TN_ROLE_ROUTER_BIAS].count > 0;
        *site = compose_linear_site(&c, TN_ROLE_ROUTER, has_bias ? TN_ROLE_ROUTER_BIAS : COMPOSE_NO_ROLE,
                                    router->tensors->shape[1], router->tensors->shape[0]);
    }
    return site;
}

tn_tensor router_logits(graph_run *r, const tn_site *site, const tn_tensor *x)
{
    const tn_site *linear = make_site(r, site);
    if (!linear)
        return (tn_tensor){0};
    const tn_tensor *weight = linear->param[TN_ROLE_WEIGHT].tensors;
    tn_tensor in = *x, logits = steps_take(r, weight->dtype, 2, (int64_t[]){x->shape[0], weight->shape[0]});
    if (in.dtype != weight->dtype) {
        in = steps_take(r, weight->dtype, x->ndim, x->shape);
        steps_copy(r, NULL, x, &in);
    }
    const tn_call call = run_make_call(TN_OP_LINEAR, linear, RUN_TENSORS(&in), RUN_TENSORS(&logits));
    steps_perform(r, NULL, &call);
    return logits;
}
