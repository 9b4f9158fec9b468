/* Steps of layers that carry a state from token to token. */
#include "run/steps.h"

static void perform(graph_run *r, const graph_site *site, run_tensors in, run_tensors out)
{
    const tn_call call = run_make_call(site->site.op, &site->site, in, out);
    steps_perform(r, site, &call);
}

tn_tensor steps_short_conv(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *x)
{
    return steps_short_conv_part(r, site, layer, x, 0);
}

tn_tensor steps_short_conv_part(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *x,
                                int64_t channel)
{
    int64_t shape[3] = {r->rows, r->tokens, x->shape[1]};
    tn_tensor y = steps_take(r, r->dtype, 3, shape);
    tn_tensor rows = tn_tensor_dense(x->data, x->dtype, 3, shape);
    rows.stride[0] = r->tokens * x->stride[0];
    rows.stride[1] = x->stride[0];
    for (int64_t i = 0; i < r->segments; i++) {
        const run_segment *g = &r->segment[i];
        tn_tensor state = steps_part(&g->cache[layer].conv, 1, channel, x->shape[1]);
        tn_tensor from = steps_segment(&rows, g), index = steps_segment(&r->index, g), to = steps_segment(&y, g);
        perform(r, site, RUN_TENSORS(&from, &state, &index), RUN_TENSORS(&to, &state));
    }
    return steps_view(&y, 2, (int64_t[]){r->rows * r->tokens, x->shape[1]});
}

tn_tensor steps_delta_rule(graph_run *r, const graph_site *site, int64_t layer, const steps_delta *in)
{
    tn_tensor o = steps_take(r, r->dtype, 4, in->v.shape);
    for (int64_t i = 0; i < r->segments; i++) {
        const run_segment *g = &r->segment[i];
        const tn_tensor *state = &g->cache[layer].state;
        tn_tensor v = steps_segment(&in->v, g), q = steps_segment(&in->q, g), k = steps_segment(&in->k, g),
                  a = steps_segment(&in->a, g);
        tn_tensor b = steps_segment(&in->b, g), index = steps_segment(&r->index, g), to = steps_segment(&o, g);
        perform(r, site, RUN_TENSORS(&v, state, &q, &k, &a, &b, &index), RUN_TENSORS(&to, state));
    }
    return o;
}

tn_tensor steps_scan(graph_run *r, const graph_site *site, int64_t layer, const steps_scan_inputs *in)
{
    bool wide = site->site.features & TN_HAS_F32_RESULT;
    tn_tensor y = steps_take(r, wide ? TN_F32 : r->dtype, 4, in->x.shape);
    for (int64_t i = 0; i < r->segments; i++) {
        const run_segment *g = &r->segment[i];
        const tn_tensor *state = &g->cache[layer].state;
        tn_tensor x = steps_segment(&in->x, g), b = steps_segment(&in->b, g), c = steps_segment(&in->c, g),
                  dt = steps_segment(&in->dt, g);
        tn_tensor index = steps_segment(&r->index, g), to = steps_segment(&y, g);
        perform(r, site, RUN_TENSORS(&x, state, &b, &c, &dt, &index), RUN_TENSORS(&to, state));
    }
    return y;
}

void steps_gated_norm(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *gate)
{
    perform(r, site, RUN_TENSORS(x, gate), RUN_TENSORS(x));
}
