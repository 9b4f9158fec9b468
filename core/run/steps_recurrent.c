/* Steps of layers that carry a state from token to token. */
#include "run/steps.h"

static void perform(graph_run *r, const graph_site *site, run_tensors in, run_tensors out)
{
    const tn_call call = run_make_call(site->site.op, &site->site, in, out);
    if (r->status == TN_OK)
        r->status = run_site_call(r->device, r->arena, site, &call, r->err);
}

tn_tensor steps_short_conv(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *x)
{
    return steps_short_conv_part(r, site, layer, x, 0);
}

tn_tensor steps_short_conv_part(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *x,
                                int64_t channel)
{
    tn_tensor state = steps_part(&r->cache[layer].conv, 1, channel, x->shape[1]);
    int64_t shape[3] = {r->rows, r->tokens, x->shape[1]};
    tn_tensor y = steps_take(r, r->dtype, 3, shape);
    tn_tensor rows = tn_tensor_dense(x->data, x->dtype, 3, shape);
    rows.stride[0] = r->tokens * x->stride[0];
    rows.stride[1] = x->stride[0];
    perform(r, site, RUN_TENSORS(&rows, &state, &r->index), RUN_TENSORS(&y, &state));
    return steps_view(&y, 2, (int64_t[]){r->rows * r->tokens, x->shape[1]});
}

tn_tensor steps_delta_rule(graph_run *r, const graph_site *site, int64_t layer, const steps_delta *in)
{
    const run_cache *cache = &r->cache[layer];
    tn_tensor o = steps_take(r, r->dtype, 4, in->v.shape);
    perform(r, site, RUN_TENSORS(&in->v, &cache->state, &in->q, &in->k, &in->a, &in->b, &r->index),
            RUN_TENSORS(&o, &cache->state));
    return o;
}

tn_tensor steps_scan(graph_run *r, const graph_site *site, int64_t layer, const steps_scan_inputs *in)
{
    const run_cache *cache = &r->cache[layer];
    bool wide = site->site.features & TN_HAS_F32_RESULT;
    tn_tensor y = steps_take(r, wide ? TN_F32 : r->dtype, 4, in->x.shape);
    perform(r, site, RUN_TENSORS(&in->x, &cache->state, &in->b, &in->c, &in->dt, &r->index),
            RUN_TENSORS(&y, &cache->state));
    return y;
}

void steps_gated_norm(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *gate)
{
    perform(r, site, RUN_TENSORS(x, gate), RUN_TENSORS(x));
}
