/* Linear, norm, MLP, rotation: modules that are the same in most modeling files. */
#include "models/parts.h"

#include "base/convert.h"
#include "group/group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const parts_linear_kind parts_conv1d = {"Conv1D", true, NULL};

graph_site *parts_linear(graph_builder *b, graph_module *parent, const char *name, int64_t in, int64_t out, bool bias,
                         graph_site *outer)
{
    return parts_linear_of(NULL, b, parent, name, in, out, bias, outer);
}

int64_t parts_unit(const graph_builder *b, int64_t rows)
{
    enum { USUAL = 32, LEAST = 8 };
    const group *g = b->group ? b->group : b->sums;
    return g && group_cuts(g, rows, USUAL) ? USUAL : LEAST;
}

/* What every stage computes is whole. */
static parts_share share_of(const graph_builder *b, group *g, int64_t total, int64_t unit)
{
    parts_share share = {.ranges.count = 1};
    if (!g || (g->whole && !b->staged) || !group_cuts(g, total, unit))
        return (parts_share){0};
    share.cut = (graph_cut){g, total, unit};
    share.ranges.at[0].rows = group_share(g, g->end.rank, total, unit, &share.ranges.at[0].first);
    return share;
}

parts_share parts_share_of(const graph_builder *b, int64_t total, int64_t unit)
{
    return share_of(b, b->group, total, unit);
}

parts_share parts_inner_of(const graph_builder *b, int64_t total, int64_t unit)
{
    return share_of(b, b->group ? b->group : b->sums, total, unit);
}

parts_share parts_summed_of(const graph_builder *b, int64_t total, int64_t unit)
{
    return share_of(b, b->sums, total, unit);
}

parts_share parts_share_rows(const parts_share *share, int64_t of_each)
{
    parts_share rows = *share;
    rows.cut.total *= of_each;
    rows.cut.unit *= of_each;
    for (int32_t i = 0; i < rows.ranges.count; i++) {
        rows.ranges.at[i].first *= of_each;
        rows.ranges.at[i].rows *= of_each;
    }
    rows.stays = true;
    return rows;
}

int64_t parts_inner_unit(graph_builder *b, const graph_module *m, const char *name, int64_t columns)
{
    int64_t unit = parts_unit(b, columns), whole = b->sums && m ? build_columns_unit(b, m, name) : 1;
    while (whole > 0 && unit % whole)
        unit += parts_unit(b, columns);
    return !b->sums || group_cuts(b->sums, columns, unit) ? unit : parts_unit(b, columns);
}

parts_share parts_back_of(const graph_builder *b, const parts_share *inner)
{
    parts_share share = {0};
    if (b->sums && inner->cut.group) {
        share = *inner;
        share.adds = true;
        share.stays = false;
    }
    return share;
}

void parts_add_up(graph_site *s, const parts_share *inner, bool stays)
{
    s->cut = inner->cut;
    s->adds = true;
    s->stays_cut = stays;
}

bool parts_zeros(graph_builder *b, int64_t count, tn_tensor *out)
{
    float *zeros = b->status == TN_OK ? calloc((size_t)count, sizeof *zeros) : NULL;
    if (b->status == TN_OK && !zeros)
        build_fail(b, TN_E_MEMORY, "graph", "out of memory while loading weights; free some memory");
    bool made = zeros && build_values(b, b->dtype, count, zeros, out);
    free(zeros);
    return made;
}

void parts_share_again(parts_share *share, int64_t by)
{
    if (!share->cut.group)
        return;
    share->ranges.at[share->ranges.count] = share->ranges.at[0];
    share->ranges.at[share->ranges.count++].first += by;
}

graph_site *parts_linear_of(const parts_linear_kind *kind, graph_builder *b, graph_module *parent, const char *name,
                            int64_t in, int64_t out, bool bias, graph_site *outer)
{
    parts_share share = {0};
    if (!outer)
        share = parts_share_of(b, out, parts_unit(b, out));
    return parts_linear_share(kind, b, parent, name, in, out, bias, outer, &share);
}

graph_site *parts_linear_share(const parts_linear_kind *kind, graph_builder *b, graph_module *parent, const char *name,
                               int64_t in, int64_t out, bool bias, graph_site *outer, const parts_share *share)
{
    const build_ranges *ranges = share->cut.group ? &share->ranges : NULL;
    const build_form form = {.turned = kind && kind->turned, .ranges = ranges, .dim = share->adds},
                     vector = {.ranges = share->adds ? NULL : ranges};
    graph_module *m = build_module(b, parent, name, kind ? kind->class_name : "Linear");
    if (kind && kind->inner)
        m = build_module(b, m, kind->inner, "Linear");
    graph_site *s = build_site(b, m, TN_OP_LINEAR, outer);
    tn_tensor weight, bias_tensor;
    if (!s || !build_tensor_as(b, m, "weight", 2, (int64_t[]){out, in}, &form, &weight))
        return NULL;
    build_param(b, s, TN_ROLE_WEIGHT, &weight, 1);
    bool others = share->adds && b->sums->end.rank > 0; /* one rank adds the bias of a sum                    */
    if (bias && build_tensor_as(b, m, "bias", 1, &out, &vector, &bias_tensor) &&
        (!others || parts_zeros(b, out, &bias_tensor))) {
        build_param(b, s, TN_ROLE_BIAS, &bias_tensor, 1);
        s->site.features |= TN_HAS_BIAS;
    }
    s->site.dim[TN_DIM_HIDDEN] = share->adds ? build_ranges_rows(ranges) : in;
    s->site.dim[TN_DIM_OUT] = ranges && !share->adds ? build_ranges_rows(ranges) : out;
    s->cut = share->cut;
    s->adds = share->adds;
    s->stays_cut = share->stays;
    return b->status == TN_OK ? s : NULL;
}

graph_site *parts_linear_some(const parts_linear_kind *kind, graph_builder *b, graph_module *parent, const char *name,
                              int64_t in, int64_t out, bool bias, const parts_share *share)
{
    return share->cut.group ? parts_linear_share(kind, b, parent, name, in, out, bias, NULL, share)
                            : parts_linear_of(kind, b, parent, name, in, out, bias, NULL);
}

static void fill_norm(graph_builder *b, graph_site *s, const parts_norm_kind *kind, int64_t width,
                      const tn_tensor *weight)
{
    if (weight)
        build_param(b, s, TN_ROLE_WEIGHT, weight, 1);
    s->site.meaning[TN_AXIS_NORM] = kind->variant;
    s->site.dim[TN_DIM_WIDTH] = width;
    s->site.num[TN_NUM_EPS] = kind->eps;
}

static graph_site *layer_norm(graph_builder *b, graph_module *m, const parts_norm_kind *kind, int64_t width)
{
    graph_site *s = build_site(b, m, TN_OP_LAYER_NORM, NULL);
    tn_tensor weight, bias;
    if (!s || !(kind->plain ? build_ones(b, width, &weight) : build_tensor(b, m, "weight", 1, &width, &weight)))
        return NULL;
    build_param(b, s, TN_ROLE_WEIGHT, &weight, 1);
    if (kind->bias && !kind->plain && build_tensor(b, m, "bias", 1, &width, &bias)) {
        build_param(b, s, TN_ROLE_BIAS, &bias, 1);
        s->site.features |= TN_HAS_BIAS;
    }
    s->site.dim[TN_DIM_WIDTH] = width;
    s->site.num[TN_NUM_EPS] = kind->eps;
    return b->status == TN_OK ? s : NULL;
}

graph_site *parts_norm(graph_builder *b, graph_module *parent, const char *name, const parts_norm_kind *kind,
                       int64_t width, bool of_sum)
{
    graph_module *m = build_module(b, parent, name, kind->class_name);
    if (kind->layer_norm)
        return layer_norm(b, m, kind, width);
    graph_site *sum = of_sum ? build_site(b, m, TN_OP_ADD_RMS_NORM, NULL) : NULL;
    graph_site *s = build_site(b, m, TN_OP_RMS_NORM, sum);
    tn_tensor tensor;
    const tn_tensor *weight = kind->variant == TN_NORM_NO_WEIGHT ? NULL : &tensor;
    if (!s || (weight && !build_tensor(b, m, "weight", 1, &width, &tensor)))
        return NULL;
    fill_norm(b, s, kind, width, weight);
    if (sum) {
        fill_norm(b, sum, kind, width, weight);
        sum->part[GRAPH_PART_NORM] = s;
    }
    return b->status == TN_OK ? s : NULL;
}

/* One projection of an MLP, whose site borrows its weight and bias where they are whole. */
static void mlp_projection(graph_builder *b, graph_site *mlp, int part, graph_site *linear, tn_role weight,
                           tn_role bias)
{
    mlp->part[part] = linear;
    if (mlp->by_parts)
        return;
    build_lend(b, mlp, weight, linear, TN_ROLE_WEIGHT);
    build_lend(b, mlp, bias, linear, TN_ROLE_BIAS);
}

/* The z below which that share of a normal distribution lies; halving is exact enough and needs no inverse of erf. */
static double normal_quantile(double share)
{
    double low = -40, high = 40;
    for (int i = 0; i < 80; i++) {
        double z = (low + high) / 2;
        if (0.5 * erfc(-z * sqrt(0.5)) < share)
            low = z;
        else
            high = z;
    }
    return (low + high) / 2;
}

/* log(1 + e^x), rounded to dtype. */
static float softplus(float x, tn_dtype dtype)
{
    uint32_t bits = 0;
    float y = x > 20.0f ? x : log1pf(expf(x));
    convert_from_f32(&y, dtype, &bits, 1);
    convert_to_f32(&bits, dtype, &y, 1);
    return y;
}

/* The parameters of xIELU become numbers of the site: its factors above and below 0 are softplus of what files have. */
static void read_xielu(graph_builder *b, graph_module *m, tn_site *site)
{
    float p = 0, n = 0, beta = 0, eps = 0;
    graph_module *act = build_module(b, m, "act_fn", "XIELUActivation");
    build_number(b, act, "alpha_p", 1, &p);
    build_number(b, act, "alpha_n", 1, &n);
    build_number(b, act, "beta", 0, &beta);
    build_number(b, act, "eps", 0, &eps);
    site->num[TN_NUM_ALPHA] = softplus(p, b->dtype);
    site->num[TN_NUM_ALPHA_N] = beta + softplus(n, b->dtype);
    site->num[TN_NUM_BETA] = beta;
    site->num[TN_NUM_EPS] = eps;
}

/* PReLU's weight becomes a number of the site. */
static void read_prelu(graph_builder *b, graph_module *m, tn_site *site)
{
    float slope = 0;
    build_number(b, build_module(b, m, "act_fn", "PReLU"), "weight", 1, &slope);
    site->num[TN_NUM_ALPHA] = (double)slope;
}

void parts_cut(graph_site *s, graph_cut cut)
{
    if (!cut.group)
        return;
    s->cut = cut;
    s->by_parts = true;
    s->declined = "its parts are cut over ranks, and are performed one by one";
}

graph_site *parts_mlp(graph_builder *b, graph_module *parent, const char *name, const parts_mlp_spec *spec,
                      graph_site *outer)
{
    return parts_mlp_of(b, build_module(b, parent, name, spec->class_name), spec, outer);
}

graph_site *parts_mlp_of(graph_builder *b, graph_module *m, const parts_mlp_spec *spec, graph_site *outer)
{
    static const parts_mlp_names usual = {"gate_proj", "up_proj", "down_proj"};
    static const parts_mlp_names fused = {"gate_up_proj", NULL, "down_proj"};
    tn_layout layout = spec->layout ? spec->layout : TN_LAYOUT_SPLIT;
    bool split = layout == TN_LAYOUT_SPLIT, gated = layout != TN_LAYOUT_UP_DOWN;
    const parts_mlp_names *n = spec->names ? spec->names : split || !gated ? &usual : &fused;
    int64_t hidden = spec->hidden, inter = spec->inter;
    graph_site *s = build_site(b, m, TN_OP_MLP, outer);
    if (!s)
        return NULL;
    /* What a gate cuts off follows from all of a row. */
    parts_share own = {0}, back = {0}, both;
    char down[64];
    snprintf(down, sizeof down, "%s.weight", n->down);
    if (spec->sparsity > 0 && b->sums)
        build_fail(b, TN_E_USAGE, "parallel",
                   "activation_sparsity_pattern: which gates are open hangs on how sums are rounded; use tensor");
    if (!(spec->sparsity > 0))
        own = parts_inner_of(b, inter, parts_inner_unit(b, m, down, inter));
    if (own.cut.group)
        back = b->sums ? parts_back_of(b, &own) : parts_share_of(b, hidden, parts_unit(b, hidden));
    both = own;
    own.stays = both.stays = true;
    parts_share_again(&both, inter);
    if (back.adds) {
        back.stays = true;
        parts_add_up(s, &own, outer);
    } else {
        parts_cut(s, own.cut);
    }
    if (split)
        mlp_projection(b, s, GRAPH_PART_GATE,
                       parts_linear_share(spec->linear, b, m, n->gate, hidden, inter, spec->bias, s, &own),
                       TN_ROLE_GATE, TN_ROLE_GATE_BIAS);
    else if (gated)
        mlp_projection(b, s, GRAPH_PART_GATE,
                       parts_linear_share(spec->linear, b, m, n->gate, hidden, 2 * inter, spec->bias, s, &both),
                       TN_ROLE_GATE_UP, TN_ROLE_GATE_UP_BIAS);
    if (split || !gated)
        mlp_projection(b, s, GRAPH_PART_UP,
                       parts_linear_share(spec->linear, b, m, n->up, hidden, inter, spec->bias, s, &own), TN_ROLE_UP,
                       TN_ROLE_UP_BIAS);
    mlp_projection(b, s, GRAPH_PART_DOWN,
                   parts_linear_share(spec->linear, b, m, n->down, inter, hidden, spec->bias, s, &back), TN_ROLE_DOWN,
                   TN_ROLE_DOWN_BIAS);
    if (spec->act == TN_ACT_XIELU && !gated)
        read_xielu(b, m, &s->site);
    if (spec->act == TN_ACT_PRELU)
        read_prelu(b, m, &s->site);
    s->site.meaning[TN_AXIS_ACT] = spec->act;
    s->site.meaning[TN_AXIS_LAYOUT] = layout;
    s->site.features |= (spec->bias ? TN_HAS_BIAS : 0) | (spec->sparsity > 0 ? TN_HAS_SPARSITY : 0);
    s->site.num[TN_NUM_SPARSITY] = spec->sparsity > 0 ? normal_quantile((float)spec->sparsity) : 0;
    s->site.dim[TN_DIM_HIDDEN] = hidden;
    s->site.dim[TN_DIM_INTER] = back.adds ? build_ranges_rows(&own.ranges) : inter;
    return b->status == TN_OK ? s : NULL;
}

/* The child of that name, made where there is none yet. */
static graph_module *child(graph_builder *b, graph_module *parent, const char *name, const char *class_name)
{
    for (graph_module *m = parent ? parent->first_child : NULL; m; m = m->next)
        if (!strcmp(m->name, name))
            return m;
    return build_module(b, parent, name, class_name);
}

graph_site *parts_rope(graph_builder *b, const char *scope, const parts_rope_spec *spec)
{
    graph_module *function = child(b, child(b, b->graph->scopes, scope, "scope"), spec->function, "function");
    if (spec->variant)
        function = build_module(b, function, spec->variant, "function");
    graph_site *s = build_site(b, function, TN_OP_ROPE, NULL);
    if (!s)
        return NULL;
    s->site.meaning[TN_AXIS_ROPE] = spec->style;
    s->site.features = (spec->rotary < spec->head_dim ? TN_HAS_PARTIAL : 0) | (spec->merged ? TN_HAS_MROPE : 0) |
                       (spec->roundings ? TN_HAS_ROUNDINGS : 0);
    s->site.dim[TN_DIM_HEAD] = spec->head_dim;
    s->site.dim[TN_DIM_ROTARY] = spec->rotary;
    s->site.dim[TN_DIM_Q_HEADS] = spec->heads;
    s->site.dim[TN_DIM_KV_HEADS] = spec->kv_heads;
    return s;
}

tn_site *parts_factor(graph_builder *b, const graph_module *module, double by, int64_t width)
{
    tn_site *step = by != 0 && by != 1 ? build_step(b, module, TN_OP_SCALE, width) : NULL;
    if (step)
        step->num[TN_NUM_SCALE] = by;
    return step;
}

tn_site *parts_act_step(graph_builder *b, const graph_module *module, tn_op op, tn_act act, int64_t width)
{
    tn_site *step = build_step(b, module, op, width);
    if (!step)
        return NULL;
    step->meaning[TN_AXIS_ACT] = (int32_t)act;
    return act != TN_ACT_XIELU
               ? step
               : build_fail(b, TN_E_INPUT, "config.json",
                            "%s has the activation xielu, which is that of an MLP without a gate", module->path);
}

tn_act parts_act(const config_reader *config, const char *key, const char *fallback)
{
    /* gelu_fast multiplies in another order: the same but for roundings of 16 bits. */
    static const config_word acts[] = {{"silu", TN_ACT_SILU},
                                       {"swish", TN_ACT_SILU},
                                       {"gelu", TN_ACT_GELU},
                                       {"gelu_python", TN_ACT_GELU},
                                       {"gelu_pytorch_tanh", TN_ACT_GELU_TANH},
                                       {"gelu_new", TN_ACT_GELU_NEW},
                                       {"gelu_accurate", TN_ACT_GELU_NEW},
                                       {"gelu_fast", TN_ACT_GELU_NEW},
                                       {"gelu_python_tanh", TN_ACT_GELU_NEW},
                                       {"quick_gelu", TN_ACT_QUICK_GELU},
                                       {"relu", TN_ACT_RELU},
                                       {"relu2", TN_ACT_RELU2},
                                       {"relu6", TN_ACT_RELU6},
                                       {"sigmoid", TN_ACT_SIGMOID},
                                       {"tanh", TN_ACT_TANH},
                                       {"linear", TN_ACT_LINEAR},
                                       {"mish", TN_ACT_MISH},
                                       {"hardswish", TN_ACT_HARD_SWISH},
                                       {"leaky_relu", TN_ACT_LEAKY_RELU},
                                       {"laplace", TN_ACT_LAPLACE},
                                       {"gelu_10", TN_ACT_GELU_10},
                                       {"sqrtsoftplus", TN_ACT_SQRT_SOFTPLUS},
                                       {"xielu", TN_ACT_XIELU},
                                       {0}};
    return (tn_act)config_choice(config, key, fallback, acts);
}
