/* Multi-head latent attention. */
#include "models/mla.h"

#include "graph/lacks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_DIM = 1 << 16 };

typedef struct mla {
    graph_site *q_a, *q_norm, *q_b; /* q_a NULL: q_b is q_proj                                   */
    graph_site *kv_a, *kv_norm, *o;
    graph_site *site;          /* ATTENTION                                                      */
    tn_site *absorb, *expand;  /* GROUPED_MATMUL by head: queries to latents, latents to values  */
    tn_site *copy, *row_scale; /* row_scale: or NULL                                             */
    graph_site *index_q, *index_k, *index_norm, *index_w;
    tn_site *choose; /* of an indexer of its own, or NULL                                        */
    int64_t heads, kv_rank, nope, rope, v;
    mla_indexer indexer;
    bool unrotated;
} mla;

/* ---- reading ------------------------------------------------------------------------------------ */

static void read_rope(const config_reader *c, decoder_spec *s, mla_spec *m)
{
    bool pairs = !m->complex_rope && config_bool(c, "rope_interleave", !config_is_null(c, "rope_interleave"));
    rope_params rope;
    s->rope[0].site = (parts_rope_spec){.function = m->complex_rope ? "apply_rotary_emb"
                                                    : pairs         ? "apply_rotary_pos_emb_interleave"
                                                                    : "apply_rotary_pos_emb",
                                        .style = m->complex_rope ? TN_ROPE_COMPLEX
                                                 : pairs         ? TN_ROPE_DEINTERLEAVED
                                                                 : TN_ROPE_HALF,
                                        .heads = m->heads,
                                        .kv_heads = 1,
                                        .head_dim = m->rope};
    rope_config_spec *config = &s->rope[0].config;
    *config = (rope_config_spec){.head_dim = m->rope, .partial = s->partial, .theta = s->theta, .absent = m->no_rope};
    if (m->partial_head) {
        config->head_dim = m->nope + m->rope;
        config->partial = (double)m->rope / (double)config->head_dim;
    }
    rope_config_read(c, config, &rope);
    if (*c->status == TN_OK && rope.dim != m->rope)
        config_fail(c, "partial_rotary_factor", "gives a rotary size of %lld, qk_rope_head_dim is %lld",
                    (long long)rope.dim, (long long)m->rope);
    double mscale = rope.mscale_all != 0 ? rope_tables_yarn_scale(rope.factor, rope.mscale_all) : 1;
    m->scale *= mscale * mscale;
}

void mla_read(const config_reader *c, decoder_spec *s, mla_spec *m)
{
    m->class_name = s->classes->attention;
    m->norm = (parts_norm_kind){.class_name = s->classes->norm, .variant = TN_NORM_W, .eps = 1e-6};
    m->hidden = s->hidden;
    m->heads = s->layer.attention.heads;
    m->q_rank = config_i64(c, "q_lora_rank", config_is_null(c, "q_lora_rank") ? 0 : m->q_rank, 1, MAX_DIM);
    m->kv_rank = config_i64(c, "kv_lora_rank", m->kv_rank, 1, MAX_DIM);
    m->nope = config_i64(c, "qk_nope_head_dim", m->nope, 1, MAX_DIM);
    m->rope = config_i64(c, "qk_rope_head_dim", m->rope, 2, ROPE_MAX_DIM);
    m->v = config_i64(c, "v_head_dim", m->v, 1, MAX_DIM);
    m->bias = config_bool(c, "attention_bias", false);
    if (s->layer.attention.kv_heads != m->heads)
        config_fail(c, "num_key_value_heads", "is %lld, latent attention has num_attention_heads, %lld",
                    (long long)s->layer.attention.kv_heads, (long long)m->heads);
    m->scale = 1 / sqrt((double)(m->nope + m->rope));
    if (m->unrotated)
        s->rope_count = 0;
    else
        read_rope(c, s, m);
    s->layer.mixer = &mla_mixer;
    s->layer.mixer_spec = m;
}

/* Room for what an indexer chooses, for all layers of a call. */
static void chosen_build(graph_builder *b, graph_module *model, const void *spec, void *state)
{
    (void)b, (void)model, (void)spec, (void)state;
}

static tn_tensor chosen_forward(graph_run *r, const void *state, const tn_tensor *h)
{
    (void)state;
    steps_chosen_room(r);
    return *h;
}

static const stage_kind chosen = {0, chosen_build, chosen_forward};

void mla_read_indexed(const config_reader *c, decoder_spec *s, mla_spec *m, int64_t heads, bool pairs)
{
    mla_indexer *x = &m->indexer;
    mla_read(c, s, m);
    x->heads = config_i64(c, "index_n_heads", heads, 1, MAX_DIM);
    x->dim = config_i64(c, "index_head_dim", 128, 1, MAX_DIM);
    x->top_k = config_i64(c, "index_topk", 2048, 1, INT32_MAX);
    x->rope = 1;
    if (m->q_rank == 0)
        config_fail(c, "q_lora_rank", "is null, and the indexer's queries are made of that latent");
    if (x->dim < m->rope)
        config_fail(c, "index_head_dim", "is %lld, less than qk_rope_head_dim %lld", (long long)x->dim,
                    (long long)m->rope);
    s->rope[1] = s->rope[0];
    s->rope[1].site = (parts_rope_spec){.function = pairs ? s->rope[0].site.function : "apply_rotary_pos_emb",
                                        .variant = "indexer",
                                        .style = pairs ? s->rope[0].site.style : TN_ROPE_HALF,
                                        .heads = x->heads,
                                        .kv_heads = 1,
                                        .head_dim = x->dim};
    s->rope_count = 2;
    s->first = &chosen;
}

/* ---- building ----------------------------------------------------------------------------------- */

/* Whose heads are cut by sums alone; not where an indexer chooses keys, for which roundings of sums matter. */
static parts_share share_heads(const graph_builder *b, const mla_spec *spec)
{
    if (spec->indexer.heads > 0)
        return (parts_share){0};
    return parts_summed_of(b, spec->heads, 1);
}

static int64_t own_heads(const graph_builder *b, const void *from)
{
    const mla_spec *spec = from;
    const parts_share own = share_heads(b, spec);
    return own.cut.group ? build_ranges_rows(&own.ranges) : spec->heads;
}

static graph_site *build_attention(graph_builder *b, graph_module *m, const mla_spec *spec)
{
    graph_site *s = build_site(b, m, TN_OP_ATTENTION, NULL);
    if (!s)
        return NULL;
    /* On its own the module expands keys and values first, as transformers does. */
    bool expanded = b->lacks && b->lacks->per_module;
    s->site.dim[TN_DIM_HEAD] = (expanded ? spec->nope : spec->kv_rank) + spec->rope;
    s->site.dim[TN_DIM_HEAD_V] = expanded ? spec->v : spec->kv_rank;
    s->site.dim[TN_DIM_Q_HEADS] = own_heads(b, spec);
    s->site.dim[TN_DIM_KV_HEADS] = expanded ? spec->heads : 1;
    s->site.num[TN_NUM_SCALE] = spec->scale;
    s->site.features = spec->indexer.heads > 0 ? TN_HAS_CHOSEN_KEYS : 0;
    return s;
}

static void build_indexer(graph_builder *b, graph_module *parent, const mla_spec *spec, mla *a)
{
    static const parts_norm_kind norm = {.class_name = "LayerNorm", .layer_norm = true, .bias = true, .eps = 1e-6};
    const mla_indexer *x = &spec->indexer;
    graph_module *m = build_module(b, parent, "indexer", x->class_name);
    a->index_q = parts_linear(b, m, "wq_b", spec->q_rank, x->heads * x->dim, false, NULL);
    a->index_k = parts_linear(b, m, "wk", spec->hidden, x->dim, false, NULL);
    a->index_norm = parts_norm(b, m, "k_norm", &norm, x->dim, false);
    a->index_w = parts_linear(b, m, "weights_proj", spec->hidden, x->heads, false, NULL);
    if ((a->choose = build_step(b, m, TN_OP_CHOOSE_KEYS, x->dim)))
        a->choose->dim[TN_DIM_TOP_K] = x->top_k;
}

/* A product with a matrix of every head: to absorb what would meet keys, or to expand values. */
static tn_site *build_product(graph_builder *b, const graph_module *m, const tn_tensor *list, int64_t heads,
                              tn_layout layout, int64_t in, int64_t out)
{
    tn_site *step = build_step(b, m, TN_OP_GROUPED_MATMUL, 0);
    build_step_params(b, step, TN_ROLE_WEIGHT, list, heads);
    if (!step)
        return NULL;
    step->meaning[TN_AXIS_LAYOUT] = layout;
    step->dim[TN_DIM_HIDDEN] = in;
    step->dim[TN_DIM_OUT] = out;
    step->dim[TN_DIM_EXPERTS] = heads;
    return step;
}

/* Both products, with rows of kv_b_proj; those for keys as [in,out]. list has room for a head each. */
static void build_products(graph_builder *b, graph_module *m, const mla_spec *spec, tn_tensor *list, mla *a)
{
    int64_t rows = spec->nope + spec->v, heads = a->heads;
    const parts_share share = share_heads(b, spec), own = parts_share_rows(&share, rows);
    graph_site *kv_b =
        parts_linear_share(NULL, b, m, "kv_b_proj", spec->kv_rank, spec->heads * rows, false, NULL, &own);
    if (!kv_b)
        return;
    kv_b->unadapted = "its weight is absorbed into queries and values, head by head";
    const tn_tensor *weight = kv_b->site.param[TN_ROLE_WEIGHT].tensors;
    for (int64_t n = 0; n < heads; n++)
        list[n] = build_rows(b, weight, n * rows, spec->nope);
    a->absorb = build_product(b, kv_b->module, list, heads, TN_LAYOUT_LIST_IO, spec->nope, spec->kv_rank);
    for (int64_t n = 0; n < heads; n++)
        list[n] = build_rows(b, weight, n * rows + spec->nope, spec->v);
    a->expand = build_product(b, kv_b->module, list, heads, TN_LAYOUT_EXPERT_LIST, spec->kv_rank, spec->v);
}

/* One of them of files that have kv_b_proj in two (.gguf), head by head, those for keys turned. */
static tn_site *build_half(graph_builder *b, graph_module *parent, const char *name, tn_tensor *list, int64_t first,
                           int64_t heads, int64_t in, int64_t out)
{
    graph_module *m = build_module(b, parent, name, "Linear");
    for (int64_t n = 0; n < heads && m; n++) {
        char tensor[32];
        snprintf(tensor, sizeof tensor, "%lld.weight", (long long)(first + n));
        build_tensor(b, m, tensor, 2, (int64_t[]){out, in}, &list[n]);
    }
    return build_product(b, m, list, heads, TN_LAYOUT_EXPERT_LIST, in, out);
}

static void build_kv_b(graph_builder *b, graph_module *m, const mla_spec *spec, mla *a)
{
    tn_tensor *list = m ? calloc((size_t)spec->heads, sizeof *list) : NULL;
    if (!list) {
        build_fail(b, TN_E_MEMORY, "graph", "out of memory");
    } else if (build_has(b, m, "k_b_proj.0.weight")) {
        int64_t first = share_heads(b, spec).ranges.at[0].first;
        a->absorb = build_half(b, m, "k_b_proj", list, first, a->heads, spec->nope, spec->kv_rank);
        a->expand = build_half(b, m, "v_b_proj", list, first, a->heads, spec->kv_rank, spec->v);
    } else {
        build_products(b, m, spec, list, a);
    }
    free(list);
}

static void build_queries(graph_builder *b, graph_module *m, const mla_spec *spec, mla *a)
{
    int64_t dim = spec->nope + spec->rope, width = spec->heads * dim;
    const parts_share share = share_heads(b, spec), own = parts_share_rows(&share, dim);
    if (spec->q_rank == 0) {
        a->q_b = parts_linear_some(NULL, b, m, "q_proj", spec->hidden, width, false, &own);
        return;
    }
    a->q_a = parts_linear(b, m, "q_a_proj", spec->hidden, spec->q_rank, spec->bias, NULL);
    a->q_norm = parts_norm(b, m, "q_a_layernorm", &spec->norm, spec->q_rank, false);
    a->q_b = parts_linear_some(NULL, b, m, "q_b_proj", spec->q_rank, width, false, &own);
}

static void mla_build(graph_builder *b, graph_module *layer, const void *from, void *state)
{
    const mla_spec *spec = from;
    mla *a = state;
    int64_t heads = own_heads(b, spec), rank = spec->kv_rank;
    const parts_share share = share_heads(b, spec), own = parts_share_rows(&share, spec->v),
                      back = parts_back_of(b, &own);
    graph_module *m = build_module(b, layer, "self_attn", spec->class_name);
    *a = (mla){.heads = heads,
               .kv_rank = rank,
               .nope = spec->nope,
               .rope = spec->rope,
               .v = spec->v,
               .indexer = spec->indexer,
               .unrotated = spec->unrotated};
    a->site = build_attention(b, m, spec);
    build_queries(b, m, spec, a);
    a->kv_a = parts_linear(b, m, "kv_a_proj_with_mqa", spec->hidden, rank + spec->rope, spec->bias, NULL);
    a->kv_norm = parts_norm(b, m, "kv_a_layernorm", &spec->norm, rank, false);
    build_kv_b(b, m, spec, a);
    a->o = parts_linear_some(NULL, b, m, "o_proj", spec->heads * spec->v, spec->hidden, spec->bias, &back);
    a->copy = build_step(b, m, TN_OP_COPY, rank);
    if (spec->indexer.heads > 0 && !spec->indexer.borrows)
        build_indexer(b, m, spec, a);
    if (spec->scale_q)
        a->row_scale = build_step(b, m, TN_OP_ROW_SCALE, heads * (spec->nope + spec->rope));
}

static model_layer mla_cache(const graph_builder *b, const void *from)
{
    (void)b;
    const mla_spec *spec = from;
    return (model_layer){.kv_heads = 1,
                         .head_dim = spec->kv_rank + spec->rope,
                         .v_head_dim = spec->kv_rank,
                         .v_in_k = true,
                         .index_dim = spec->indexer.borrows ? 0 : spec->indexer.dim};
}

/* ---- running ------------------------------------------------------------------------------------ */

/* Heads before tokens: [B,T,N,D] as [N,B*T,D]. */
static tn_tensor by_head(const tn_tensor *x)
{
    tn_tensor view =
        tn_tensor_dense(x->data, x->dtype, 3, (int64_t[]){x->shape[2], x->shape[0] * x->shape[1], x->shape[3]});
    view.stride[0] = x->stride[2];
    view.stride[1] = x->stride[1];
    return view;
}

/* The rows of all heads one below the other; x [N,rows,D] is dense or has one row a head. */
static tn_tensor stacked(const tn_tensor *x)
{
    tn_tensor view = tn_tensor_dense(x->data, x->dtype, 2, (int64_t[]){x->shape[0] * x->shape[1], x->shape[2]});
    view.stride[0] = x->shape[1] == 1 ? x->stride[0] : x->stride[1];
    return view;
}

/* y = the rows of each head of x times that head's matrix: [B,T,N,in] to [B,T,N,out]. */
static void each_head(graph_run *r, const mla *a, const tn_site *product, const tn_tensor *x, const tn_tensor *y)
{
    size_t mark = arena_mark(r->arena);
    tn_tensor counts = steps_counts(r, a->heads, r->rows * r->tokens);
    tn_tensor from = by_head(x), to = by_head(y), in = from, out = to;
    bool copies = from.shape[1] > 1;
    if (copies) {
        in = steps_take(r, r->dtype, 3, from.shape);
        steps_copy(r, a->copy, &from, &in);
        out = steps_take(r, r->dtype, 3, to.shape);
    }
    tn_tensor in_rows = stacked(&in), out_rows = stacked(&out);
    steps_grouped(r, product, &in_rows, &counts, &out_rows);
    if (copies)
        steps_copy(r, a->copy, &out, &to);
    steps_release(r, mark);
}

/* Queries against latents and shared keys: [B,T,N,kv_rank + rope]. The rotation writes to q and to the keys. */
static tn_tensor absorbed(graph_run *r, const mla *a, const mixer_place *at, const tn_tensor *q, const tn_tensor *k_rot)
{
    int64_t n = a->heads, dim = a->nope + a->rope, wide = a->kv_rank + a->rope;
    tn_tensor nope = steps_heads(r, q, 0, n, a->nope, dim), rot = steps_heads(r, q, a->nope, n, a->rope, dim);
    if (!a->unrotated)
        steps_rope(r, at->ropes[0], 0, &rot, k_rot);
    if (a->row_scale)
        steps_row_scale(r, a->row_scale, q, &r->q_scale);
    tn_tensor all = steps_take(r, r->dtype, 2, (int64_t[]){q->shape[0], n * wide});
    tn_tensor latent = steps_heads(r, &all, 0, n, a->kv_rank, wide);
    tn_tensor shared = steps_heads(r, &all, a->kv_rank, n, a->rope, wide);
    each_head(r, a, a->absorb, &nope, &latent);
    steps_copy(r, a->copy, &rot, &shared);
    return steps_heads(r, &all, 0, n, wide, wide);
}

/* The keys of this call join those of the layer, and those that each query is given are chosen. */
static void choose(graph_run *r, const mla *a, const mixer_place *at, const tn_tensor *x, const tn_tensor *latent)
{
    const mla_indexer *index = &a->indexer;
    tn_tensor q = steps_linear(r, a->index_q, latent), k = steps_linear(r, a->index_k, x);
    tn_tensor w = steps_linear(r, a->index_w, x);
    steps_norm_in_place(r, a->index_norm, &k);
    tn_tensor q_heads = steps_heads(r, &q, 0, index->heads, index->dim, index->dim);
    tn_tensor k_head = steps_heads(r, &k, 0, 1, index->dim, index->dim);
    steps_rope(r, at->ropes[index->rope], index->rope, &q_heads, &k_head);
    steps_choose_keys(r, a->choose, at->layer, &q_heads, &k_head, &w);
}

static tn_tensor mla_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x)
{
    const mla *a = state;
    int64_t n = a->heads, wide = a->kv_rank + a->rope;
    tn_tensor q = *x;
    if (a->q_a) {
        q = steps_linear(r, a->q_a, x);
        steps_norm_in_place(r, a->q_norm, &q);
    }
    if (a->choose)
        choose(r, a, at, x, &q);
    q = steps_linear(r, a->q_b, &q);
    tn_tensor kv = steps_linear(r, a->kv_a, x), latent = steps_columns(&kv, 0, a->kv_rank);
    tn_tensor k_rot = steps_heads(r, &kv, a->kv_rank, 1, a->rope, a->rope), k = steps_heads(r, &kv, 0, 1, wide, wide);
    steps_norm_in_place(r, a->kv_norm, &latent);
    tn_tensor query = absorbed(r, a, at, &q, &k_rot);
    steps_cache_append(r, at->layer, &k, NULL);
    tn_tensor out = steps_take(r, r->dtype, 2, (int64_t[]){x->shape[0], n * a->v});
    tn_tensor mixed = steps_attention(r, a->site, at->layer, &query);
    tn_tensor latents = steps_heads(r, &mixed, 0, n, a->kv_rank, a->kv_rank);
    tn_tensor values = steps_heads(r, &out, 0, n, a->v, a->v);
    each_head(r, a, a->expand, &latents, &values);
    return steps_linear(r, a->o, &out);
}

const mixer_kind mla_mixer = {sizeof(mla), mla_build, mla_cache, mla_forward, own_heads};
