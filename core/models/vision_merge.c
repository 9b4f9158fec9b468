/* Mergers: from rows of patches to rows of the text model. */
#include "models/vision.h"

graph_site *vision_filter(graph_builder *b, graph_module *parent, const char *name, const char *class_name,
                          int32_t ndim, const int64_t *shape, bool bias)
{
    graph_module *m = build_module(b, parent, name, class_name);
    graph_site *s = build_site(b, m, TN_OP_LINEAR, NULL);
    tn_tensor weight, bias_tensor;
    if (!s || !build_tensor(b, m, "weight", ndim, shape, &weight))
        return NULL;
    int64_t in = tn_tensor_count(&weight) / shape[0];
    weight = tn_tensor_dense(weight.data, weight.dtype, 2, (int64_t[]){shape[0], in});
    build_param(b, s, TN_ROLE_WEIGHT, &weight, 1);
    if (bias && build_tensor(b, m, "bias", 1, shape, &bias_tensor)) {
        build_param(b, s, TN_ROLE_BIAS, &bias_tensor, 1);
        s->site.features |= TN_HAS_BIAS;
    }
    s->site.dim[TN_DIM_HIDDEN] = in;
    s->site.dim[TN_DIM_OUT] = shape[0];
    return b->status == TN_OK ? s : NULL;
}

/* ---- building ----------------------------------------------------------------------------------- */

static const tn_site *gelu(graph_builder *b, const graph_module *m, int64_t width)
{
    return parts_act_step(b, m, TN_OP_ACT, TN_ACT_GELU, width);
}

static void build_downsampling(graph_builder *b, graph_module *tower, graph_module *m, const vision_tower *v,
                               vision_merger *out)
{
    static const parts_norm_kind layer_norm = {
        .class_name = "LayerNorm", .eps = 1e-5, .layer_norm = true, .bias = true};
    const vision_spec *s = &v->spec;
    const int64_t filter[] = {s->out, s->hidden, s->merge, s->merge};
    const parts_mlp_spec mlp = {.hidden = s->out, .inter = s->inter, .act = s->act};
    graph_module *pre = tower; /* what the family keeps outside of the merger                        */
    out->norm = parts_norm(b, pre, "post_layernorm", &s->norm, s->hidden, true);
    out->downsample = vision_filter(b, pre, "downsample", "Conv2d", 4, filter, true);
    out->turn = build_step(b, pre, TN_OP_COPY, s->hidden);
    out->first = parts_linear(b, m, "proj", s->out, s->out, false, NULL);
    out->second = parts_norm(b, m, "post_projection_norm", &layer_norm, s->out, false);
    out->act = gelu(b, m, s->out);
    out->mlp = parts_mlp_of(b, m, &mlp, NULL);
}

void vision_merger_build(graph_builder *b, graph_module *tower, graph_module *parent, const char *name,
                         const vision_tower *v, bool deep, vision_merger *m)
{
    const vision_merger_names *n = &v->family->merging;
    const vision_spec *s = &v->spec;
    int64_t width = s->hidden * s->merge * s->merge;
    graph_module *module = build_module(b, parent, name, v->family->merger);
    if (n->downsamples) {
        build_downsampling(b, tower, module, v, m);
        return;
    }
    m->of_group = deep;
    m->norm = parts_norm(b, module, n->norm, &s->norm, deep ? width : s->hidden, !deep);
    graph_module *inner = n->inner ? build_module(b, module, n->inner, n->inner_class) : module;
    m->first = parts_linear(b, inner, n->first, width, width, true, NULL);
    m->act = gelu(b, inner, width);
    m->second = parts_linear(b, inner, n->second, width, s->out, true, NULL);
}

/* ---- running ------------------------------------------------------------------------------------ */

/* [groups, unit, hidden] to [groups, hidden, unit]: the order of the filters. */
static tn_tensor turn(graph_run *r, const vision_merger *m, const tn_tensor *x, int64_t unit)
{
    int64_t groups = x->shape[0] / unit, hidden = x->shape[1];
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){groups, hidden * unit});
    tn_tensor from = steps_view(x, 4, (int64_t[]){groups, unit, hidden, 1});
    tn_tensor to = steps_view(&y, 4, from.shape);
    to.stride[1] = 1;
    to.stride[2] = unit;
    steps_copy(r, m->turn, &from, &to);
    return y;
}

void vision_merger_run(graph_run *r, const vision_tower *v, const vision_merger *m, const tn_tensor *x,
                       const tn_tensor *rest, const tn_tensor *y)
{
    int64_t unit = v->spec.merge * v->spec.merge, group[] = {x->shape[0] / unit, unit * v->spec.hidden};
    tn_tensor grouped = steps_view(x, 2, group), z;
    if (m->of_group)
        z = steps_norm(r, m->norm, &grouped);
    else
        z = rest ? steps_add_norm(r, m->norm, x, rest) : steps_norm(r, m->norm, x);
    if (m->downsample) {
        z = turn(r, m, &z, unit);
        z = steps_linear(r, m->downsample, &z);
        z = steps_linear(r, m->first, &z);
        steps_norm_in_place(r, m->second, &z);
        steps_change(r, m->act, &z);
        steps_mlp(r, m->mlp, &z, y);
        return;
    }
    z = steps_view(&z, 2, group);
    z = steps_linear(r, m->first, &z);
    steps_change(r, m->act, &z);
    steps_linear_into(r, m->second, &z, y);
}
