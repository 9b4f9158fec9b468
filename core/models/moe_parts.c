/* A block of experts: router, experts, the shared expert, and the site of all of them together. */
#include "models/moe_parts.h"

#include "group/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what sites mean ---------------------------------------------------------------------------- */

static uint64_t feature(bool is_there, uint64_t bit)
{
    return is_there ? bit : 0;
}

static void fill_route(graph_site *s, const moe_parts_spec *spec)
{
    bool groups = spec->groups > 1;
    s->site.meaning[TN_AXIS_SCORE] = spec->score ? spec->score : TN_SCORE_SOFTMAX;
    s->site.features |= (spec->route_features & ~TN_HAS_INPUT_SCALE) | feature(groups, TN_HAS_GROUPS) |
                        feature(spec->scale != 0 && spec->scale != 1, TN_HAS_ROUTE_SCALE) |
                        feature(spec->names->correction, TN_HAS_CORRECTION_BIAS) |
                        feature(spec->names->expert_scale, TN_HAS_EXPERT_SCALE);
    s->site.dim[TN_DIM_HIDDEN] = spec->hidden;
    s->site.dim[TN_DIM_EXPERTS] = spec->experts;
    s->site.dim[TN_DIM_TOP_K] = spec->top_k;
    s->site.dim[TN_DIM_GROUPS] = groups ? spec->groups : 0;
    s->site.dim[TN_DIM_TOP_GROUPS] = groups ? spec->top_groups : 0;
    s->site.num[TN_NUM_SCALE] = spec->scale;
    s->site.num[TN_NUM_EPS] = spec->least_sum;
    s->site.num[TN_NUM_MARGIN] = spec->margin;
}

static void fill_experts(graph_site *s, const moe_parts_spec *spec, tn_layout layout)
{
    s->site.meaning[TN_AXIS_ACT] = spec->act;
    s->site.meaning[TN_AXIS_LAYOUT] = layout;
    s->site.features |=
        (spec->route_features & (TN_HAS_F32_ROUTING | TN_HAS_INPUT_SCALE)) | feature(spec->bias, TN_HAS_BIAS);
    s->site.dim[TN_DIM_HIDDEN] = spec->hidden;
    s->site.dim[TN_DIM_INTER] = spec->inter;
    s->site.dim[TN_DIM_EXPERTS] = spec->experts;
    s->site.dim[TN_DIM_TOP_K] = spec->top_k;
    s->site.num[TN_NUM_LIMIT] = spec->limit;
    s->site.num[TN_NUM_ALPHA] = spec->alpha;
}

/* ---- the router ---------------------------------------------------------------------------------- */

static void read_correction(graph_builder *b, graph_module *block, graph_module *router, const moe_parts_spec *spec,
                            graph_site *s)
{
    const moe_parts_names *n = spec->names;
    graph_module *m = n->correction_of_block ? block : router;
    const build_form form = {.dtype = spec->f32_correction ? TN_F32 : 0};
    tn_tensor correction;
    if (n->statics)
        m = build_module(b, router, n->statics, n->statics_class);
    if (!m)
        return;
    /* Ernie's file has one row of them. */
    const int64_t row[2] = {1, spec->experts};
    bool is_row = build_has_shape(b, m, n->correction, 2, row);
    if (!build_tensor_as(b, m, n->correction, is_row ? 2 : 1, is_row ? row : &spec->experts, &form, &correction))
        return;
    correction = tn_tensor_dense(correction.data, correction.dtype, 1, &spec->experts);
    build_param(b, s, TN_ROLE_CORRECTION_BIAS, &correction, 1);
}

static void read_router(graph_builder *b, graph_module *m, const moe_parts_spec *spec, graph_site *s)
{
    const build_form form = {.dtype = spec->f32_router ? TN_F32 : 0};
    tn_tensor weight, bias, scale;
    if (spec->names->router_linear)
        m = build_module(b, m, spec->names->router_linear, "Linear");
    if (!m || !build_tensor_as(b, m, "weight", 2, (int64_t[]){spec->experts, spec->hidden}, &form, &weight))
        return;
    if (spec->router_bias && build_tensor(b, m, "bias", 1, &spec->experts, &bias))
        build_param(b, s, TN_ROLE_ROUTER_BIAS, &bias, 1);
    if (spec->names->expert_scale && build_tensor(b, s->module, spec->names->expert_scale, 1, &spec->experts, &scale))
        build_param(b, s, TN_ROLE_EXPERT_SCALE, &scale, 1);
    build_param(b, s, TN_ROLE_ROUTER, &weight, 1);
}

graph_site *moe_parts_router(graph_builder *b, graph_module *parent, const moe_parts_spec *spec, graph_site *outer)
{
    const moe_parts_names *n = spec->names;
    graph_module *m = build_module(b, parent, n->router, n->router_class);
    graph_site *s = build_site(b, m, TN_OP_MOE_ROUTE, outer);
    if (!s)
        return NULL;
    if (n->correction)
        read_correction(b, parent, m, spec, s);
    read_router(b, m, spec, s);
    fill_route(s, spec);
    return b->status == TN_OK ? s : NULL;
}

/* ---- the experts --------------------------------------------------------------------------------- */

/* Which of each expert's inner rows (or which experts) are the rank's where what they give is added up, if the shared
 * expert can be cut, too. What is read is named from the block on. */
static parts_share inner_share(graph_builder *b, const graph_module *parent, const moe_parts_spec *spec)
{
    char name[128];
    snprintf(name, sizeof name, "%s.0.%s.weight", spec->names->experts, spec->names->down);
    if (!b->sums || !parent || b->status != TN_OK ||
        (spec->shared_inter > 0 && !group_cuts(b->sums, spec->shared_inter, parts_unit(b, spec->shared_inter))))
        return (parts_share){0};
    if (b->whole_experts)
        return parts_summed_of(b, spec->experts, 1);
    return parts_inner_of(b, spec->inter, parts_inner_unit(b, parent, name, spec->inter));
}

/* Ranges of gates and ups that lie in one matrix. */
static build_ranges both_of(const parts_share *own, const moe_parts_spec *spec, tn_layout layout)
{
    parts_share both = *own;
    if (layout != TN_LAYOUT_PAIRS_IO) {
        parts_share_again(&both, spec->inter);
        return both.ranges;
    }
    both.ranges.at[0].first *= 2;
    both.ranges.at[0].rows *= 2;
    return both.ranges;
}

/* One of the two stacks, [E,out,in] or, where columns is set, [E,in,out]; turned: the file has the other order. */
static bool read_stack(graph_builder *b, graph_module *m, const moe_parts_spec *spec, bool down, tn_layout layout,
                       bool turned, const parts_share *own, tn_tensor *t)
{
    bool columns = layout != TN_LAYOUT_STACKED_OI;
    int64_t out = down ? spec->hidden : 2 * spec->inter, in = down ? spec->inter : spec->hidden;
    const int64_t shape[3] = {spec->experts, columns ? in : out, columns ? out : in};
    const char *name = down ? spec->names->all_down : spec->names->all_gate_up;
    const build_ranges some = down ? own->ranges : both_of(own, spec, layout);
    const build_form form = {.turned = turned, .ranges = own->cut.group ? &some : NULL, .dim = down == columns ? 1 : 2};
    return build_tensor_as(b, m, name, 3, shape, &form, t);
}

/* A file turns a stack where its shape is not the module's, which a square one cannot tell: so one of the two may be
 * turned and the other not. */
static tn_layout read_stacked(graph_builder *b, graph_module *m, const moe_parts_spec *spec, const parts_share *own,
                              graph_site *s)
{
    tn_layout layout = spec->stacked ? spec->stacked : TN_LAYOUT_STACKED_OI;
    int64_t e = spec->experts, inter = spec->inter, hidden = spec->hidden;
    const moe_parts_names *n = spec->names;
    bool columns = layout != TN_LAYOUT_STACKED_OI;
    const int64_t gate_up_oi[3] = {e, 2 * inter, hidden}, down_oi[3] = {e, hidden, inter};
    bool turns = spec->turns && !columns;
    bool turn_gate_up = turns && !build_has_shape(b, m, n->all_gate_up, 3, gate_up_oi);
    bool turn_down = turns && !build_has_shape(b, m, n->all_down, 3, down_oi);
    if (turn_gate_up && turn_down) {
        layout = TN_LAYOUT_STACKED_IO;
        turn_gate_up = turn_down = false;
    }
    tn_tensor gate_up, down;
    if (!read_stack(b, m, spec, false, layout, turn_gate_up, own, &gate_up) ||
        !read_stack(b, m, spec, true, layout, turn_down, own, &down))
        return layout;
    build_param(b, s, TN_ROLE_GATE_UP, &gate_up, 1);
    build_param(b, s, TN_ROLE_DOWN, &down, 1);
    return layout;
}

static void read_biases(graph_builder *b, graph_module *m, const moe_parts_spec *spec, const parts_share *own,
                        tn_layout layout, graph_site *s)
{
    char name[64];
    tn_tensor gate_up, down;
    const int64_t shape[2] = {spec->experts, spec->hidden};
    const build_ranges both = both_of(own, spec, layout);
    const build_form form = {.ranges = own->cut.group ? &both : NULL, .dim = 1};
    snprintf(name, sizeof name, "%s_bias", spec->names->all_gate_up);
    if (build_tensor_as(b, m, name, 2, (int64_t[]){spec->experts, 2 * spec->inter}, &form, &gate_up))
        build_param(b, s, TN_ROLE_GATE_UP_BIAS, &gate_up, 1);
    snprintf(name, sizeof name, "%s_bias", spec->names->all_down);
    bool others = own->cut.group && b->sums->end.rank > 0; /* one rank adds the bias of a sum                     */
    if (!build_tensor(b, m, name, 2, shape, &down) || (others && !parts_zeros(b, shape[0] * shape[1], &down)))
        return;
    down = tn_tensor_dense(down.data, down.dtype, 2, shape);
    build_param(b, s, TN_ROLE_DOWN_BIAS, &down, 1);
}

static void read_expert(graph_builder *b, graph_module *m, int64_t expert, const char *projection,
                        const int64_t shape[2], const build_form *form, tn_tensor *t)
{
    char name[64];
    snprintf(name, sizeof name, "%lld.%s.weight", (long long)expert, projection);
    build_tensor_as(b, m, name, 2, shape, form, t);
}

/* Gate and up of every expert, in turn, so that they follow one another where the device may read them as one. list
 * receives gates, then ups; one matrix may be both. */
static void read_pairs(graph_builder *b, graph_module *m, const moe_parts_names *n, const int64_t shape[2],
                       int64_t experts, const build_form *form, tn_tensor *list)
{
    bool one = strcmp(n->up, n->gate) == 0;
    build_together(b, one ? experts : 2 * experts, shape[0] * shape[1]);
    for (int64_t e = 0; e < experts; e++) {
        read_expert(b, m, e, n->gate, shape, form, &list[e]);
        list[experts + e] = list[e];
        if (!one)
            read_expert(b, m, e, n->up, shape, form, &list[experts + e]);
    }
    build_together(b, 0, 0);
}

/* A file with more experts than config.json says is not of that config. */
static void refuse_more(graph_builder *b, graph_module *m, const moe_parts_spec *spec)
{
    char name[64];
    snprintf(name, sizeof name, "%lld.%s.weight", (long long)spec->experts, spec->names->gate);
    if (build_has(b, m, name))
        build_fail(b, TN_E_INPUT, m->path, "the checkpoint has an expert %lld, %s of config.json is %lld",
                   (long long)spec->experts, spec->experts_key ? spec->experts_key : "num_experts",
                   (long long)spec->experts);
}

static void read_list(graph_builder *b, graph_module *m, const moe_parts_spec *spec, const parts_share *own,
                      graph_site *s)
{
    const build_ranges *some = own->cut.group ? &own->ranges : NULL;
    const build_form rows = {.ranges = some}, columns = {.ranges = some, .dim = 1};
    const moe_parts_names *n = spec->names;
    int64_t in[2] = {spec->inter, spec->hidden}, out[2] = {spec->hidden, spec->inter}, count = spec->experts;
    tn_tensor *list = b->status == TN_OK ? calloc(2 * (size_t)count, sizeof *list) : NULL;
    if (!list) {
        build_fail(b, TN_E_MEMORY, "graph", "out of memory for %lld experts", (long long)count);
        return;
    }
    refuse_more(b, m, spec);
    read_pairs(b, m, n, in, count, &rows, list);
    build_param(b, s, TN_ROLE_GATE, list, count);
    build_param(b, s, TN_ROLE_UP, list + count, count);
    build_together(b, count, out[0] * out[1]);
    for (int64_t e = 0; e < count; e++)
        read_expert(b, m, e, n->down, out, &columns, &list[e]);
    build_together(b, 0, 0);
    build_param(b, s, TN_ROLE_DOWN, list, count);
    free(list);
}

/* Does the file have the stacks, or should it? */
static bool is_stacked(graph_builder *b, const graph_module *m, const moe_parts_names *n)
{
    char name[64];
    snprintf(name, sizeof name, "0.%s.weight", n->gate);
    return n->stacks ? !build_has(b, m, name) : build_has(b, m, n->all_gate_up);
}

/* ---- experts that are cut over ranks ---------------------------------------------------------------- */

/* The products of one projection: some rows of each expert's matrix, which are of_all[e] from row `from` on. */
static graph_site *rows_of_each(graph_builder *b, graph_module *m, const char *name, const tn_tensor *of_all,
                                int64_t experts, int64_t from, const parts_share *share)
{
    graph_site *s = build_site(b, build_module(b, m, name, "Linear"), TN_OP_GROUPED_MATMUL, NULL);
    tn_tensor *list = s ? calloc((size_t)experts, sizeof *list) : NULL;
    if (!list)
        return s ? build_fail(b, TN_E_MEMORY, "graph", "out of memory for %lld experts", (long long)experts) : NULL;
    for (int64_t e = 0; e < experts; e++)
        list[e] = build_rows(b, &of_all[e], from + share->ranges.at[0].first, share->ranges.at[0].rows);
    build_param(b, s, TN_ROLE_WEIGHT, list, experts);
    free(list);
    s->site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_EXPERT_LIST;
    s->site.dim[TN_DIM_HIDDEN] = of_all->shape[1];
    s->site.dim[TN_DIM_OUT] = share->ranges.at[0].rows;
    s->site.dim[TN_DIM_EXPERTS] = experts;
    s->cut = share->cut;
    return s;
}

/* The matrices of a parameter, one for each expert: as they are, or those of a stack. NULL after an error; owned. */
static tn_tensor *each_of(graph_builder *b, const tn_param *param, int64_t experts)
{
    tn_tensor *list = param->count ? calloc((size_t)experts, sizeof *list) : NULL;
    const tn_tensor *t = param->tensors;
    if (!list)
        return build_fail(b, TN_E_MEMORY, "graph", "out of memory for %lld experts", (long long)experts);
    for (int64_t e = 0; e < experts; e++) {
        list[e] = param->count > 1 ? t[e] : *t;
        if (t->ndim == 3) {
            list[e] = tn_tensor_dense(t->data, t->dtype, 2, &t->shape[1]);
            list[e].data = (char *)t->data + tn_dtype_bytes(t->dtype, e * t->stride[0]);
        }
    }
    return list;
}

/* Of each of the site's parameters what is the rank's own experts'. */
static void keep_experts(graph_builder *b, graph_site *s, const struct build_range *own, int64_t experts)
{
    for (int role = 0; role < TN_ROLE_MAX && b->status == TN_OK; role++) {
        const tn_param *p = &s->site.param[role];
        tn_tensor some;
        if (p->count == experts && experts > 1) {
            b->status = graph_set_site_param(&s->site, (tn_role)role, p->tensors + own->first, own->rows, b->err);
        } else if (p->count == 1) {
            some = p->tensors[0];
            some.data = (char *)some.data + tn_dtype_bytes(some.dtype, own->first * some.stride[0]);
            some.shape[0] = own->rows;
            b->status = graph_set_site_param(&s->site, (tn_role)role, &some, 1, b->err);
        }
    }
}

/* Each of a rank's experts is given one token's slot. */
static void deal_experts(graph_builder *b, graph_site *s, const moe_parts_spec *spec, const parts_share *some)
{
    keep_experts(b, s, &some->ranges.at[0], spec->experts);
    s->cut = some->cut;
    s->dealt = true;
    s->site.dim[TN_DIM_EXPERTS] = some->ranges.at[0].rows;
    s->site.dim[TN_DIM_TOP_K] = 1;
}

/* Weights go from the site to those of its parts, rows of every expert. Where no row of an expert lies together, where
 * there are biases or stacks of codes, the rank has some experts whole. */
static void cut_experts(graph_builder *b, graph_site *s, const moe_parts_spec *spec, tn_layout layout)
{
    bool list = layout == TN_LAYOUT_EXPERT_LIST;
    const parts_share own = parts_share_of(b, spec->inter, parts_unit(b, spec->inter));
    const parts_share back = parts_share_of(b, spec->hidden, parts_unit(b, spec->hidden));
    const parts_share some = parts_share_of(b, spec->experts, 1);
    const tn_param *gate = &s->site.param[list ? TN_ROLE_GATE : TN_ROLE_GATE_UP];
    bool by_rows = (list || (layout == TN_LAYOUT_STACKED_OI && gate->count && tn_dtype_size(gate->tensors->dtype))) &&
                   own.cut.group && back.cut.group && !spec->bias;
    if (b->status != TN_OK || gate->count == 0 || (!by_rows && !some.cut.group))
        return;
    if (!by_rows) {
        deal_experts(b, s, spec, &some);
        return;
    }
    tn_tensor *first = each_of(b, gate, spec->experts);
    tn_tensor *second = list ? each_of(b, &s->site.param[TN_ROLE_UP], spec->experts) : NULL;
    tn_tensor *down = each_of(b, &s->site.param[TN_ROLE_DOWN], spec->experts);
    if (b->status == TN_OK) {
        s->product[GRAPH_PART_GATE] = rows_of_each(b, s->module, "gate", first, spec->experts, 0, &own);
        s->product[GRAPH_PART_UP] =
            rows_of_each(b, s->module, "up", list ? second : first, spec->experts, list ? 0 : spec->inter, &own);
        s->product[GRAPH_PART_DOWN] = rows_of_each(b, s->module, "down", down, spec->experts, 0, &back);
        parts_cut(s, own.cut);
    }
    free(first);
    free(second);
    free(down);
}

graph_site *moe_parts_experts(graph_builder *b, graph_module *parent, const moe_parts_spec *spec, graph_site *outer)
{
    const moe_parts_names *n = spec->names;
    graph_module *m = build_module(b, parent, n->experts, n->experts_class);
    graph_site *s = build_site(b, m, TN_OP_MOE_EXPERTS, outer);
    tn_layout layout = TN_LAYOUT_EXPERT_LIST;
    const parts_share share = inner_share(b, parent, spec);
    parts_share own = {0}; /* of each expert                                                          */
    if (!s)
        return NULL;
    if (!b->whole_experts)
        own = share;
    if (is_stacked(b, m, n))
        layout = read_stacked(b, m, spec, &own, s);
    else
        read_list(b, m, spec, &own, s);
    if (spec->bias)
        read_biases(b, m, spec, &own, layout, s);
    fill_experts(s, spec, layout);
    if (own.cut.group) {
        s->site.dim[TN_DIM_INTER] = build_ranges_rows(&own.ranges);
        parts_add_up(s, &own, outer);
        return b->status == TN_OK ? s : NULL;
    }
    if (share.cut.group) {
        deal_experts(b, s, spec, &share);
        parts_add_up(s, &share, outer);
    } else {
        cut_experts(b, s, spec, layout);
    }
    if (outer)
        parts_cut(outer, s->cut);
    return b->status == TN_OK ? s : NULL;
}

/* ---- the block ----------------------------------------------------------------------------------- */

static void build_shared(graph_builder *b, graph_module *m, const moe_parts_spec *spec, graph_site *block)
{
    const moe_parts_names *n = spec->names;
    const parts_mlp_spec mlp = {.class_name = n->shared_class,
                                .hidden = spec->hidden,
                                .inter = spec->shared_inter,
                                .act = spec->act,
                                .bias = spec->shared_bias};
    graph_site *shared = parts_mlp(b, m, n->shared, &mlp, block);
    if (!shared)
        return;
    build_lend(b, block, TN_ROLE_SHARED_GATE, shared, TN_ROLE_GATE);
    build_lend(b, block, TN_ROLE_SHARED_UP, shared, TN_ROLE_UP);
    build_lend(b, block, TN_ROLE_SHARED_DOWN, shared, TN_ROLE_DOWN);
    build_lend(b, block, TN_ROLE_SHARED_GATE_BIAS, shared, TN_ROLE_GATE_BIAS);
    build_lend(b, block, TN_ROLE_SHARED_UP_BIAS, shared, TN_ROLE_UP_BIAS);
    build_lend(b, block, TN_ROLE_SHARED_DOWN_BIAS, shared, TN_ROLE_DOWN_BIAS);
    if (shared->by_parts)
        parts_cut(block, shared->cut);
    block->site.features |= TN_HAS_SHARED_EXPERT | feature(spec->shared_bias, TN_HAS_SHARED_BIAS);
    block->site.dim[TN_DIM_SHARED_INTER] = shared->site.dim[TN_DIM_INTER];
    block->part[GRAPH_PART_SHARED] = shared;
    if (!n->shared_gate)
        return;
    graph_site *gate = parts_linear(b, m, n->shared_gate, spec->hidden, 1, false, block);
    build_lend(b, block, TN_ROLE_SHARED_EXPERT_GATE, gate, TN_ROLE_WEIGHT);
    block->site.features |= TN_HAS_SHARED_GATE;
    block->part[GRAPH_PART_SHARED_GATE] = gate;
}

graph_site *moe_parts_block(graph_builder *b, graph_module *parent, const char *name, const moe_parts_spec *spec)
{
    graph_module *m = build_module(b, parent, name, spec->names->block_class);
    graph_site *block = build_site(b, m, TN_OP_MOE_BLOCK, NULL);
    struct group *sums = b->sums;
    const parts_share own = inner_share(b, m, spec);
    b->sums = own.cut.group ? sums : NULL;
    graph_site *route = block ? moe_parts_router(b, m, spec, block) : NULL;
    graph_site *experts = route ? moe_parts_experts(b, m, spec, block) : NULL;
    if (!experts)
        return NULL;
    fill_route(block, spec);
    fill_experts(block, spec, (tn_layout)experts->site.meaning[TN_AXIS_LAYOUT]);
    block->site.dim[TN_DIM_INTER] = experts->site.dim[TN_DIM_INTER];
    if (own.cut.group)
        parts_add_up(block, &own, false);
    /* The block's site lends from those inside it: a kernel for the whole block finds all it needs in one place. */
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        build_lend(b, block, (tn_role)role, route, (tn_role)role);
        build_lend(b, block, (tn_role)role, experts, (tn_role)role);
    }
    if (spec->shared_inter > 0)
        build_shared(b, m, spec, block);
    b->sums = sums;
    /* Its weights are the experts'; a router may have a type of its own. */
    block->site.meaning[TN_AXIS_WEIGHT] = experts->site.meaning[TN_AXIS_WEIGHT];
    block->part[GRAPH_PART_ROUTE] = route;
    block->part[GRAPH_PART_EXPERTS] = experts;
    return b->status == TN_OK ? block : NULL;
}
