/* The decoder: building its tree, running it. */
#include "models/decoder.h"

#include "models/stages.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct decoder_layer {
    const layer_kind *whole; /* with its state, instead of all below                              */
    void *whole_state;
    gqa attention;
    const mixer_kind *mixer; /* with its state, instead of attention                              */
    void *mixer_state;
    graph_site *mlp; /* MLP or MOE_BLOCK                                                          */
    const feed_kind *feed, *tail;
    void *feed_state, *tail_state;
    graph_site *norm, *after_attention, *mlp_norm, *after_mlp; /* or NULL                          */
    tn_site *keep[2], *give[2];                                /* factors of h and what is added, or NULL */
    bool sums;                                                 /* decoder_norms.sums               */
    bool alone;                                                /* there is no MLP                  */
    bool once; /* what ranks make of both halves is added up together                                  */
} decoder_layer;

typedef struct decoder {
    model_shape shape;
    model_layer *cache;
    int32_t *owner; /* model_shape.owner                                                              */
    decoder_layer *layers;
    tn_site *embed; /* steps, the others or NULL            */
    tn_site *embed_factor, *residual_scale, *logit_scale, *softcap, *copy;
    graph_site *norm, *head, *head_in; /* norm, head_in: or NULL                                   */
    graph_site *rope[MODEL_ROPES], *queries[MODEL_ROPES];
    bool borrows[MODEL_ROPES]; /* some layer that rotates so has no keys                             */
    const stage_kind *first, *last;
    void *first_state, *last_state;
    int64_t embed_width;
    bool parallel, normed_residual;
    bool wide; /* h is f32 in a model of another type                                              */
} decoder;

/* Positions of a model of states alone whose file names no number: as many as a session may ask for without thinking.
 */
enum { UNBOUNDED = 1 << 20 };

/* ---- building ----------------------------------------------------------------------------------- */

/* State of a piece, zeroed. */
static void *piece_state(graph_builder *b, size_t size)
{
    void *state = b->status == TN_OK ? calloc(1, size ? size : 1) : NULL;
    return state || b->status != TN_OK ? state : build_fail(b, TN_E_MEMORY, "graph", "out of memory");
}

static void build_mixer(graph_builder *b, graph_module *m, const decoder_layer_spec *spec, decoder_layer *l,
                        model_layer *cache)
{
    l->mixer = spec->mixer;
    if (!spec->mixer) {
        gqa_build(b, m, &spec->attention, &l->attention);
        *cache = gqa_cache(b, &spec->attention);
        return;
    }
    l->mixer_state = piece_state(b, spec->mixer->state_size);
    if (b->status != TN_OK)
        return;
    spec->mixer->build(b, m, spec->mixer_spec, l->mixer_state);
    *cache = spec->mixer->cache(b, spec->mixer_spec);
}

static void build_feed(graph_builder *b, graph_module *m, const feed_kind *kind, const void *spec, void **state)
{
    *state = kind ? piece_state(b, kind->state_size) : NULL;
    if (kind && b->status == TN_OK)
        kind->build(b, m, spec, *state);
}

static graph_site *build_norm(graph_builder *b, graph_module *m, const decoder_spec *s, const char *name, bool of_sum)
{
    return name ? parts_norm(b, m, name, &s->norm, s->hidden, of_sum) : NULL;
}

/* Does a layer leave what its MLP gave to be added? */
static bool leaves(const decoder_layer *l)
{
    return !l->whole && !l->tail && !l->sums;
}

/* Attention and MLP with their norms. */
static void build_halves(graph_builder *b, graph_module *m, const decoder_spec *s, const decoder_layer_spec *spec,
                         int64_t i, decoder *d)
{
    decoder_layer *l = &d->layers[i];
    const char *mlp = spec->mlp_name ? spec->mlp_name : "mlp";
    build_mixer(b, m, spec, l, &d->cache[i]);
    l->sums = s->norms.sums;
    l->alone = spec->alone;
    l->feed = spec->feed;
    l->tail = spec->tail;
    if (spec->alone)
        ;
    else if (spec->feed)
        build_feed(b, m, spec->feed, spec->feed_spec, &l->feed_state);
    else
        l->mlp = spec->moe.experts > 0 ? moe_parts_block(b, m, mlp, &spec->moe)
                 : mlp[0]              ? parts_mlp(b, m, mlp, &spec->mlp, NULL)
                                       : parts_mlp_of(b, m, &spec->mlp, NULL);
    /* What the layers before left to be added belongs to the next norm, unless something came in between; the first
     * one has the embedding alone. */
    bool left = i > 0 && leaves(&d->layers[i - 1]) && !d->wide;
    l->norm = build_norm(b, m, s, s->norms.attention, left);
    l->after_attention = build_norm(b, m, s, s->norms.after_attention, false);
    if (!spec->alone) {
        l->mlp_norm = build_norm(b, m, s, s->norms.mlp, true);
        l->after_mlp = build_norm(b, m, s, s->norms.after_mlp, false);
    }
    build_feed(b, m, spec->tail, spec->tail_spec, &l->tail_state);
    for (int half = 0; half < 2; half++) {
        l->keep[half] = parts_factor(b, m, spec->keep[half], s->hidden);
        l->give[half] = parts_factor(b, m, spec->give[half], s->hidden);
    }
}

/* Halves side by side are one sum over ranks, where nothing is done with either before they are added. */
static void join_sums(decoder_layer *l)
{
    graph_site *o = l->attention.o;
    bool plain = !l->after_attention && !l->after_mlp && !l->keep[0] && !l->keep[1] && !l->give[0] && !l->give[1];
    if (!plain || !o || !o->adds || !l->mlp || !l->mlp->adds)
        return;
    l->once = o->stays_cut = l->mlp->stays_cut = true;
}

static void build_layer(graph_builder *b, const config_reader *c, graph_module *parent, const decoder_spec *s,
                        int64_t i, decoder *d)
{
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)i);
    decoder_layer *l = &d->layers[i];
    decoder_layer_spec spec = s->layer;
    if (s->differ)
        s->differ(c, i, &spec);
    graph_module *m = build_module(b, parent, name, spec.class_name ? spec.class_name : s->classes->layer);
    if (!spec.mixer && spec.attention.borrows && spec.attention.rope != GQA_NO_ROPE)
        d->borrows[spec.attention.rope] = true;
    l->whole = spec.whole;
    if (!spec.whole) {
        build_halves(b, m, s, &spec, i, d);
        if (d->parallel && (s->residual_scale == 0 || s->residual_scale == 1))
            join_sums(l);
    } else if ((l->whole_state = piece_state(b, spec.whole->state_size)))
        spec.whole->build(b, m, &spec, l->whole_state, &d->cache[i]);
}

static void build_head(graph_builder *b, graph_module *head, const decoder_spec *s, const tn_tensor *weight, decoder *d)
{
    struct group *parts = b->group;
    b->group = b->stages ? b->stages
               : b->sums ? b->sums
                         : b->group; /* all ranks go on with it behind the last layer              */
    const parts_share share = parts_share_of(b, s->vocab, parts_unit(b, s->vocab));
    b->group = parts;
    const build_ranges *some = share.cut.group ? &share.ranges : NULL;
    const tn_tensor own = some ? build_rows(b, weight, some->at[0].first, some->at[0].rows) : *weight;
    d->head = build_site(b, head, TN_OP_LINEAR, NULL);
    if (!d->head)
        return;
    build_param(b, d->head, TN_ROLE_WEIGHT, &own, 1);
    d->head->cut = share.cut;
    tn_tensor bias;
    if (s->head_bias && build_tensor_as(b, head, "bias", 1, &s->vocab, &(build_form){.ranges = some}, &bias)) {
        build_param(b, d->head, TN_ROLE_BIAS, &bias, 1);
        d->head->site.features |= TN_HAS_BIAS;
    }
    d->head->site.dim[TN_DIM_HIDDEN] = d->embed_width;
    d->head->site.dim[TN_DIM_OUT] = own.shape[0];
    d->logit_scale = parts_factor(b, head, s->logit_scale, s->vocab);
    if (s->logit_softcap != 0 && (d->softcap = build_step(b, head, TN_OP_SOFTCAP, s->vocab)))
        d->softcap->num[TN_NUM_SOFTCAP] = s->logit_softcap;
}

/* The embedding, and the head that may share its matrix (A.3: a file may hold either of a tied pair, or both; that of a
 * base class has no head of its own). */
static void build_ends(graph_builder *b, graph_module *embed, const decoder_spec *s, decoder *d)
{
    const char *name = s->names && s->names->head ? s->names->head : "lm_head";
    graph_module *head = build_module(b, s->head_parent ? s->head_parent : b->graph->root, name, "Linear");
    if (b->status != TN_OK)
        return;
    int64_t shape[2] = {s->vocab, d->embed_width};
    bool has_head = build_has(b, head, "weight"), has_embed = build_has(b, embed, "weight"), bare = b->bare;
    bool embed_from_head = s->tied && !has_embed && has_head;
    tn_tensor embed_weight;
    if (!build_tensor(b, embed_from_head ? head : embed, "weight", 2, shape, &embed_weight))
        return;
    tn_tensor head_weight = embed_weight;
    d->shape.no_head = !s->tied && !has_head && (b->base || bare);
    if (!embed_from_head && !d->shape.no_head && (has_head || !s->tied) &&
        !build_tensor(b, head, "weight", 2, shape, &head_weight))
        return;
    if (!d->shape.no_head)
        build_head(b, head, s, &head_weight, d);
    d->embed = build_step(b, embed, TN_OP_EMBEDDING, d->embed_width);
    if (!d->embed)
        return;
    d->embed->num[TN_NUM_SCALE] = s->embed_scale;
    build_step_param(b, d->embed, TN_ROLE_WEIGHT, &embed_weight);
    d->embed_factor = parts_factor(b, embed, s->embed_factor, d->embed_width);
}

/* Heads that attention of this rank rotates in the i-th way, in its layers. */
static void own_heads(const graph_builder *around, const decoder_spec *s, int i, parts_rope_spec *site)
{
    graph_builder layer = *around;
    const graph_builder *b = &layer;
    layer.staged = layer.stages;
    gqa_spec like = s->layer.attention;
    const mixer_kind *mixer = s->layer.mixer;
    if (mixer && mixer->heads && i == 0)
        site->heads = mixer->heads(b, s->layer.mixer_spec);
    if ((!b->group && !b->sums) || mixer || !like.heads || !site->kv_heads)
        return;
    like.heads = site->heads;
    like.kv_heads = site->kv_heads;
    gqa_own_heads(b, &like, &site->heads, &site->kv_heads);
}

/* The sites of a rotation; that of queries alone is told apart by its name. */
static void build_rope(graph_builder *b, const decoder_spec *s, int i, decoder *d)
{
    char name[64];
    parts_rope_spec site = s->rope[i].site;
    bool first = site.function;
    if (!first)
        site = s->rope[0].site;
    site.rotary = d->shape.rope[i].dim;
    own_heads(b, s, i, &site);
    d->rope[i] = first ? parts_rope(b, s->classes->scope, &site) : d->rope[0];
    if (!d->borrows[i])
        return;
    snprintf(name, sizeof name, "%s%squeries", site.variant ? site.variant : "", site.variant ? "_" : "");
    site.variant = name;
    site.kv_heads = 0;
    d->queries[i] = first || !d->queries[0] ? parts_rope(b, s->classes->scope, &site) : d->queries[0];
}

static void build_ropes(graph_builder *b, const config_reader *c, const decoder_spec *s, decoder *d)
{
    for (int i = 0; i < s->rope_count && b->status == TN_OK; i++) {
        rope_config_read(c, &s->rope[i].config, &d->shape.rope[i]);
        build_rope(b, s, i, d);
        int32_t style = d->rope[i] ? d->rope[i]->site.meaning[TN_AXIS_ROPE] : 0;
        d->shape.rope[i].f32_tables = style == TN_ROPE_COMPLEX || style == TN_ROPE_HALF_F32;
    }
    d->shape.rope_count = s->rope_count;
    d->shape.q_scale = s->q_scale;
    d->shape.restart_at = s->restarts && d->shape.rope[0].kind == ROPE_LONG ? (int64_t)d->shape.rope[0].original : 0;
    const char *positions = s->positions_key ? s->positions_key : "max_position_embeddings";
    d->shape.max_positions = s->context ? s->context
                             : s->rope_count
                                 ? d->shape.rope[0].max_positions
                                 : config_i64(c, positions, s->no_attention ? UNBOUNDED : 2048, 1, INT32_MAX);
}

static void decoder_free(void *state)
{
    decoder *d = state;
    if (!d)
        return;
    for (int64_t i = 0; d->layers && i < d->shape.layers; i++) {
        free(d->layers[i].whole_state);
        free(d->layers[i].mixer_state);
        free(d->layers[i].feed_state);
        free(d->layers[i].tail_state);
    }
    free(d->first_state);
    free(d->last_state);
    free(d->owner);
    free(d->layers);
    free(d->cache);
    free(d);
}

static void build_stage(graph_builder *b, graph_module *model, const decoder_spec *s, const stage_kind *kind,
                        void **state)
{
    if (kind && (*state = piece_state(b, kind->state_size)))
        kind->build(b, model, s->stage_spec, *state);
}

/* The state with room for its layers. */
static decoder *allocate(graph_builder *b, int64_t layers)
{
    decoder *d = b->status == TN_OK ? calloc(1, sizeof *d) : NULL;
    if (d) {
        d->layers = calloc((size_t)layers, sizeof *d->layers);
        d->cache = calloc((size_t)layers, sizeof *d->cache);
    }
    if (d && d->layers && d->cache)
        return d;
    decoder_free(d);
    return build_fail(b, TN_E_MEMORY, "graph", "out of memory for %lld layers", (long long)layers);
}

void *decoder_build(graph_builder *b, const config_reader *c, const decoder_spec *s)
{
    decoder *d = allocate(b, s->layers);
    if (!d)
        return NULL;
    d->shape.layers = s->layers;
    d->shape.hidden = s->hidden;
    d->shape.vocab = s->vocab;
    d->shape.padding = s->padding;
    d->shape.layer = d->cache;
    d->shape.both_sides = s->layer.attention.both_sides;
    d->shape.learnt = s->learnt;
    d->embed_width = s->embed_width ? s->embed_width : s->hidden;
    d->parallel = s->parallel;
    d->normed_residual = s->normed_residual;
    d->shape.states_behind = s->states_behind;
    d->wide = s->wide && b->dtype != TN_F32;
    graph_module *model =
        build_module(b, s->parent ? s->parent : b->graph->root, s->name ? s->name : "model", s->classes->model);
    const decoder_names names = s->names ? *s->names : (decoder_names){0};
    graph_module *embed = build_module(b, model, names.embed ? names.embed : "embed_tokens",
                                       s->classes->embedding ? s->classes->embedding : "Embedding");
    graph_module *layers = build_module(b, model, names.layers ? names.layers : "layers", "ModuleList");
    d->shape.owner = d->owner = stages_deal(b, c, s);
    d->shape.stages = b->stages;
    b->staged = b->stages;
    for (int64_t i = 0; i < s->layers && b->status == TN_OK; i++) {
        b->elsewhere = !stages_here(&d->shape, i);
        build_layer(b, c, layers, s, i, d);
        d->cache[i].elsewhere = b->elsewhere;
    }
    b->staged = b->elsewhere = false;
    d->first = s->first;
    d->last = s->last;
    build_stage(b, model, s, s->first, &d->first_state);
    build_stage(b, model, s, s->last, &d->last_state);
    bool left = b->status == TN_OK && leaves(&d->layers[s->layers - 1]) && !d->wide;
    parts_norm_kind last = s->norm;
    last.class_name = s->classes->final_norm ? s->classes->final_norm : last.class_name;
    const char *final_norm = s->final_norm ? s->final_norm : "norm";
    d->norm = final_norm[0] ? parts_norm(b, model, final_norm, &last, s->hidden, left) : NULL;
    if (s->head_in)
        d->head_in = parts_linear(b, model, s->head_in, s->hidden, d->embed_width, false, NULL);
    if (s->classes->rotary)
        build_module(b, model, "rotary_emb", s->classes->rotary);
    /* Sums that no norm has around it. */
    if (s->norm.layer_norm || !s->norms.attention || s->layer.tail || s->layer.whole || s->first || !d->norm || d->wide)
        build_step(b, model, TN_OP_ADD, s->hidden);
    if (d->wide || s->layer.alone)
        d->copy = build_step(b, model, TN_OP_COPY, s->hidden);
    d->residual_scale = parts_factor(b, model, s->residual_scale, s->hidden);
    build_ends(b, embed, s, d);
    build_ropes(b, c, s, d);
    if (b->status == TN_OK)
        return d;
    decoder_free(d);
    return NULL;
}

/* ---- running ------------------------------------------------------------------------------------ */

static const model_shape *decoder_shape(const void *state)
{
    return &((const decoder *)state)->shape;
}

/* h, or what it is in the model's type. */
static tn_tensor narrow(graph_run *r, const decoder *d, const tn_tensor *h)
{
    if (!d->wide)
        return *h;
    tn_tensor x = steps_take(r, r->dtype, h->ndim, h->shape);
    steps_copy(r, d->copy, h, &x);
    return x;
}

/* States are seen in the model's type. */
static void capture(graph_run *r, const decoder *d, int64_t index, const tn_tensor *h)
{
    tn_tensor seen = narrow(r, d, h);
    steps_capture(r, index, &seen);
}

/* h += more, where something is left to be added, and its norm; h itself where there is none. */
static tn_tensor enter(graph_run *r, const decoder *d, const graph_site *norm, const tn_tensor *h,
                       const tn_tensor *more)
{
    if (more && norm && !d->wide)
        return steps_add_norm(r, norm, h, more);
    if (more)
        steps_add(r, h, more);
    tn_tensor x = narrow(r, d, h);
    return norm ? steps_norm(r, norm, &x) : x;
}

/* The same before attention or MLP, where the norm may take h's place. */
static tn_tensor enter_half(graph_run *r, const decoder *d, const graph_site *norm, tn_tensor *h, const tn_tensor *more)
{
    tn_tensor x = enter(r, d, d->normed_residual ? NULL : norm, h, more);
    if (d->normed_residual)
        steps_norm_in_place(r, norm, h);
    return x;
}

/* What a half gives, before it is added to h. */
static void leave(graph_run *r, const decoder *d, const decoder_layer *l, int half, const tn_tensor *h,
                  const tn_tensor *x)
{
    const graph_site *norm = half ? l->after_mlp : l->after_attention;
    if (norm)
        steps_norm_in_place(r, norm, x);
    steps_change(r, d->residual_scale, x);
    steps_change(r, l->keep[half], h);
    steps_change(r, l->give[half], x);
}

static void run_feed(graph_run *r, const decoder_layer *l, const mixer_place *at, const tn_tensor *h,
                     const tn_tensor *x, const tn_tensor *y)
{
    if (l->feed)
        l->feed->forward(r, l->feed_state, at, h, x, y);
    else
        steps_mlp(r, l->mlp, x, y);
}

/* How many tokens of a layer's result are read: behind the keys of the last layer those that the caller wants. One row
 * only, whose last tokens lie together; and no pieces that know of all tokens. */
static int64_t wanted_of(const graph_run *r, const decoder *d, int64_t i)
{
    const decoder_layer *l = &d->layers[i];
    bool plain = i + 1 == d->shape.layers && !d->last && leaves(l) && !l->feed;
    return plain && r->rows == 1 && !r->capture && !steps_media_deepens(r, i) ? r->wanted : r->tokens;
}

/* more: what the layer before left to be added, or NULL; mlp receives what this one leaves. The run, h and mlp are
 * narrowed to the tokens that are wanted. */
static void run_layer(graph_run *r, const decoder *d, int64_t i, tn_tensor *h, const tn_tensor *more, tn_tensor *mlp)
{
    const decoder_layer *l = &d->layers[i];
    const mixer_place at = {d->rope, d->queries, i, wanted_of(r, d, i)};
    if (d->normed_residual && more) { /* h is captured before it is normed                        */
        steps_add(r, h, more);
        more = NULL;
    }
    if (d->normed_residual)
        capture(r, d, i, h);
    tn_tensor x = enter_half(r, d, l->norm, h, more);
    capture(r, d, i, h);
    tn_tensor a = l->mixer ? l->mixer->forward(r, l->mixer_state, &at, &x) : gqa_forward(r, &l->attention, &at, &x);
    if (at.wanted < x.shape[0] / r->rows) {
        a = steps_last(&a, at.wanted);
        x = steps_last(&x, at.wanted);
        *h = steps_last(h, at.wanted);
        *mlp = steps_last(mlp, at.wanted);
        steps_narrow(r, at.wanted);
    }
    if (at.wanted == 0)
        return;
    if (l->sums) {
        steps_add(r, h, &a);
        steps_norm_in_place(r, l->after_attention, h);
        run_feed(r, l, &at, h, h, mlp);
        return;
    }
    leave(r, d, l, 0, h, &a);
    if (l->alone) { /* nothing comes behind: this is what is left                                  */
        steps_copy(r, d->copy, &a, mlp);
        return;
    }
    if (d->parallel) {
        if (l->mlp_norm)
            x = steps_norm(r, l->mlp_norm, h);
        run_feed(r, l, &at, h, &x, mlp);
        steps_add(r, l->once ? mlp : h, &a);
        if (l->once)
            steps_sum(r, &l->mlp->cut, mlp);
    } else {
        x = enter_half(r, d, l->mlp_norm, h, &a);
        run_feed(r, l, &at, h, &x, mlp);
    }
    leave(r, d, l, 1, h, mlp);
}

/* A layer that leaves nothing to be added: one of another kind, a norm of the sum, or what else comes behind it. */
static void finish_layer(graph_run *r, const decoder *d, int64_t i, const tn_tensor *h, const tn_tensor *mlp)
{
    const decoder_layer *l = &d->layers[i];
    const mixer_place at = {d->rope, d->queries, i, r->tokens};
    if (l->whole) {
        steps_capture(r, i, h);
        l->whole->forward(r, l->whole_state, &at, h);
        return;
    }
    steps_add(r, h, mlp);
    if (l->sums)
        steps_norm_in_place(r, l->after_mlp, h);
    if (l->tail)
        l->tail->forward(r, l->tail_state, &at, h, h, h);
}

/* What attention and MLP give is added by the norm behind them, so h trails by one sum between the two. */
static void decoder_begin(graph_run *r, const void *state, model_walk *walk)
{
    const decoder *d = state;
    tn_tensor h = steps_embedding(r, d->embed, d->embed_width);
    steps_change(r, d->embed_factor, &h);
    steps_media_embed(r, &h);
    tn_tensor sum = steps_take(r, r->dtype, 2, (int64_t[]){h.shape[0], d->shape.hidden});
    if (d->wide) {
        tn_tensor wide = steps_take(r, TN_F32, 2, h.shape);
        steps_copy(r, d->copy, &h, &wide);
        h = wide;
    }
    if (d->first)
        h = d->first->forward(r, d->first_state, &h);
    *walk = (model_walk){.h = h, .sum = sum};
}

static void decoder_layer_forward(graph_run *r, const void *state, int64_t i, model_walk *walk)
{
    const decoder *d = state;
    const decoder_layer *l = &d->layers[i];
    size_t mark = arena_mark(r->arena);
    if (!l->whole)
        run_layer(r, d, i, &walk->h, walk->trails ? &walk->sum : NULL, &walk->sum);
    else if (walk->trails)
        steps_add(r, &walk->h, &walk->sum);
    if (!leaves(l))
        finish_layer(r, d, i, &walk->h, &walk->sum);
    walk->trails = leaves(l);
    if (steps_media_deepens(r, i)) {
        if (walk->trails)
            steps_add(r, &walk->h, &walk->sum);
        if (i + 1 < d->shape.layers) /* what a layer gives is what it gave before pictures come in     */
            steps_capture(r, i + 1, &walk->h);
        steps_media_deepen(r, i, &walk->h);
        walk->trails = false;
    }
    steps_release(r, mark);
}

static void decoder_end(graph_run *r, const void *state, model_walk *walk)
{
    const decoder *d = state;
    tn_tensor h = walk->h;
    if (d->last) {
        steps_capture(r, d->shape.layers, &h);
        h = d->last->forward(r, d->last_state, &h);
    }
    r->result = r->tokens > 0 ? enter(r, d, d->norm, &h, walk->trails ? &walk->sum : NULL) : narrow(r, d, &h);
    if (d->shape.states_behind)
        capture(r, d, d->shape.layers, &h);
    steps_capture(r, d->shape.layers + d->shape.states_behind, &r->result);
}

static tn_tensor decoder_logits(graph_run *r, const void *state, const tn_tensor *x)
{
    const decoder *d = state;
    tn_tensor in = d->head_in ? steps_linear(r, d->head_in, x) : *x;
    tn_tensor logits = steps_linear(r, d->head, &in);
    steps_change(r, d->logit_scale, &logits);
    steps_change(r, d->softcap, &logits);
    return logits;
}

const model_flow decoder_flow = {decoder_free,  decoder_logits,        decoder_shape,
                                 decoder_begin, decoder_layer_forward, decoder_end};
