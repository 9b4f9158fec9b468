/* Steps of layers that carry a state from token to token. */
#include "run/steps.h"

static tn_call start_call(const graph_site *site, int in, int out)
{
    return (tn_call){
        .size = sizeof(tn_call), .op = site->site.op, .site = &site->site, .in_count = in, .out_count = out};
}

static void perform(graph_run *r, const graph_site *site, const tn_call *call)
{
    if (r->status == TN_OK)
        r->status = run_site_call(r->device, r->arena, site, call, r->err);
}

tn_tensor steps_short_conv(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *x)
{
    const run_cache *cache = &r->cache[layer];
    int64_t shape[3] = {r->rows, r->tokens, x->shape[1]};
    tn_tensor y = steps_take(r, r->dtype, 3, shape);
    tn_call call = start_call(site, 3, 2);
    call.in[0] = tn_tensor_dense(x->data, x->dtype, 3, shape);
    call.in[0].stride[0] = r->tokens * x->stride[0];
    call.in[0].stride[1] = x->stride[0];
    call.in[1] = cache->conv;
    call.in[2] = r->index;
    call.out[0] = y;
    call.out[1] = cache->conv;
    perform(r, site, &call);
    return steps_view(&y, 2, (int64_t[]){r->rows * r->tokens, x->shape[1]});
}

tn_tensor steps_delta_rule(graph_run *r, const graph_site *site, int64_t layer, const steps_delta *in)
{
    const run_cache *cache = &r->cache[layer];
    tn_tensor o = steps_take(r, r->dtype, 4, in->v.shape);
    tn_call call = start_call(site, 7, 2);
    call.in[0] = in->v;
    call.in[1] = cache->state;
    call.in[2] = in->q;
    call.in[3] = in->k;
    call.in[4] = in->a;
    call.in[5] = in->b;
    call.in[6] = r->index;
    call.out[0] = o;
    call.out[1] = cache->state;
    perform(r, site, &call);
    return o;
}

void steps_gated_norm(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *gate)
{
    tn_call call = start_call(site, 2, 1);
    call.in[0] = *x;
    call.in[1] = *gate;
    call.out[0] = *x;
    perform(r, site, &call);
}
