/* The decoder: reading what its models have in common, building its tree, running it. */
#include "models/decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Bounds that no real model comes near: a file that exceeds them is broken, and nothing is allocated for it. */
enum { MAX_WIDTH = 1 << 20, MAX_LAYERS = 1 << 12, MAX_HEADS = 1 << 14, MAX_VOCAB = 1 << 24 };
enum { MAX_EXPERTS = 1 << 16, MAX_TOP_K = 1 << 10 };

typedef struct decoder_layer {
    gqa attention;
    const mixer_kind *mixer; /* with its state, instead of attention                              */
    void *mixer_state;
    graph_site *mlp; /* MLP or MOE_BLOCK                                                          */
    const feed_kind *feed, *tail;
    void *feed_state, *tail_state;
    graph_site *norm, *after_attention, *mlp_norm, *after_mlp; /* or NULL                          */
} decoder_layer;

typedef struct decoder {
    model_shape shape;
    model_layer *cache;
    decoder_layer *layers;
    tn_site *embed; /* steps, the others or NULL            */
    tn_site *embed_factor, *residual_scale, *logit_scale, *softcap;
    graph_site *norm, *head;
    graph_site *rope[MODEL_ROPES];
    bool parallel;
} decoder;

/* ---- reading ------------------------------------------------------------------------------------ */

static void read_attention(const config_reader *c, decoder_spec *s)
{
    gqa_spec *a = &s->layer.attention;
    a->class_name = s->classes->attention;
    a->hidden = s->hidden;
    a->heads = config_need_i64(c, "num_attention_heads", 1, MAX_HEADS);
    /* null means what absence meant before there was a default. */
    bool all = !s->kv_heads || config_is_null(c, "num_key_value_heads");
    a->kv_heads = config_i64(c, "num_key_value_heads", all ? a->heads : s->kv_heads, 1, MAX_HEADS);
    if (!s->head_dim || config_is_null(c, "head_dim"))
        s->head_dim = s->hidden / a->heads;
    if (!s->ignore_head_dim)
        s->head_dim = config_i64(c, "head_dim", s->head_dim, 1, ROPE_MAX_DIM);
    a->head_dim = s->head_dim;
    a->scale = 1.0 / sqrt((double)a->head_dim);
    if (a->heads % a->kv_heads)
        config_fail(c, "num_attention_heads", "is %lld, no multiple of num_key_value_heads %lld", (long long)a->heads,
                    (long long)a->kv_heads);
}

/* The rotation of most models. */
static void read_rope(decoder_spec *s)
{
    const gqa_spec *a = &s->layer.attention;
    s->rope[0] = (decoder_rope){.site = {.function = "apply_rotary_pos_emb",
                                         .style = TN_ROPE_HALF,
                                         .heads = a->heads,
                                         .kv_heads = a->kv_heads,
                                         .head_dim = a->head_dim},
                                .config = {.head_dim = a->head_dim, .partial = s->partial, .theta = s->theta}};
    s->rope_count = 1;
}

static void read_norm(const config_reader *c, decoder_spec *s)
{
    const char *key = s->eps_key ? s->eps_key : "rms_norm_eps";
    s->norm.class_name = s->classes->norm;
    s->norm.variant = s->norm.variant ? s->norm.variant : TN_NORM_W;
    s->norm.eps = config_f64(c, key, s->norm.eps != 0 ? s->norm.eps : 1e-6);
    if (!(s->norm.eps >= 0 && s->norm.eps < 1))
        config_fail(c, key, "is %g, which is out of range", s->norm.eps);
    if (!s->norms.attention && !s->norms.after_attention)
        s->norms = (decoder_norms){.attention = "input_layernorm", .mlp = "post_attention_layernorm"};
}

void decoder_read(const config_reader *c, decoder_spec *s)
{
    parts_mlp_spec *mlp = &s->layer.mlp;
    s->hidden = config_need_i64(c, "hidden_size", 1, MAX_WIDTH);
    s->layers = config_need_i64(c, "num_hidden_layers", 1, MAX_LAYERS);
    s->vocab = config_need_i64(c, "vocab_size", 1, MAX_VOCAB);
    s->tied = config_bool(c, "tie_word_embeddings", s->tied);
    s->theta = s->theta != 0 ? s->theta : 10000;
    read_norm(c, s);
    read_attention(c, s);
    read_rope(s);
    if (config_list(c, "layer_types") >= 0 && config_list(c, "layer_types") != s->layers)
        config_fail(c, "layer_types", "has %lld entries, num_hidden_layers is %lld",
                    (long long)config_list(c, "layer_types"), (long long)s->layers);
    mlp->class_name = s->classes->mlp;
    mlp->hidden = s->hidden;
    if (!s->no_intermediate || config_has(c, "intermediate_size"))
        mlp->inter = config_need_i64(c, "intermediate_size", 1, MAX_WIDTH);
    mlp->act = parts_act(c, s->act_key ? s->act_key : "hidden_act", s->act ? s->act : "silu");
}

int64_t decoder_window(const config_reader *c, int64_t fallback)
{
    return config_i64(c, "sliding_window", config_is_null(c, "sliding_window") ? 0 : fallback, 1, INT32_MAX);
}

int64_t decoder_window_in_use(const config_reader *c)
{
    return config_bool(c, "use_sliding_window", false) ? decoder_window(c, 4096) : 0;
}

int32_t decoder_layer_type(const config_reader *c, int64_t i, const config_words *words, int32_t fallback)
{
    return config_list(c, "layer_types") < 0 ? fallback : config_list_choice(c, "layer_types", i, words);
}

bool decoder_slides(const config_reader *c, int64_t i, bool fallback)
{
    static const struct config_word list[] = {
        {"full_attention", false}, {"attention", false}, {"sliding_attention", true}};
    static const config_words types = {sizeof list / sizeof list[0], list};
    return decoder_layer_type(c, i, &types, fallback) != 0;
}

void decoder_some_slide(const config_reader *c, int64_t i, decoder_layer_spec *layer)
{
    if (!decoder_slides(c, i, false))
        layer->attention.window = 0;
}

double decoder_positive(const config_reader *c, const char *key, double fallback)
{
    if (config_is_null(c, key))
        return 0;
    double value = config_f64(c, key, fallback);
    if (!(value > 0))
        config_fail(c, key, "is %g, it must be positive or null", value);
    return value;
}

void decoder_granite_factors(const config_reader *c, decoder_spec *s)
{
    double divisor = config_f64(c, "logits_scaling", 1);
    if (divisor == 0)
        config_fail(c, "logits_scaling", "is 0");
    s->embed_factor = config_f64(c, "embedding_multiplier", 1);
    s->residual_scale = config_f64(c, "residual_multiplier", 1);
    s->logit_scale = divisor != 0 ? 1 / divisor : 0;
    s->layer.attention.scale = config_f64(c, "attention_multiplier", 1);
}

void decoder_upper_slide(const config_reader *c, int64_t i, decoder_layer_spec *layer)
{
    int64_t first = config_i64(c, "max_window_layers", 28, 0, INT32_MAX);
    if (layer->attention.window && !decoder_slides(c, i, i >= first))
        layer->attention.window = 0;
}

moe_parts_spec decoder_experts(const config_reader *c, const decoder_spec *s, const moe_parts_names *names,
                               int64_t experts, int64_t top_k)
{
    return decoder_experts_of(c, s, names, "num_experts", experts, "num_experts_per_tok", top_k);
}

moe_parts_spec decoder_experts_of(const config_reader *c, const decoder_spec *s, const moe_parts_names *names,
                                  const char *experts_key, int64_t experts, const char *top_k_key, int64_t top_k)
{
    moe_parts_spec moe = {.names = names, .hidden = s->hidden, .inter = s->layer.mlp.inter, .act = s->layer.mlp.act};
    const char *key = config_has(c, experts_key)     ? experts_key
                      : config_has(c, "num_experts") ? "num_experts"
                                                     : "num_local_experts";
    const char *top = config_has(c, top_k_key) ? top_k_key : "num_experts_per_tok";
    moe.experts_key = key;
    moe.experts = config_i64(c, key, experts, s->classes->mlp ? 0 : 1, MAX_EXPERTS);
    moe.top_k = config_i64(c, top, top_k, 1, MAX_TOP_K);
    if (moe.experts > 0 && moe.top_k > moe.experts)
        config_fail(c, top, "is %lld, %s only %lld", (long long)moe.top_k, key, (long long)moe.experts);
    return moe;
}

void decoder_sparse(const config_reader *c, int64_t i, decoder_layer_spec *layer)
{
    int64_t step = config_i64(c, "decoder_sparse_step", 1, 1, MAX_LAYERS);
    if ((i + 1) % step != 0 || config_list_holds(c, "mlp_only_layers", i))
        layer->moe.experts = 0;
}

void decoder_sigmoid_groups(const config_reader *c, moe_parts_spec *moe, int64_t groups, int64_t top_groups,
                            double scale)
{
    moe->score = TN_SCORE_SIGMOID;
    moe->route_features =
        TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING | (config_bool(c, "norm_topk_prob", true) ? TN_HAS_RENORM : 0);
    moe->f32_correction = true;
    moe->scale = config_f64(c, "routed_scaling_factor", scale);
    decoder_groups(c, moe, groups, top_groups);
}

void decoder_groups(const config_reader *c, moe_parts_spec *moe, int64_t groups, int64_t top_groups)
{
    moe->groups = config_i64(c, "n_group", groups, 1, MAX_EXPERTS);
    moe->top_groups = config_i64(c, "topk_group", top_groups, 1, MAX_EXPERTS);
    int64_t size = moe->experts / moe->groups;
    if (moe->experts % moe->groups)
        config_fail(c, "n_group", "is %lld, which does not divide %lld experts", (long long)moe->groups,
                    (long long)moe->experts);
    else if (moe->top_groups > moe->groups)
        config_fail(c, "topk_group", "is %lld, n_group only %lld", (long long)moe->top_groups, (long long)moe->groups);
    else if (moe->top_k > moe->top_groups * size)
        config_fail(c, "topk_group", "is %lld, too few for %lld experts per token", (long long)moe->top_groups,
                    (long long)moe->top_k);
}

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
        *cache = gqa_cache(&spec->attention);
        return;
    }
    l->mixer_state = piece_state(b, spec->mixer->state_size);
    if (b->status != TN_OK)
        return;
    spec->mixer->build(b, m, spec->mixer_spec, l->mixer_state);
    *cache = spec->mixer->cache(spec->mixer_spec);
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

static void build_layer(graph_builder *b, const config_reader *c, graph_module *parent, const decoder_spec *s,
                        int64_t i, decoder *d)
{
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)i);
    decoder_layer *l = &d->layers[i];
    decoder_layer_spec spec = s->layer;
    if (s->differ)
        s->differ(c, i, &spec);
    const char *mlp = spec.mlp_name ? spec.mlp_name : "mlp";
    graph_module *m = build_module(b, parent, name, s->classes->layer);
    build_mixer(b, m, &spec, l, &d->cache[i]);
    l->feed = spec.feed;
    l->tail = spec.tail;
    if (spec.feed)
        build_feed(b, m, spec.feed, spec.feed_spec, &l->feed_state);
    else
        l->mlp = spec.moe.experts > 0 ? moe_parts_block(b, m, mlp, &spec.moe) : parts_mlp(b, m, mlp, &spec.mlp, NULL);
    /* What the layers before left to be added belongs to the next norm, unless something came in between; the first
     * one has the embedding alone. */
    bool left = i > 0 && !d->layers[i - 1].tail;
    l->norm = build_norm(b, m, s, s->norms.attention, left);
    l->after_attention = build_norm(b, m, s, s->norms.after_attention, false);
    l->mlp_norm = build_norm(b, m, s, s->norms.mlp, true);
    l->after_mlp = build_norm(b, m, s, s->norms.after_mlp, false);
    build_feed(b, m, spec.tail, spec.tail_spec, &l->tail_state);
}

/* A step that multiplies by a number; NULL where there is none. */
static tn_site *build_factor(graph_builder *b, const graph_module *m, double factor, int64_t width)
{
    tn_site *step = factor != 0 ? build_step(b, m, TN_OP_SCALE, width) : NULL;
    if (step)
        step->num[TN_NUM_SCALE] = factor;
    return step;
}

static void build_head(graph_builder *b, graph_module *head, const decoder_spec *s, const tn_tensor *weight, decoder *d)
{
    d->head = build_site(b, head, TN_OP_LINEAR, NULL);
    if (!d->head)
        return;
    build_param(b, d->head, TN_ROLE_WEIGHT, weight, 1);
    d->head->site.dim[TN_DIM_HIDDEN] = s->hidden;
    d->head->site.dim[TN_DIM_OUT] = s->vocab;
    d->logit_scale = build_factor(b, head, s->logit_scale, s->vocab);
    if (s->logit_softcap != 0 && (d->softcap = build_step(b, head, TN_OP_SOFTCAP, s->vocab)))
        d->softcap->num[TN_NUM_SOFTCAP] = s->logit_softcap;
}

/* The embedding, and the head that may share its matrix (A.3: a file may hold either of a tied pair, or both). */
static void build_ends(graph_builder *b, graph_module *embed, const decoder_spec *s, decoder *d)
{
    graph_module *head = build_module(b, s->head_parent ? s->head_parent : b->graph->root, "lm_head", "Linear");
    if (b->status != TN_OK)
        return;
    int64_t shape[2] = {s->vocab, s->hidden};
    bool has_embed = build_has(b, embed, "weight"), has_head = build_has(b, head, "weight");
    bool embed_from_head = s->tied && !has_embed && has_head;
    tn_tensor embed_weight;
    if (!build_tensor(b, embed_from_head ? head : embed, "weight", 2, shape, &embed_weight))
        return;
    tn_tensor head_weight = embed_weight;
    if (!embed_from_head && (has_head || !s->tied) && !build_tensor(b, head, "weight", 2, shape, &head_weight))
        return;
    build_head(b, head, s, &head_weight, d);
    d->embed = build_step(b, embed, TN_OP_EMBEDDING, s->hidden);
    if (!d->embed)
        return;
    d->embed->num[TN_NUM_SCALE] = s->embed_scale;
    build_step_param(b, d->embed, TN_ROLE_WEIGHT, &embed_weight);
    d->embed_factor = build_factor(b, embed, s->embed_factor, s->hidden);
}

static void build_ropes(graph_builder *b, const config_reader *c, const decoder_spec *s, decoder *d)
{
    for (int i = 0; i < s->rope_count && b->status == TN_OK; i++) {
        parts_rope_spec site = s->rope[i].site;
        rope_config_read(c, &s->rope[i].config, &d->shape.rope[i]);
        site.rotary = d->shape.rope[i].dim;
        d->rope[i] = site.function ? parts_rope(b, s->classes->scope, &site) : d->rope[0];
        int32_t style = d->rope[i] ? d->rope[i]->site.meaning[TN_AXIS_ROPE] : 0;
        d->shape.rope[i].f32_tables = style == TN_ROPE_COMPLEX || style == TN_ROPE_HALF_F32;
    }
    d->shape.rope_count = s->rope_count;
    d->shape.q_scale = s->q_scale;
    d->shape.restart_at = s->restarts && d->shape.rope[0].kind == ROPE_LONG ? (int64_t)d->shape.rope[0].original : 0;
    d->shape.max_positions =
        s->rope_count ? d->shape.rope[0].max_positions : config_i64(c, "max_position_embeddings", 2048, 1, INT32_MAX);
}

static void decoder_free(void *state)
{
    decoder *d = state;
    if (!d)
        return;
    for (int64_t i = 0; d->layers && i < d->shape.layers; i++) {
        free(d->layers[i].mixer_state);
        free(d->layers[i].feed_state);
        free(d->layers[i].tail_state);
    }
    free(d->layers);
    free(d->cache);
    free(d);
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
    d->shape.layer = d->cache;
    d->parallel = s->parallel;
    graph_module *model =
        build_module(b, s->parent ? s->parent : b->graph->root, s->name ? s->name : "model", s->classes->model);
    graph_module *embed =
        build_module(b, model, "embed_tokens", s->classes->embedding ? s->classes->embedding : "Embedding");
    graph_module *layers = build_module(b, model, "layers", "ModuleList");
    for (int64_t i = 0; i < s->layers && b->status == TN_OK; i++)
        build_layer(b, c, layers, s, i, d);
    bool left = b->status == TN_OK && !d->layers[s->layers - 1].tail;
    parts_norm_kind last = s->norm;
    last.class_name = s->classes->final_norm ? s->classes->final_norm : last.class_name;
    d->norm = parts_norm(b, model, s->final_norm ? s->final_norm : "norm", &last, s->hidden, left);
    build_module(b, model, "rotary_emb", s->classes->rotary);
    if (s->norm.layer_norm || !s->norms.attention) /* sums that no norm has around it                          */
        build_step(b, model, TN_OP_ADD, s->hidden);
    d->residual_scale = build_factor(b, model, s->residual_scale, s->hidden);
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

/* h += more, where something is left to be added, and its norm; h itself where there is none. */
static tn_tensor enter(graph_run *r, const graph_site *norm, const tn_tensor *h, const tn_tensor *more)
{
    if (more && norm)
        return steps_add_norm(r, norm, h, more);
    if (more)
        steps_add(r, h, more);
    return norm ? steps_norm(r, norm, h) : *h;
}

/* What a half gives, before it is added. */
static void leave(graph_run *r, const decoder *d, const graph_site *norm, const tn_tensor *x)
{
    if (norm)
        steps_norm_in_place(r, norm, x);
    if (d->residual_scale)
        steps_change(r, d->residual_scale, x);
}

static void run_feed(graph_run *r, const decoder_layer *l, const mixer_place *at, const tn_tensor *h,
                     const tn_tensor *x, const tn_tensor *y)
{
    if (l->feed)
        l->feed->forward(r, l->feed_state, at, h, x, y);
    else
        steps_mlp(r, l->mlp, x, y);
}

/* more: what the layer before left to be added, or NULL; mlp receives what this one leaves. */
static void run_layer(graph_run *r, const decoder *d, int64_t i, const tn_tensor *h, const tn_tensor *more,
                      const tn_tensor *mlp)
{
    const decoder_layer *l = &d->layers[i];
    const mixer_place at = {d->rope, i};
    tn_tensor x = enter(r, l->norm, h, more);
    steps_capture(r, i, h);
    tn_tensor a = l->mixer ? l->mixer->forward(r, l->mixer_state, &at, &x) : gqa_forward(r, &l->attention, &at, &x);
    leave(r, d, l->after_attention, &a);
    if (d->parallel) {
        run_feed(r, l, &at, h, &x, mlp);
        steps_add(r, h, &a);
    } else {
        x = enter(r, l->mlp_norm, h, &a);
        run_feed(r, l, &at, h, &x, mlp);
    }
    leave(r, d, l->after_mlp, mlp);
}

/* What attention and MLP give is added by the norm behind them, so h trails by one sum between the two. */
static void decoder_forward(graph_run *r, const void *state)
{
    const decoder *d = state;
    tn_tensor h = steps_embedding(r, d->embed, d->shape.hidden);
    if (d->embed_factor)
        steps_change(r, d->embed_factor, &h);
    steps_media_embed(r, &h);
    tn_tensor mlp = steps_take(r, r->dtype, 2, h.shape), *more = NULL;
    for (int64_t i = 0; i < d->shape.layers; i++) {
        const decoder_layer *l = &d->layers[i];
        size_t mark = arena_mark(r->arena);
        run_layer(r, d, i, &h, more, &mlp);
        more = &mlp;
        if (l->tail) {
            const mixer_place at = {d->rope, i};
            steps_add(r, &h, &mlp);
            l->tail->forward(r, l->tail_state, &at, &h, &h, &h);
            more = NULL;
        }
        if (steps_media_deepens(r, i)) {
            if (more)
                steps_add(r, &h, more);
            if (i + 1 < d->shape.layers) /* what a layer gives is what it gave before pictures come in */
                steps_capture(r, i + 1, &h);
            steps_media_deepen(r, i, &h);
            more = NULL;
        }
        arena_release(r->arena, mark);
    }
    r->result = enter(r, d->norm, &h, more);
    steps_capture(r, d->shape.layers, &r->result);
}

static tn_tensor decoder_logits(graph_run *r, const void *state, const tn_tensor *x)
{
    const decoder *d = state;
    tn_tensor logits = steps_linear(r, d->head, x);
    if (d->logit_scale)
        steps_change(r, d->logit_scale, &logits);
    if (d->softcap)
        steps_change(r, d->softcap, &logits);
    return logits;
}

const model_flow decoder_flow = {decoder_free, decoder_forward, decoder_logits, decoder_shape};
