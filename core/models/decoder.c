/* The decoder: reading what its models have in common, building its tree, running it. */
#include "models/decoder.h"

#include "models/rope_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Bounds that no real model comes near: a file that exceeds them is broken, and nothing is allocated for it. */
enum { MAX_WIDTH = 1 << 20, MAX_LAYERS = 1 << 12, MAX_HEADS = 1 << 14, MAX_VOCAB = 1 << 24 };
enum { MAX_EXPERTS = 1 << 16, MAX_TOP_K = 1 << 10 };

typedef struct decoder_layer {
    gqa attention;
    graph_site *mlp; /* MLP or MOE_BLOCK                                                          */
    graph_site *norm, *after_attention, *mlp_norm, *after_mlp; /* after_: or NULL                 */
} decoder_layer;

typedef struct decoder {
    model_shape shape;
    model_layer *cache;
    decoder_layer *layers;
    tn_site embed; /* EMBEDDING, a step and so no site of the graph                               */
    tn_tensor embed_weight;
    tn_site softcap; /* SOFTCAP of the logits, likewise; its number 0: none                      */
    graph_site *norm, *rope, *head;
} decoder;

/* ---- reading ------------------------------------------------------------------------------------ */

static void read_attention(const config_reader *c, decoder_spec *s)
{
    gqa_spec *a = &s->layer.attention;
    a->class_name = s->classes->attention;
    a->hidden = s->hidden;
    a->heads = config_need_i64(c, "num_attention_heads", 1, MAX_HEADS);
    a->kv_heads = config_i64(c, "num_key_value_heads", a->heads, 1, MAX_HEADS);
    s->head_dim = config_i64(c, "head_dim", s->head_dim ? s->head_dim : s->hidden / a->heads, 1, ROPE_MAX_DIM);
    a->head_dim = s->head_dim;
    a->scale = 1.0 / sqrt((double)a->head_dim);
    if (a->heads % a->kv_heads)
        config_fail(c, "num_attention_heads", "is %lld, no multiple of num_key_value_heads %lld", (long long)a->heads,
                    (long long)a->kv_heads);
}

static void read_norm(const config_reader *c, decoder_spec *s)
{
    s->norm.class_name = s->classes->norm;
    s->norm.variant = s->norm.variant ? s->norm.variant : TN_NORM_W;
    s->norm.eps = config_f64(c, "rms_norm_eps", s->norm.eps != 0 ? s->norm.eps : 1e-6);
    if (!(s->norm.eps >= 0 && s->norm.eps < 1))
        config_fail(c, "rms_norm_eps", "is %g, which is out of range", s->norm.eps);
    if (!s->norms.attention)
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
    mlp->class_name = s->classes->mlp;
    mlp->hidden = s->hidden;
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

bool decoder_slides(const config_reader *c, int64_t i, bool fallback)
{
    static const struct config_word list[] = {
        {"full_attention", false}, {"attention", false}, {"sliding_attention", true}};
    static const config_words types = {sizeof list / sizeof list[0], list};
    int64_t count = config_list(c, "layer_types");
    if (count < 0)
        return fallback;
    if (i < count)
        return config_list_choice(c, "layer_types", i, &types) != 0;
    config_fail(c, "layer_types", "has %lld entries, num_hidden_layers is larger", (long long)count);
    return false;
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
    moe_parts_spec moe = {.names = names, .hidden = s->hidden, .inter = s->layer.mlp.inter, .act = s->layer.mlp.act};
    const char *key = config_has(c, "num_experts") ? "num_experts" : "num_local_experts";
    moe.experts = config_i64(c, key, experts, s->classes->mlp ? 0 : 1, MAX_EXPERTS);
    moe.top_k = config_i64(c, "num_experts_per_tok", top_k, 1, MAX_TOP_K);
    if (moe.experts > 0 && moe.top_k > moe.experts)
        config_fail(c, "num_experts_per_tok", "is %lld, %s only %lld", (long long)moe.top_k, key,
                    (long long)moe.experts);
    return moe;
}

/* ---- building ----------------------------------------------------------------------------------- */

static void build_layer(graph_builder *b, const config_reader *c, graph_module *parent, const decoder_spec *s,
                        int64_t i, decoder *d)
{
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)i);
    decoder_layer *l = &d->layers[i];
    decoder_layer_spec spec = s->layer;
    if (s->differ)
        s->differ(c, i, &spec);
    graph_module *m = build_module(b, parent, name, s->classes->layer);
    gqa_build(b, m, &spec.attention, &l->attention);
    d->cache[i] = gqa_cache(&spec.attention);
    l->mlp = spec.moe.experts > 0 ? moe_parts_block(b, m, "mlp", &spec.moe) : parts_mlp(b, m, "mlp", &spec.mlp, NULL);
    /* What the layers before left to be added belongs to the next norm; the first one has the embedding alone. */
    l->norm = parts_norm(b, m, s->norms.attention, &s->norm, s->hidden, i > 0);
    if (s->norms.after_attention)
        l->after_attention = parts_norm(b, m, s->norms.after_attention, &s->norm, s->hidden, false);
    l->mlp_norm = parts_norm(b, m, s->norms.mlp, &s->norm, s->hidden, true);
    if (s->norms.after_mlp)
        l->after_mlp = parts_norm(b, m, s->norms.after_mlp, &s->norm, s->hidden, false);
}

/* A step of a module: no site of the graph, since no kernel takes it. */
static tn_site step_site(const graph_builder *b, const graph_module *m, tn_op op)
{
    tn_site site = {.size = sizeof site,
                    .op = op,
                    .path = m->path,
                    .class_name = m->class_name,
                    .model_type = b->graph->model_type};
    site.meaning[TN_AXIS_DTYPE] = (int32_t)b->dtype;
    return site;
}

/* The embedding, and the head that may share its matrix (A.3: a file may hold either of a tied pair, or both). */
static void build_ends(graph_builder *b, graph_module *embed, const decoder_spec *s, decoder *d)
{
    graph_module *head = build_module(b, b->graph->root, "lm_head", "Linear");
    if (b->status != TN_OK)
        return;
    int64_t shape[2] = {s->vocab, s->hidden};
    bool has_embed = build_has(b, embed, "weight"), has_head = build_has(b, head, "weight");
    bool embed_from_head = s->tied && !has_embed && has_head;
    if (!build_tensor(b, embed_from_head ? head : embed, "weight", 2, shape, &d->embed_weight))
        return;
    tn_tensor head_weight = d->embed_weight;
    if (!embed_from_head && (has_head || !s->tied) && !build_tensor(b, head, "weight", 2, shape, &head_weight))
        return;
    d->head = build_site(b, head, TN_OP_LINEAR, NULL);
    if (!d->head)
        return;
    build_param(b, d->head, TN_ROLE_WEIGHT, &head_weight, 1);
    d->head->site.dim[TN_DIM_HIDDEN] = s->hidden;
    d->head->site.dim[TN_DIM_OUT] = s->vocab;
    d->softcap = step_site(b, head, TN_OP_SOFTCAP);
    d->softcap.num[TN_NUM_SOFTCAP] = s->logit_softcap;
    d->embed = step_site(b, embed, TN_OP_EMBEDDING);
    d->embed.num[TN_NUM_SCALE] = s->embed_scale;
    d->embed.param[TN_ROLE_WEIGHT] = (tn_param){&d->embed_weight, 1};
}

static void build_rope(graph_builder *b, const config_reader *c, const decoder_spec *s, decoder *d)
{
    const gqa_spec *a = &s->layer.attention;
    parts_rope_spec spec = {.function = "apply_rotary_pos_emb",
                            .style = TN_ROPE_HALF,
                            .heads = a->heads,
                            .kv_heads = a->kv_heads,
                            .head_dim = a->head_dim};
    rope_config_spec rope = {.head_dim = a->head_dim, .theta = s->theta};
    rope_config_read(c, &rope, &d->shape.rope[0]);
    spec.rotary = d->shape.rope[0].dim;
    d->shape.rope_count = 1;
    d->shape.max_positions = d->shape.rope[0].max_positions;
    d->rope = parts_rope(b, s->classes->scope, &spec);
}

static void decoder_free(void *state)
{
    decoder *d = state;
    if (!d)
        return;
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
    graph_module *model = build_module(b, b->graph->root, "model", s->classes->model);
    graph_module *embed =
        build_module(b, model, "embed_tokens", s->classes->embedding ? s->classes->embedding : "Embedding");
    graph_module *layers = build_module(b, model, "layers", "ModuleList");
    for (int64_t i = 0; i < s->layers && b->status == TN_OK; i++)
        build_layer(b, c, layers, s, i, d);
    d->norm = parts_norm(b, model, "norm", &s->norm, s->hidden, true);
    build_module(b, model, "rotary_emb", s->classes->rotary);
    build_ends(b, embed, s, d);
    build_rope(b, c, s, d);
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

/* What attention and MLP give is added by the norm behind them, so h trails by one sum between the two. */
static void decoder_forward(graph_run *r, const void *state)
{
    const decoder *d = state;
    tn_tensor h = steps_embedding(r, &d->embed, d->shape.hidden);
    tn_tensor mlp = steps_take(r, r->dtype, 2, h.shape);
    for (int64_t i = 0; i < d->shape.layers; i++) {
        const decoder_layer *l = &d->layers[i];
        size_t mark = arena_mark(r->arena);
        tn_tensor x = i == 0 ? steps_norm(r, l->norm, &h) : steps_add_norm(r, l->norm, &h, &mlp);
        steps_capture(r, i, &h);
        x = gqa_forward(r, &l->attention, d->rope, i, &x);
        if (l->after_attention)
            steps_norm_in_place(r, l->after_attention, &x);
        x = steps_add_norm(r, l->mlp_norm, &h, &x);
        steps_mlp(r, l->mlp, &x, &mlp);
        if (l->after_mlp)
            steps_norm_in_place(r, l->after_mlp, &mlp);
        arena_release(r->arena, mark);
    }
    r->result = steps_add_norm(r, d->norm, &h, &mlp);
    steps_capture(r, d->shape.layers, &r->result);
}

static tn_tensor decoder_logits(graph_run *r, const void *state, const tn_tensor *x)
{
    const decoder *d = state;
    tn_tensor logits = steps_linear(r, d->head, x);
    if (d->softcap.num[TN_NUM_SOFTCAP] != 0)
        steps_softcap(r, &d->softcap, &logits);
    return logits;
}

static const tn_site *decoder_step(const void *state, size_t index, int64_t *width)
{
    const decoder *d = state;
    bool capped = d->softcap.num[TN_NUM_SOFTCAP] != 0;
    *width = index == 0 ? d->shape.hidden : d->shape.vocab;
    return index == 0 ? &d->embed : index == 1 && capped ? &d->softcap : NULL;
}

const model_flow decoder_flow = {decoder_free, decoder_forward, decoder_logits, decoder_shape, decoder_step};
