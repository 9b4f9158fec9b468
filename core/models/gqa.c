/* Grouped-query attention. */
#include "models/gqa.h"

#include "group/group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const gqa_names usual_names = {"self_attn", "q_proj", "k_proj", "v_proj",
                                      "o_proj",    "q_norm", "k_norm", "qkv_proj"};

/* ALiBi's: a geometric series from 2^(-8/n) to 2^-8 for the largest n of heads that is a power of two; behind those
 * every other one of the series for 2 n. */
static bool build_slopes(graph_builder *b, const gqa_spec *spec, int64_t first, int64_t heads, tn_tensor *slopes)
{
    float *m = malloc((size_t)spec->heads * sizeof *m);
    int64_t n = 1;
    if (!m) {
        build_fail(b, TN_E_MEMORY, "graph", "out of memory for %lld slopes", (long long)spec->heads);
        return false;
    }
    while (2 * n <= spec->heads)
        n *= 2;
    for (int64_t i = 0; i < spec->heads; i++)
        m[i] = (float)(i < n ? pow(2, -8.0 * (double)(i + 1) / (double)n)
                             : pow(2, -4.0 * (double)(2 * (i - n) + 1) / (double)n));
    bool made = build_values(b, spec->alibi, heads, m + first, slopes);
    free(m);
    return made;
}

static int64_t value_dim(const gqa_spec *spec)
{
    return spec->v_dim ? spec->v_dim : spec->head_dim;
}

/* The heads that are this rank's: whole groups that share keys. By sums, where there are fewer groups than ranks: ranks
 * are dealt out to groups, and a group's query heads to its ranks. cut.group NULL: all. */
typedef struct own_heads {
    parts_share keys, queries;
} own_heads;

static own_heads heads_of_group(const graph_builder *b, const gqa_spec *spec)
{
    own_heads own = {0};
    int64_t of_each = spec->heads / spec->kv_heads, groups = spec->kv_heads;
    int64_t ranks = b->sums ? b->sums->end.ranks : 0, rank = ranks ? b->sums->end.rank : 0;
    int64_t k = ranks ? (groups * (rank + 1) - 1) / ranks : 0, begin = ranks * k / groups;
    if (groups >= ranks || (ranks + groups - 1) / groups > of_each)
        return own;
    int64_t n = ranks * (k + 1) / groups - begin, first = of_each * (rank - begin) / n;
    own.keys = own.queries = (parts_share){.cut = {b->sums, groups, 1}, .stays = true};
    own.keys.ranges = (build_ranges){1, {{k, 1}}};
    own.queries.cut.total = spec->heads;
    own.queries.ranges = (build_ranges){1, {{k * of_each + first, of_each * (rank - begin + 1) / n - first}}};
    return own;
}

static own_heads share_heads(const graph_builder *b, const gqa_spec *spec)
{
    own_heads own = {0};
    bool whole =
        (spec->head_norm && (spec->norm_full || spec->norm_own)) || spec->adapters || spec->heads % spec->kv_heads;
    if (whole)
        return own;
    own.keys = parts_inner_of(b, spec->kv_heads, 1);
    own.queries = parts_share_rows(&own.keys, spec->heads / spec->kv_heads);
    return own.keys.cut.group ? own : heads_of_group(b, spec);
}

void gqa_own_heads(const graph_builder *b, const gqa_spec *spec, int64_t *heads, int64_t *kv_heads)
{
    const own_heads own = share_heads(b, spec);
    *kv_heads = own.keys.cut.group ? own.keys.ranges.at[0].rows : spec->kv_heads;
    *heads = own.keys.cut.group ? own.queries.ranges.at[0].rows : spec->heads;
}

static graph_site *build_attention(graph_builder *b, graph_module *m, const gqa_spec *spec)
{
    const own_heads own = share_heads(b, spec);
    int64_t heads, kv_heads;
    gqa_own_heads(b, spec, &heads, &kv_heads);
    graph_site *s = build_site(b, m, TN_OP_ATTENTION, NULL);
    tn_tensor sinks, slopes;
    if (!s)
        return NULL;
    s->site.dim[TN_DIM_HEAD] = spec->head_dim;
    s->site.dim[TN_DIM_HEAD_V] = value_dim(spec);
    s->site.dim[TN_DIM_Q_HEADS] = heads;
    s->site.dim[TN_DIM_KV_HEADS] = kv_heads;
    s->site.dim[TN_DIM_WINDOW] = spec->window;
    s->site.dim[TN_DIM_CHUNK] = spec->chunk;
    s->site.num[TN_NUM_SCALE] = spec->scale;
    s->site.num[TN_NUM_SOFTCAP] = spec->softcap;
    s->site.features = (spec->window ? TN_HAS_WINDOW : 0) | (spec->softcap != 0 ? TN_HAS_SOFTCAP : 0) |
                       (spec->chunk ? TN_HAS_CHUNK : 0) | (spec->sinks ? TN_HAS_SINKS : 0) |
                       (spec->both_sides ? TN_HAS_BOTH_SIDES : 0);
    if (spec->alibi && build_slopes(b, spec, own.queries.ranges.at[0].first, heads, &slopes)) {
        build_param(b, s, TN_ROLE_DECAY, &slopes, 1);
        s->site.meaning[TN_AXIS_WEIGHT] = TN_DTYPE_NONE; /* the slopes' type is no weights' */
        s->site.features |= TN_HAS_ALIBI;
        s->site.num[TN_NUM_ALPHA] = spec->alibi_scale;
    }
    const build_form some = {.ranges = own.queries.cut.group ? &own.queries.ranges : NULL};
    if (spec->sinks && build_tensor_as(b, m, "sinks", 1, &spec->heads, &some, &sinks))
        build_param(b, s, TN_ROLE_SINKS, &sinks, 1);
    return s;
}

/* Those of the rank's own heads, which stay apart. Of a matrix that has all of them, three ranges. */
static void build_own_projections(graph_builder *b, graph_module *m, const gqa_spec *spec, const gqa_names *n,
                                  const own_heads *own, gqa *out)
{
    int64_t group = spec->heads / spec->kv_heads, dim = spec->head_dim, hidden = spec->hidden;
    int64_t q = spec->heads * dim, kv = spec->kv_heads * dim, values = spec->kv_heads * value_dim(spec);
    const parts_share of_q = parts_share_rows(&own->queries, (spec->gated ? 2 : 1) * dim);
    const parts_share of_k = parts_share_rows(&own->keys, dim), of_v = parts_share_rows(&own->keys, value_dim(spec));
    parts_share of_all = spec->by_head ? parts_share_rows(&own->keys, (group + 2) * dim) : of_q;
    if (!spec->fused) {
        out->q =
            parts_linear_share(spec->linear, b, m, n->q, hidden, spec->gated ? 2 * q : q, spec->qkv_bias, NULL, &of_q);
        if (!spec->borrows)
            out->k = parts_linear_share(spec->linear, b, m, n->k, hidden, kv, spec->qkv_bias, NULL, &of_k);
        if (!spec->borrows && !spec->k_is_v)
            out->v = parts_linear_share(spec->linear, b, m, n->v, hidden, values, spec->qkv_bias, NULL, &of_v);
        return;
    }
    if (!spec->by_head) {
        of_all.ranges.count = 3;
        of_all.ranges.at[1] = (struct build_range){q + of_k.ranges.at[0].first, of_k.ranges.at[0].rows};
        of_all.ranges.at[2] = (struct build_range){q + kv + of_v.ranges.at[0].first, of_v.ranges.at[0].rows};
    }
    struct build_range *all = of_all.ranges.at;
    if (spec->by_head && out->heads < out->kv_heads * group) { /* some queries of one key head                */
        int64_t begin = all[0].first;
        all[0] = (struct build_range){begin + of_q.ranges.at[0].first - own->keys.ranges.at[0].first * group * dim,
                                      of_q.ranges.at[0].rows};
        all[1] = (struct build_range){begin + group * dim, 2 * dim};
        of_all.ranges.count = 2;
    }
    out->q = parts_linear_share(spec->linear, b, m, n->qkv, hidden, q + kv + values, spec->qkv_bias, NULL, &of_all);
}

static void build_projections(graph_builder *b, graph_module *m, const gqa_spec *spec, const gqa_names *n, gqa *out)
{
    int64_t hidden = spec->hidden, q = spec->heads * spec->head_dim, kv = spec->kv_heads * spec->head_dim;
    int64_t values = spec->kv_heads * value_dim(spec);
    const own_heads own = share_heads(b, spec);
    parts_share back = {0};
    if (own.keys.cut.group) {
        const parts_share inner = parts_share_rows(&own.queries, value_dim(spec));
        back = parts_back_of(b, &inner);
        if (!back.adds)
            out->cut = inner.cut;
        build_own_projections(b, m, spec, n, &own, out);
    } else if (spec->fused) {
        out->q = parts_linear_of(spec->linear, b, m, n->qkv, hidden, q + kv + values, spec->qkv_bias, NULL);
    } else {
        out->q = parts_linear_of(spec->linear, b, m, n->q, hidden, spec->gated ? 2 * q : q, spec->qkv_bias, NULL);
        if (!spec->borrows)
            out->k = parts_linear_of(spec->linear, b, m, n->k, hidden, kv, spec->qkv_bias, NULL);
        if (!spec->borrows && !spec->k_is_v)
            out->v = parts_linear_of(spec->linear, b, m, n->v, hidden, values, spec->qkv_bias, NULL);
    }
    int64_t in = spec->heads * value_dim(spec), o = spec->out ? spec->out : hidden;
    out->o = parts_linear_some(spec->linear, b, m, n->o, in, o, spec->o_bias, &back);
    const int64_t widths[3] = {q, kv, values};
    for (int i = 0; spec->adapters && i < 3; i++)
        adapter_build(b, m, spec->adapters[i], spec->adapter, hidden, spec->adapter_rank, widths[i], &out->adapters[i]);
}

/* What the heads that a norm without a weight gave are multiplied by. */
static void build_head_weights(graph_builder *b, const graph_site *norm, const gqa_spec *spec, int64_t heads,
                               tn_tensor *out)
{
    if (!norm)
        return;
    if (!spec->norm_list) {
        build_tensor(b, norm->module, "weight", 2, (int64_t[]){heads, spec->head_dim}, out);
        return;
    }
    graph_module *list = build_module(b, norm->module, spec->norm_list, "ModuleList");
    tn_tensor *rows = calloc((size_t)heads, sizeof *rows);
    if (!rows)
        build_fail(b, TN_E_MEMORY, "graph", "out of memory for %lld norms", (long long)heads);
    for (int64_t i = 0; i < heads && b->status == TN_OK; i++) {
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)i);
        graph_module *m = build_module(b, list, name, "LayerNorm");
        if (m)
            build_tensor(b, m, "weight", 1, &spec->head_dim, &rows[i]);
    }
    build_stack(b, rows, heads, out);
    free(rows);
}

static void build_own_norms(graph_builder *b, graph_module *m, const gqa_spec *spec, const gqa_names *n, gqa *out)
{
    parts_norm_kind plain = *spec->head_norm;
    plain.plain = true;
    out->q_norm = parts_norm(b, m, n->q_norm, &plain, spec->head_dim, false);
    out->k_norm = parts_norm(b, m, n->k_norm, &plain, spec->head_dim, false);
    build_head_weights(b, out->q_norm, spec, spec->heads, &out->q_weight);
    build_head_weights(b, out->k_norm, spec, spec->kv_heads, &out->k_weight);
    out->weigh = parts_act_step(b, m, TN_OP_GLU, TN_ACT_LINEAR, spec->heads * spec->head_dim);
}

static void build_norms(graph_builder *b, graph_module *m, const gqa_spec *spec, const gqa_names *n, gqa *out)
{
    int64_t dim = spec->head_dim, all = spec->norm_full;
    if (spec->head_norm && spec->norm_own)
        build_own_norms(b, m, spec, n, out);
    else if (spec->head_norm) {
        out->q_norm = parts_norm(b, m, n->q_norm, spec->head_norm, all ? spec->heads * dim : dim, false);
        if (!spec->borrows && !strcmp(n->q_norm, n->k_norm)) /* one module, called for both */
            out->k_norm = out->q_norm;
        else if (!spec->borrows)
            out->k_norm = parts_norm(b, m, n->k_norm, spec->head_norm, all ? spec->kv_heads * dim : dim, false);
    }
    if (spec->v_norm && !spec->borrows)
        out->v_norm = parts_norm(b, m, "v_norm", spec->v_norm, value_dim(spec), false);
}

void gqa_build(graph_builder *b, graph_module *layer, const gqa_spec *spec, gqa *out)
{
    const gqa_names *n = spec->names ? spec->names : &usual_names;
    int64_t heads, kv_heads;
    gqa_own_heads(b, spec, &heads, &kv_heads);
    int64_t q_width = heads * spec->head_dim;
    graph_module *m = build_module(b, layer, n->module, spec->class_name);
    *out = (gqa){.heads = heads,
                 .kv_heads = kv_heads,
                 .head_dim = spec->head_dim,
                 .v_dim = value_dim(spec),
                 .rope = spec->rope,
                 .fused = spec->fused,
                 .by_head = spec->by_head,
                 .norm_full = spec->norm_full,
                 .norm_last = spec->norm_last,
                 .borrows = spec->borrows,
                 .from_layer = spec->from_layer};
    out->site = build_attention(b, m, spec);
    build_projections(b, m, spec, n, out);
    build_norms(b, m, spec, n, out);
    if (spec->clip != 0 && (out->clamp = build_step(b, m, TN_OP_CLAMP, q_width)))
        out->clamp->num[TN_NUM_LIMIT] = spec->clip;
    out->v_scale = parts_factor(b, m, spec->v_scale, kv_heads * value_dim(spec));
    out->k_scale = parts_factor(b, m, spec->k_scale, spec->head_dim);
    if (spec->scale_q)
        out->row_scale = build_step(b, m, TN_OP_ROW_SCALE, q_width);
    if (spec->k_is_v && !spec->borrows)
        out->copy = build_step(b, m, TN_OP_COPY, kv_heads * spec->head_dim);
    if (spec->by_head && kv_heads > 1 && heads > kv_heads)
        out->gather = build_step(b, m, TN_OP_COPY, q_width / kv_heads);
    if (spec->gated)
        out->gate = parts_act_step(b, m, TN_OP_GLU, TN_ACT_SIGMOID, spec->head_dim);
}

model_layer gqa_cache(const graph_builder *b, const gqa_spec *spec)
{
    int64_t heads, kv_heads;
    gqa_own_heads(b, spec, &heads, &kv_heads);
    if (spec->borrows)
        return (model_layer){0};
    /* Keys of the chunk that a query is in go back as far as a window of its length. */
    return (model_layer){.kv_heads = kv_heads,
                         .head_dim = spec->head_dim,
                         .v_head_dim = value_dim(spec),
                         .window = spec->chunk ? spec->chunk : spec->window};
}

/* Queries, keys and values of a call, by heads; k and v have no heads where another layer's are used. */
typedef struct gqa_heads {
    tn_tensor q, k, v;
    tn_tensor gate; /* [B*T*N,D] or nothing                                                        */
} gqa_heads;

static tn_tensor dense_heads(const graph_run *r, const tn_tensor *x, int64_t heads, int64_t dim)
{
    return steps_heads(r, x, 0, heads, dim, dim);
}

/* The heads in a row that has the queries of each key head beside its key and value. Queries of several key heads that
 * share one lie in no single distance: they are put together. */
static gqa_heads by_head(graph_run *r, const gqa *a, const tn_tensor *row)
{
    int64_t dim = a->head_dim, k = a->kv_heads, group = a->heads / k, step = (group + 2) * dim;
    gqa_heads out = {.q = steps_heads(r, row, 0, a->heads, dim, group == 1 ? step : dim),
                     .k = steps_heads(r, row, group * dim, k, dim, step),
                     .v = steps_heads(r, row, (group + 1) * dim, k, dim, step)};
    if (a->gather) {
        const tn_tensor from = steps_heads(r, row, 0, k, group * dim, step);
        tn_tensor q = steps_take(r, r->dtype, 4, from.shape);
        steps_copy(r, a->gather, &from, &q);
        out.q = steps_view(&q, 4, (int64_t[]){r->rows, r->tokens, a->heads, dim});
    }
    return out;
}

static gqa_heads project(graph_run *r, const gqa *a, const tn_tensor *x)
{
    int64_t dim = a->head_dim, n = a->heads, k = a->kv_heads;
    gqa_heads out = {0};
    tn_tensor q = adapter_linear(r, a->q, &a->adapters[0], x);
    if (a->by_head)
        return by_head(r, a, &q);
    if (a->fused) {
        out.q = steps_heads(r, &q, 0, n, dim, dim);
        out.k = steps_heads(r, &q, n * dim, k, dim, dim);
        out.v = steps_heads(r, &q, (n + k) * dim, k, a->v_dim, a->v_dim);
        return out;
    }
    if (a->norm_full && a->q_norm)
        steps_norm_in_place(r, a->q_norm, &q);
    out.q = steps_heads(r, &q, 0, n, dim, a->gate ? 2 * dim : dim);
    if (a->gate) {
        tn_tensor rows = steps_view(&q, 2, (int64_t[]){x->shape[0] * n, 2 * dim});
        out.gate = steps_columns(&rows, dim, dim);
    }
    if (a->borrows) {
        out.k = out.v = tn_tensor_dense(NULL, r->dtype, 4, (int64_t[]){r->rows, r->tokens, 0, dim});
        return out;
    }
    tn_tensor key = adapter_linear(r, a->k, &a->adapters[1], x);
    tn_tensor value = a->v ? adapter_linear(r, a->v, &a->adapters[2], x) : (tn_tensor){0};
    if (!a->v) { /* before the keys are normed and rotated                                          */
        value = steps_take(r, r->dtype, 2, key.shape);
        steps_copy(r, a->copy, &key, &value);
    }
    if (a->norm_full && a->k_norm)
        steps_norm_in_place(r, a->k_norm, &key);
    out.k = dense_heads(r, &key, k, dim);
    out.v = dense_heads(r, &value, k, a->v_dim);
    return out;
}

/* Each head of x [B,T,heads,D], which is dense, times its row. */
static void weigh(graph_run *r, const gqa *a, const tn_tensor *weight, const tn_tensor *x)
{
    int64_t width = x->shape[2] * x->shape[3], rows = x->shape[0] * x->shape[1];
    const tn_tensor flat = steps_view(weight, 1, &width), up = steps_view(x, 2, (int64_t[]){rows, width});
    const tn_tensor gate = steps_repeat(&flat, rows, width);
    steps_glu(r, a->weigh, &gate, &up);
}

static void norm_heads(graph_run *r, const gqa *a, gqa_heads *h)
{
    if (a->norm_full)
        return;
    if (a->q_norm)
        steps_norm_moving(r, a->q_norm, &h->q);
    if (a->k_norm)
        steps_norm_moving(r, a->k_norm, &h->k);
    if (a->weigh) {
        weigh(r, a, &a->q_weight, &h->q);
        weigh(r, a, &a->k_weight, &h->k);
    }
}

/* Of the queries, only those of the last tokens. */
static void narrow(graph_run *r, const gqa *a, int64_t tokens, gqa_heads *h)
{
    h->q = steps_part(&h->q, 1, r->tokens - tokens, tokens);
    if (a->gate)
        h->gate = steps_last(&h->gate, tokens * a->heads);
    steps_narrow(r, tokens);
}

tn_tensor gqa_forward(graph_run *r, const gqa *a, const mixer_place *at, const tn_tensor *x)
{
    gqa_heads h = project(r, a, x);
    if (!a->norm_last)
        norm_heads(r, a, &h);
    if (a->v_norm)
        steps_norm_in_place(r, a->v_norm, &h.v);
    steps_change(r, a->v_scale, &h.v);
    steps_change(r, a->clamp, &h.q);
    steps_change(r, a->clamp, &h.k);
    steps_change(r, a->clamp, &h.v);
    steps_change(r, a->k_scale, &h.k);
    if (a->rope != GQA_NO_ROPE)
        steps_rope_moving(r, (a->borrows ? at->queries : at->ropes)[a->rope], a->rope, &h.q, &h.k);
    if (a->norm_last)
        norm_heads(r, a, &h);
    if (a->row_scale) {
        tn_tensor rows = steps_view(&h.q, 2, (int64_t[]){x->shape[0], a->heads * a->head_dim});
        steps_row_scale(r, a->row_scale, &rows, &r->q_scale);
    }
    if (!a->borrows)
        steps_cache_append(r, at->layer, &h.k, &h.v);
    if (at->wanted < r->tokens)
        narrow(r, a, at->wanted, &h);
    if (at->wanted == 0)
        return tn_tensor_dense(NULL, r->dtype, 2, (int64_t[]){0, steps_linear_width(a->o)});
    tn_tensor o = steps_attention(r, a->site, a->borrows ? a->from_layer : at->layer, &h.q);
    if (a->gate) {
        tn_tensor rows = steps_view(&o, 2, h.gate.shape);
        steps_glu(r, a->gate, &h.gate, &rows);
    }
    if (a->cut.group)
        o = steps_join(r, &a->cut, &o);
    return steps_linear(r, a->o, &o);
}
