/* A block of experts: router, experts, and the site of both together. */
#include "models/moe_parts.h"

#include <stdio.h>
#include <stdlib.h>

static void fill_route(graph_site *s, const moe_parts_spec *spec)
{
    s->site.meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    s->site.features |= spec->route_features;
    s->site.dim[TN_DIM_HIDDEN] = spec->hidden;
    s->site.dim[TN_DIM_EXPERTS] = spec->experts;
    s->site.dim[TN_DIM_TOP_K] = spec->top_k;
}

static void fill_experts(graph_site *s, const moe_parts_spec *spec, tn_layout layout)
{
    s->site.meaning[TN_AXIS_ACT] = spec->act;
    s->site.meaning[TN_AXIS_LAYOUT] = layout;
    s->site.features |= spec->route_features & TN_HAS_F32_ROUTING;
    s->site.dim[TN_DIM_HIDDEN] = spec->hidden;
    s->site.dim[TN_DIM_INTER] = spec->inter;
    s->site.dim[TN_DIM_EXPERTS] = spec->experts;
    s->site.dim[TN_DIM_TOP_K] = spec->top_k;
}

static void read_stacked(graph_builder *b, graph_module *m, const moe_parts_spec *spec, graph_site *s)
{
    tn_tensor gate_up, down;
    int64_t e = spec->experts, inter = spec->inter, hidden = spec->hidden;
    if (!build_tensor(b, m, spec->names->all_gate_up, 3, (int64_t[]){e, 2 * inter, hidden}, &gate_up) ||
        !build_tensor(b, m, spec->names->all_down, 3, (int64_t[]){e, hidden, inter}, &down))
        return;
    build_param(b, s, TN_ROLE_GATE_UP, &gate_up, 1);
    build_param(b, s, TN_ROLE_DOWN, &down, 1);
}

/* One projection of every expert. list has room for them. */
static void read_projection(graph_builder *b, graph_module *m, const char *projection, const int64_t shape[2],
                            int64_t experts, tn_tensor *list)
{
    for (int64_t e = 0; e < experts && b->status == TN_OK; e++) {
        char name[64];
        snprintf(name, sizeof name, "%lld.%s.weight", (long long)e, projection);
        build_tensor(b, m, name, 2, shape, &list[e]);
    }
}

static void read_list(graph_builder *b, graph_module *m, const moe_parts_spec *spec, graph_site *s)
{
    const moe_parts_names *n = spec->names;
    int64_t in[2] = {spec->inter, spec->hidden}, out[2] = {spec->hidden, spec->inter}, count = spec->experts;
    tn_tensor *list = b->status == TN_OK ? calloc((size_t)count, sizeof *list) : NULL;
    if (!list) {
        build_fail(b, TN_E_MEMORY, "graph", "out of memory for %lld experts", (long long)count);
        return;
    }
    read_projection(b, m, n->gate, in, count, list);
    build_param(b, s, TN_ROLE_GATE, list, count);
    read_projection(b, m, n->up, in, count, list);
    build_param(b, s, TN_ROLE_UP, list, count);
    read_projection(b, m, n->down, out, count, list);
    build_param(b, s, TN_ROLE_DOWN, list, count);
    free(list);
}

graph_site *moe_parts_block(graph_builder *b, graph_module *parent, const char *name, const moe_parts_spec *spec)
{
    const moe_parts_names *n = spec->names;
    graph_module *m = build_module(b, parent, name, n->block_class);
    graph_site *block = build_site(b, m, TN_OP_MOE_BLOCK, NULL);
    graph_module *router_module = build_module(b, m, n->router, n->router_class);
    graph_site *route = build_site(b, router_module, TN_OP_MOE_ROUTE, block);
    graph_module *experts_module = build_module(b, m, n->experts, n->experts_class);
    graph_site *experts = build_site(b, experts_module, TN_OP_MOE_EXPERTS, block);
    tn_tensor router;
    if (!experts || !build_tensor(b, router_module, "weight", 2, (int64_t[]){spec->experts, spec->hidden}, &router))
        return NULL;
    build_param(b, route, TN_ROLE_ROUTER, &router, 1);
    bool stacked = build_has(b, experts_module, n->all_gate_up);
    tn_layout layout = stacked ? TN_LAYOUT_STACKED_OI : TN_LAYOUT_EXPERT_LIST;
    (stacked ? read_stacked : read_list)(b, experts_module, spec, experts);
    fill_route(route, spec);
    fill_experts(experts, spec, layout);
    fill_route(block, spec);
    fill_experts(block, spec, layout);
    /* The block's site lends from those inside it: a kernel for the whole block finds all it needs in one place. */
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        build_lend(b, block, (tn_role)role, experts, (tn_role)role);
        build_lend(b, block, (tn_role)role, route, (tn_role)role);
    }
    block->part[GRAPH_PART_ROUTE] = route;
    block->part[GRAPH_PART_EXPERTS] = experts;
    return b->status == TN_OK ? block : NULL;
}
