/* Short convolutions. */
#include "models/gated_conv.h"

graph_site *gated_conv_site(graph_builder *b, graph_module *parent, const char *name, int64_t width, int64_t taps,
                            tn_act act, bool bias, const parts_share *share)
{
    const build_form form = {.ranges = share->cut.group ? &share->ranges : NULL};
    graph_module *m = build_module(b, parent, name, "Conv1d");
    graph_site *s = build_site(b, m, TN_OP_SHORT_CONV, NULL);
    tn_tensor weight, bias_tensor;
    if (!s || !build_tensor_as(b, m, "weight", 3, (int64_t[]){width, 1, taps}, &form, &weight))
        return NULL;
    int64_t own = form.ranges ? build_ranges_rows(form.ranges) : width;
    weight = tn_tensor_dense(weight.data, weight.dtype, 2, (int64_t[]){own, taps});
    build_param(b, s, TN_ROLE_WEIGHT, &weight, 1);
    if (bias && build_tensor_as(b, m, "bias", 1, &width, &form, &bias_tensor)) {
        build_param(b, s, TN_ROLE_BIAS, &bias_tensor, 1);
        s->site.features |= TN_HAS_BIAS;
    }
    s->site.meaning[TN_AXIS_ACT] = act;
    s->site.dim[TN_DIM_WIDTH] = own;
    s->site.dim[TN_DIM_TAPS] = taps;
    s->cut = share->cut;
    s->stays_cut = share->cut.group;
    return b->status == TN_OK ? s : NULL;
}

typedef struct gated_conv_state {
    graph_site *in, *conv, *out;
    tn_site *times; /* the product of two tensors                                                  */
    tn_site *real;  /* with a bias: padding counts as tokens whose normed state is 0; or NULL      */
    int64_t hidden;
} gated_conv_state;

/* Channels are cut by sums alone. */
static parts_share share_channels(const graph_builder *b, const gated_conv_spec *s)
{
    return parts_summed_of(b, s->hidden, parts_unit(b, s->hidden));
}

static int64_t own_channels(const graph_builder *b, const gated_conv_spec *s)
{
    const parts_share own = share_channels(b, s);
    return own.cut.group ? build_ranges_rows(&own.ranges) : s->hidden;
}

static void build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    const gated_conv_spec *s = spec;
    gated_conv_state *c = state;
    const parts_share own = share_channels(b, s), back = parts_back_of(b, &own);
    parts_share in = own;
    graph_module *m = build_module(b, layer, "conv", s->class_name);
    in.stays = true;
    parts_share_again(&in, s->hidden);
    parts_share_again(&in, 2 * s->hidden);
    c->hidden = own_channels(b, s);
    c->conv = gated_conv_site(b, m, "conv", s->hidden, s->taps, TN_ACT_LINEAR, s->bias, &own);
    c->in = parts_linear_some(NULL, b, m, "in_proj", s->hidden, 3 * s->hidden, s->bias, &in);
    c->out = parts_linear_some(NULL, b, m, "out_proj", s->hidden, s->hidden, s->bias, &back);
    c->times = parts_act_step(b, m, TN_OP_GLU, TN_ACT_LINEAR, c->hidden);
    c->real = s->bias ? build_step(b, m, TN_OP_ROW_SCALE, s->hidden) : NULL;
}

static model_layer cache(const graph_builder *b, const void *spec)
{
    const gated_conv_spec *s = spec;
    return (model_layer){.conv_width = own_channels(b, s), .conv_taps = s->taps};
}

static tn_tensor forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x)
{
    const gated_conv_state *c = state;
    tn_tensor index = r->index;
    if (c->real) {
        steps_row_scale(r, c->real, x, &r->q_scale);
        r->index = steps_upload(r, TN_I32, 2, index.shape, NULL);
    }
    tn_tensor all = steps_linear(r, c->in, x);
    tn_tensor before = steps_columns(&all, 0, c->hidden), after = steps_columns(&all, c->hidden, c->hidden);
    tn_tensor inner = steps_columns(&all, 2 * c->hidden, c->hidden);
    steps_glu(r, c->times, &before, &inner);
    tn_tensor y = steps_short_conv(r, c->conv, at->layer, &inner);
    r->index = index;
    steps_glu(r, c->times, &after, &y);
    return steps_linear(r, c->out, &y);
}

const mixer_kind gated_conv = {sizeof(gated_conv_state), build, cache, forward, NULL};
