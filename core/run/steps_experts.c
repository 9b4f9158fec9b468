/* Mixtures. Experts of which each rank has some rows: GROUPED_MATMUL for gates and ups, GLU, and GROUPED_MATMUL for
 * what goes back, joined behind the second and the third. The rows are sorted by expert, and what comes out is rounded
 * and added as MOE_EXPERTS has it: rnd(weight * expert(x)) for each slot (not rounded where weights are f32), the slots
 * of a token added in f32 in their order, and rounded once. */
#include "base/convert.h"
#include "group/group.h"
#include "run/steps.h"

#include <string.h>

/* Where the slots of all tokens lie among rows sorted by expert. In the host's memory. */
typedef struct sorted {
    tn_tensor token;        /* i64 [slots]: whose row each sorted row is                                  */
    tn_tensor place;        /* i64 [T,k]: which sorted row is a slot's                                    */
    tn_tensor factor;       /* f32 [slots]: the weight of each sorted row                                 */
    tn_tensor of_slot;      /* f32 [T,k]: weights                                                         */
    tn_tensor counts, next; /* i64 [E]; the first row of each that is free                            */
} sorted;

static int32_t chosen_at(const tn_tensor *chosen, int64_t token, int64_t k)
{
    int32_t expert;
    memcpy(&expert, (const char *)chosen->data + (size_t)(token * chosen->stride[0] + k) * sizeof expert,
           sizeof expert);
    return expert;
}

static void sort_slots(graph_run *r, const graph_site *site, const tn_tensor *chosen, sorted *s)
{
    int64_t *count = s->counts.data, *next = s->next.data, *token = s->token.data, *place = s->place.data;
    float *factor = s->factor.data, *of_slot = s->of_slot.data;
    int64_t tokens = chosen->shape[0], top_k = chosen->shape[1], experts = s->counts.shape[0];
    memset(count, 0, (size_t)experts * sizeof *count);
    for (int64_t i = 0; i < tokens * top_k; i++) {
        int32_t expert = chosen_at(chosen, i / top_k, i % top_k);
        if (expert < 0 || expert >= experts) {
            r->status = tn_fail(r->err, TN_E_INPUT, site->site.path, "token %lld asks for expert %d of %lld",
                                (long long)(i / top_k), (int)expert, (long long)experts);
            return;
        }
        count[expert]++;
    }
    for (int64_t e = 0, at = 0; e < experts; at += count[e++])
        next[e] = at;
    for (int64_t i = 0; i < tokens * top_k; i++) {
        place[i] = next[chosen_at(chosen, i / top_k, i % top_k)]++;
        token[place[i]] = i / top_k;
        factor[place[i]] = of_slot[i];
    }
}

static sorted sort(graph_run *r, const graph_site *site, int64_t experts, const tn_tensor *weights,
                   const tn_tensor *chosen)
{
    int64_t slots = chosen->shape[0] * chosen->shape[1];
    sorted s = {.token = steps_take(r, TN_I64, 1, &slots),
                .place = steps_take(r, TN_I64, 2, chosen->shape),
                .factor = steps_take(r, TN_F32, 1, &slots),
                .of_slot = steps_take(r, TN_F32, 2, chosen->shape),
                .counts = steps_take(r, TN_I64, 1, &experts),
                .next = steps_take(r, TN_I64, 1, &experts)};
    steps_copy(r, NULL, weights, &s.of_slot);
    if (r->status == TN_OK && !r->arena->measuring)
        sort_slots(r, site, chosen, &s);
    return s;
}

/* Every rank's rows of every expert. */
static tn_tensor terms_by_rows(graph_run *r, const graph_site *site, const sorted *s, const tn_tensor *in)
{
    graph_site *const *product = site->product;
    int64_t slots = in->shape[0], own = product[GRAPH_PART_GATE]->site.dim[TN_DIM_OUT];
    const tn_tensor gate = steps_take(r, in->dtype, 2, (int64_t[]){slots, own});
    const tn_tensor up = steps_take(r, in->dtype, 2, gate.shape);
    const tn_tensor back =
        steps_take(r, in->dtype, 2, (int64_t[]){slots, product[GRAPH_PART_DOWN]->site.dim[TN_DIM_OUT]});
    steps_site(r, product[GRAPH_PART_GATE], RUN_TENSORS(in, &s->counts), RUN_TENSORS(&gate));
    steps_site(r, product[GRAPH_PART_UP], RUN_TENSORS(in, &s->counts), RUN_TENSORS(&up));
    steps_step(r, TN_OP_GLU, &site->site, RUN_TENSORS(&gate, &up), RUN_TENSORS(&gate));
    const tn_tensor inner = steps_join(r, &site->cut, &gate);
    steps_site(r, product[GRAPH_PART_DOWN], RUN_TENSORS(&inner, &s->counts), RUN_TENSORS(&back));
    return steps_join(r, &product[GRAPH_PART_DOWN]->cut, &back);
}

static void fill(const tn_tensor *t, float value)
{
    for (int64_t i = 0; i < tn_tensor_count(t); i++)
        convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)i * tn_dtype_size(t->dtype), 1);
}

/* Each rank's own experts, whose rows lie side by side: MOE_EXPERTS with one expert for each, times 1. Where the slots
 * of a token are added up over ranks, those of others' are nothing here. */
static tn_tensor terms_of_experts(graph_run *r, const graph_site *site, const sorted *s, const tn_tensor *in)
{
    group *g = site->cut.group;
    bool wide = site->site.features & TN_HAS_F32_ROUTING, measuring = r->arena->measuring;
    const int64_t *count = s->counts.data;
    int64_t first, begin = 0, all = 0, slots = in->shape[0];
    const tn_tensor terms = steps_take(r, in->dtype, 2, in->shape);
    int64_t ranks = g->end.ranks;
    tn_tensor ids = steps_take(r, TN_I32, 2, (int64_t[]){slots, 1}), rows = steps_take(r, TN_I64, 1, &ranks);
    tn_tensor ones = steps_take(r, wide ? TN_F32 : in->dtype, 2, ids.shape);
    if (r->status != TN_OK)
        return terms;
    int64_t own = group_share(g, g->end.rank, site->cut.total, site->cut.unit, &first);
    for (int32_t rank = 0; rank < g->end.ranks && !measuring; rank++) {
        int64_t from, experts = group_share(g, rank, site->cut.total, site->cut.unit, &from), *sum = rows.data;
        begin = rank == g->end.rank ? all : begin;
        sum[rank] = 0;
        for (int64_t e = 0; e < experts; e++)
            sum[rank] += count[from + e];
        all += sum[rank];
    }
    for (int64_t e = 0, at = 0; e < own && !measuring; e++)
        for (int64_t i = 0; i < count[first + e]; i++)
            ((int32_t *)ids.data)[at++] = (int32_t)e;
    if (!measuring)
        fill(&ones, 1);
    int64_t n = measuring ? slots : ((const int64_t *)rows.data)[g->end.rank];
    const tn_tensor x = steps_part(in, 0, begin, n), y = steps_part(&terms, 0, begin, n);
    ids.shape[0] = ones.shape[0] = n;
    if (n > 0)
        steps_site(r, site, RUN_TENSORS(&x, &ones, &ids), RUN_TENSORS(&y));
    if (site->adds) {
        for (int64_t slot = 0; slot < slots && !measuring && r->status == TN_OK; slot++)
            if (slot < begin || slot >= begin + n)
                memset(steps_part(&terms, 0, slot, 1).data, 0, tn_dtype_bytes(terms.dtype, terms.shape[1]));
    } else if (r->status == TN_OK && measuring)
        group_expect_join(g, &terms);
    else if (r->status == TN_OK)
        r->status = group_join_rows(g, &terms, rows.data, r->err);
    return terms;
}

static void cut_experts(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *weights,
                        const tn_tensor *chosen, const tn_tensor *y)
{
    size_t mark = arena_mark(r->arena);
    sorted s = sort(r, site, site->by_parts ? site->site.dim[TN_DIM_EXPERTS] : site->cut.total, weights, chosen);
    const tn_tensor in = steps_take(r, x->dtype, 2, (int64_t[]){chosen->shape[0] * chosen->shape[1], x->shape[1]});
    bool scaled = site->site.features & TN_HAS_INPUT_SCALE, rounds = weights->dtype == x->dtype && !scaled;
    steps_gather(r, x, &s.token, &in);
    if (scaled)
        steps_row_scale(r, NULL, &in, &s.factor);
    const tn_tensor terms = site->by_parts ? terms_by_rows(r, site, &s, &in) : terms_of_experts(r, site, &s, &in);
    if (rounds)
        steps_row_scale(r, NULL, &terms, &s.factor);
    if ((rounds || scaled) && r->status == TN_OK && !r->arena->measuring)
        fill(&s.of_slot, 1);
    steps_gather_sums(r, &terms, &s.place, &s.of_slot, y);
    steps_release(r, mark);
}

void steps_routed(graph_run *r, const graph_site *route, const tn_tensor *routed, const graph_site *experts,
                  const tn_tensor *x, const tn_tensor *y)
{
    const int64_t shape[2] = {x->shape[0], route->site.dim[TN_DIM_TOP_K]};
    bool wide = route->site.features & TN_HAS_F32_ROUTING;
    tn_tensor weights = steps_take(r, wide ? TN_F32 : r->dtype, 2, shape), chosen = steps_take(r, TN_I32, 2, shape);
    steps_site(r, route, RUN_TENSORS(routed), RUN_TENSORS(&weights, &chosen));
    /* Slots become rows, of which a call may have as many as of tokens. */
    bool parts = experts->cut.group && (experts->dealt || !experts->adds);
    int64_t tokens = x->shape[0], most = parts ? GRAPH_MAX_TOKENS / shape[1] : tokens;
    for (int64_t at = 0; at < tokens && parts; at += most) {
        int64_t n = tokens - at < most ? tokens - at : most;
        const tn_tensor from = steps_part(x, 0, at, n), to = steps_part(y, 0, at, n);
        const tn_tensor w = steps_part(&weights, 0, at, n), c = steps_part(&chosen, 0, at, n);
        cut_experts(r, experts, &from, &w, &c, &to);
    }
    if (!parts)
        steps_site(r, experts, RUN_TENSORS(x, &weights, &chosen), RUN_TENSORS(y));
    if (experts->adds && !experts->stays_cut)
        steps_sum(r, &experts->cut, y);
}
