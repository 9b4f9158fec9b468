/* Steps that multiply with weights: linear layers, MLPs and blocks of experts, an adapter (LoRA) around their products
 * or not. */
#include "run/steps.h"

#include "group/group.h"

/* ---- linear layers -------------------------------------------------------------------------------- */

tn_tensor steps_linear(graph_run *r, const graph_site *site, const tn_tensor *x)
{
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){x->shape[0], steps_linear_width(site)});
    steps_linear_into(r, site, x, &y);
    return y;
}

/* What an adapter that is around a LINEAR drops in this call of its site, while training; a key without data else. */
static tn_tensor dropout_key(graph_run *r, const graph_site *site)
{
    tn_tensor key = tn_tensor_dense(NULL, TN_I64, 1, (int64_t[]){2});
    if (!r->noise)
        return key;
    key = steps_take(r, TN_I64, 1, key.shape);
    if (r->status == TN_OK) {
        /* The site's number in the upper half: the counter of a run never reaches it. */
        ((uint64_t *)key.data)[0] = r->noise + ((uint64_t)site->index << 40);
        ((int64_t *)key.data)[1] = r->first_row;
    }
    return key;
}

static void perform_lora(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y)
{
    if (!(site->site.features & TN_HAS_DROPOUT)) {
        steps_site(r, site, RUN_TENSORS(x), RUN_TENSORS(y));
        return;
    }
    int64_t most = graph_most_tokens(&site->site), rows = x->shape[0], before = r->first_row;
    for (int64_t at = 0; at < rows && r->status == TN_OK; at += most) {
        int64_t n = rows - at < most ? rows - at : most;
        r->first_row = before + at;
        const tn_tensor key = dropout_key(r, site), from = steps_part(x, 0, at, n), to = steps_part(y, 0, at, n);
        steps_site(r, site, RUN_TENSORS(&from, &key), RUN_TENSORS(&to));
    }
    r->first_row = before;
}

/* y is dense. */
static void linear_of_ranks(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y)
{
    size_t mark = arena_mark(r->arena);
    const tn_tensor own = steps_take(r, y->dtype, 2, (int64_t[]){x->shape[0], site->site.dim[TN_DIM_OUT]});
    steps_site(r, site, RUN_TENSORS(x), RUN_TENSORS(&own));
    steps_join_into(r, &site->cut, &own, y);
    steps_release(r, mark);
}

void steps_linear_into(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y)
{
    if (site->outer && site->outer->site.op == TN_OP_LORA_LINEAR)
        site = site->outer;
    if (site->site.op == TN_OP_LORA_LINEAR)
        perform_lora(r, site, x, y);
    else if (site->cut.group && !site->stays_cut && !site->adds)
        linear_of_ranks(r, site, x, y);
    else
        steps_site(r, site, RUN_TENSORS(x), RUN_TENSORS(y));
    if (site->adds && !site->stays_cut)
        steps_sum(r, &site->cut, y);
}

/* ---- what is composed of them, with adapters inside ----------------------------------------------- */

static int64_t own_inter(const graph_site *site)
{
    int64_t first, all = site->site.dim[TN_DIM_INTER];
    group *g = site->cut.group;
    return g ? group_share(g, g->end.rank, all, site->cut.unit, &first) : all;
}

/* On a tape they are performed call by call, so that each of their products has its gradients, and what backward reads
 * of them is kept; and where their parts are cut over ranks, so that each part is joined before the next reads it. */
static void mlp_by_parts(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y)
{
    const tn_site *s = &site->site;
    graph_site *const *part = site->part;
    int64_t rows = x->shape[0], inter = own_inter(site);
    int32_t layout = s->meaning[TN_AXIS_LAYOUT];
    bool split = layout == TN_LAYOUT_SPLIT, gated = layout != TN_LAYOUT_UP_DOWN;
    tn_tensor both = steps_take(r, r->dtype, 2, (int64_t[]){rows, gated && !split ? 2 * inter : inter});
    tn_tensor gate = both, up = both, p = both;
    if (split)
        up = steps_take(r, r->dtype, 2, (int64_t[]){rows, inter});
    else if (gated) {
        gate = steps_columns(&both, layout == TN_LAYOUT_GATE_UP ? 0 : inter, inter);
        up = steps_columns(&both, layout == TN_LAYOUT_GATE_UP ? inter : 0, inter);
    }
    steps_linear_into(r, part[gated ? GRAPH_PART_GATE : GRAPH_PART_UP], x, &both);
    if (split)
        steps_linear_into(r, part[GRAPH_PART_UP], x, &up);
    p = steps_take(r, r->dtype, 2, (int64_t[]){rows, inter});
    if (gated)
        steps_step(r, TN_OP_GLU, s, RUN_TENSORS(&gate, &up), RUN_TENSORS(&p));
    else
        steps_step(r, TN_OP_ACT, s, RUN_TENSORS(&both), RUN_TENSORS(&p));
    if (site->cut.group)
        p = steps_join(r, &site->cut, &p);
    steps_linear_into(r, part[GRAPH_PART_DOWN], &p, y);
}

/* The shared expert's rows times sigmoid(its gate). The step's meaning lives as long as the tape's calls. */
static void gate_shared(graph_run *r, const graph_site *block, const tn_tensor *x, const tn_tensor *z)
{
    tn_site own;
    void *memory = &own;
    tn_tensor gate = steps_linear(r, block->part[GRAPH_PART_SHARED_GATE], x);
    if (r->status == TN_OK && r->tape)
        r->status = arena_take(r->arena, sizeof(tn_site), &memory, r->err);
    if (r->status != TN_OK)
        return;
    tn_site *sigmoid = memory;
    *sigmoid = block->part[GRAPH_PART_SHARED]->site;
    sigmoid->meaning[TN_AXIS_ACT] = TN_ACT_SIGMOID;
    sigmoid->features = 0;
    gate.shape[1] = z->shape[1];
    gate.stride[1] = 0;
    steps_step(r, TN_OP_GLU, sigmoid, RUN_TENSORS(&gate, z), RUN_TENSORS(z));
}

static void block_by_parts(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y)
{
    steps_routed(r, site->part[GRAPH_PART_ROUTE], x, site->part[GRAPH_PART_EXPERTS], x, y);
    if (!(site->site.features & TN_HAS_SHARED_EXPERT))
        return;
    tn_tensor z = steps_take(r, r->dtype, 2, x->shape);
    steps_mlp(r, site->part[GRAPH_PART_SHARED], x, &z);
    if (site->site.features & TN_HAS_SHARED_GATE)
        gate_shared(r, site, x, &z);
    steps_add(r, y, &z);
}

void steps_mlp(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y)
{
    if (site->by_parts || (r->tape && site->site.features & TN_HAS_ADAPTER)) {
        (site->site.op == TN_OP_MLP ? mlp_by_parts : block_by_parts)(r, site, x, y);
    } else {
        steps_site(r, site, RUN_TENSORS(x), RUN_TENSORS(y));
    }
    if (site->adds && !site->stays_cut)
        steps_sum(r, &site->cut, y);
}
