/* The plain decoder: building its tree and running it. */
#include "models/decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds that no real model comes near: a file that exceeds them is broken, and nothing is allocated for it. */
enum { MAX_WIDTH = 1 << 20, MAX_LAYERS = 1 << 12, MAX_HEADS = 1 << 14, MAX_VOCAB = 1 << 24 };

static bool read_sizes(graph_builder *b, const config_node *config, int64_t default_head_dim, decoder_spec *s)
{
    if (b->status == TN_OK)
        b->status = config_need_i64(config, "hidden_size", 1, MAX_WIDTH, &s->hidden, b->err);
    if (b->status == TN_OK)
        b->status = config_need_i64(config, "intermediate_size", 1, MAX_WIDTH, &s->inter, b->err);
    if (b->status == TN_OK)
        b->status = config_need_i64(config, "num_hidden_layers", 1, MAX_LAYERS, &s->layers, b->err);
    if (b->status == TN_OK)
        b->status = config_need_i64(config, "num_attention_heads", 1, MAX_HEADS, &s->heads, b->err);
    s->kv_heads = s->heads;
    if (b->status == TN_OK)
        b->status = config_i64(config, "num_key_value_heads", 1, MAX_HEADS, &s->kv_heads, b->err);
    if (b->status == TN_OK)
        b->status = config_need_i64(config, "vocab_size", 1, MAX_VOCAB, &s->vocab, b->err);
    if (b->status != TN_OK)
        return false;
    s->head_dim = default_head_dim ? default_head_dim : s->hidden / s->heads;
    b->status = config_i64(config, "head_dim", 1, ROPE_MAX_DIM, &s->head_dim, b->err);
    if (b->status == TN_OK && s->heads % s->kv_heads)
        build_fail(b, TN_E_INPUT, "config.json", "num_attention_heads %lld is no multiple of num_key_value_heads %lld",
                   (long long)s->heads, (long long)s->kv_heads);
    return b->status == TN_OK;
}

bool decoder_read(graph_builder *b, const config_node *config, const decoder_classes *classes, int64_t default_head_dim,
                  decoder_spec *s)
{
    *s = (decoder_spec){.classes = classes, .eps = 1e-6, .theta = 10000};
    if (!read_sizes(b, config, default_head_dim, s))
        return false;
    s->act = build_act(b, config, "hidden_act", "silu");
    if (b->status == TN_OK)
        b->status = config_f64(config, "rms_norm_eps", &s->eps, b->err);
    if (b->status == TN_OK)
        b->status = config_bool(config, "tie_word_embeddings", &s->tied, b->err);
    if (b->status == TN_OK && !(s->eps >= 0 && s->eps < 1))
        build_fail(b, TN_E_INPUT, "config.json", "rms_norm_eps %g is out of range", s->eps);
    return b->status == TN_OK;
}

bool decoder_read_window(graph_builder *b, const config_node *config, decoder_spec *s)
{
    bool use = false;
    if (b->status == TN_OK)
        b->status = config_bool(config, "use_sliding_window", &use, b->err);
    if (b->status != TN_OK || !use)
        return b->status == TN_OK;
    s->sliding_window = config_is_null(config, "sliding_window") ? 0 : 4096;
    b->status = config_i64(config, "sliding_window", 1, INT32_MAX, &s->sliding_window, b->err);
    return b->status == TN_OK;
}

bool decoder_upper_slides(graph_builder *b, const config_node *config, const decoder_spec *s, int64_t layer)
{
    (void)s;
    int64_t count = config_list(config, "layer_types"), first = 28;
    const char *type = NULL;
    if (b->status != TN_OK)
        return false;
    if (count < 0) {
        b->status = config_i64(config, "max_window_layers", 0, INT32_MAX, &first, b->err);
        return layer >= first;
    }
    if (layer >= count) {
        build_fail(b, TN_E_INPUT, "config.json", "layer_types has %lld entries, num_hidden_layers is larger",
                   (long long)count);
        return false;
    }
    b->status = config_list_str(config, "layer_types", layer, &type, b->err);
    if (b->status != TN_OK || !strcmp(type, "full_attention") || !strcmp(type, "attention"))
        return false;
    if (strcmp(type, "sliding_attention"))
        build_fail(b, TN_E_INPUT, "config.json", "layer_types: '%s' is not supported in this model", type);
    return true;
}

graph_site *decoder_plain_mlp(graph_builder *b, graph_module *layer_module, const decoder_spec *s)
{
    build_mlp_spec mlp = {"mlp", s->classes->mlp, s->hidden, s->inter, s->act, s->mlp_bias};
    return build_mlp(b, layer_module, &mlp, NULL);
}

static graph_site *build_attention_site(graph_builder *b, graph_module *m, const decoder_spec *s, int64_t window)
{
    graph_site *site = b->status == TN_OK ? graph_add_site(b->graph, m, TN_OP_ATTENTION, NULL, b->err) : NULL;
    if (!site) {
        b->status = b->status == TN_OK ? TN_E_MEMORY : b->status;
        return NULL;
    }
    site->site.dim[TN_DIM_HEAD] = site->site.dim[TN_DIM_HEAD_V] = s->head_dim;
    site->site.dim[TN_DIM_Q_HEADS] = s->heads;
    site->site.dim[TN_DIM_KV_HEADS] = s->kv_heads;
    site->site.dim[TN_DIM_WINDOW] = window;
    site->site.features = window ? TN_HAS_WINDOW : 0;
    site->site.num[TN_NUM_SCALE] = 1.0 / sqrt((double)s->head_dim);
    return site;
}

static graph_site *build_head_norm(graph_builder *b, graph_module *parent, const char *name, const decoder_spec *s)
{
    return build_norm(b, parent, &(build_norm_spec){name, s->classes->norm, s->head_dim, s->eps, TN_NORM_W, false});
}

/* What the layers before left to be added belongs to the next norm; the first one has the embedding alone. */
static graph_site *build_layer_norm(graph_builder *b, graph_module *parent, const char *name, const decoder_spec *s,
                                    bool of_sum)
{
    return build_norm(b, parent, &(build_norm_spec){name, s->classes->norm, s->hidden, s->eps, TN_NORM_W, of_sum});
}

static void build_layer(graph_builder *b, const config_node *config, graph_module *parent, const decoder_spec *s,
                        int64_t i, decoder *d)
{
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)i);
    decoder_layer *l = &d->layers[i];
    const decoder_classes *c = s->classes;
    int64_t q_width = s->heads * s->head_dim;
    int64_t window = s->sliding_window && (!s->slides || s->slides(b, config, s, i)) ? s->sliding_window : 0;
    graph_module *m = build_module(b, parent, name, c->layer);
    graph_module *a = build_module(b, m, "self_attn", c->attention);
    l->attention = build_attention_site(b, a, s, window);
    l->q = build_linear(b, a, "q_proj", s->hidden, q_width, s->q_bias, NULL);
    l->k = build_linear(b, a, "k_proj", s->hidden, s->kv_heads * s->head_dim, s->k_bias, NULL);
    l->v = build_linear(b, a, "v_proj", s->hidden, s->kv_heads * s->head_dim, s->v_bias, NULL);
    l->o = build_linear(b, a, "o_proj", q_width, s->hidden, s->o_bias, NULL);
    if (s->qk_norm) {
        l->q_norm = build_head_norm(b, a, "q_norm", s);
        l->k_norm = build_head_norm(b, a, "k_norm", s);
    }
    l->mlp = s->mlp ? s->mlp(b, m, s, i) : decoder_plain_mlp(b, m, s);
    l->input_norm = build_layer_norm(b, m, "input_layernorm", s, i > 0);
    l->post_norm = build_layer_norm(b, m, "post_attention_layernorm", s, true);
    d->cache[i] = (model_layer){s->kv_heads, s->head_dim, s->head_dim, window};
}

/* The embedding, and the head that may share its matrix (A.3: a file may hold either of a tied pair, or both). */
static void build_ends(graph_builder *b, graph_module *embed, const decoder_spec *s, decoder *d)
{
    graph_module *head = build_module(b, b->graph->root, "lm_head", "Linear");
    if (b->status != TN_OK)
        return;
    int64_t shape[2] = {s->vocab, s->hidden};
    bool has_embed = build_has(b, embed, "weight"), has_head = build_has(b, head, "weight");
    tn_tensor head_weight;
    bool embed_from_head = s->tied && !has_embed && has_head;
    if (!build_tensor(b, embed_from_head ? head : embed, "weight", 2, shape, &d->embed_weight))
        return;
    head_weight = d->embed_weight;
    if (!embed_from_head && (has_head || !s->tied) && !build_tensor(b, head, "weight", 2, shape, &head_weight))
        return;
    graph_site *site = graph_add_site(b->graph, head, TN_OP_LINEAR, NULL, b->err);
    b->status = site ? graph_set_param(b->graph, site, TN_ROLE_WEIGHT, &head_weight, 1, b->err) : TN_E_MEMORY;
    if (b->status != TN_OK)
        return;
    site->site.meaning[TN_AXIS_WEIGHT] = (int32_t)head_weight.dtype;
    site->site.dim[TN_DIM_HIDDEN] = s->hidden;
    site->site.dim[TN_DIM_OUT] = s->vocab;
    d->shape.head = site;
    d->embed = (tn_site){.size = sizeof(tn_site),
                         .op = TN_OP_EMBEDDING,
                         .path = embed->path,
                         .class_name = "Embedding",
                         .model_type = b->graph->model_type};
    d->embed.meaning[TN_AXIS_DTYPE] = (int32_t)b->dtype;
    d->embed.param[TN_ROLE_WEIGHT] = (tn_param){&d->embed_weight, 1};
}

static void build_rope(graph_builder *b, const config_node *config, const decoder_spec *s, decoder *d)
{
    if (b->status == TN_OK)
        b->status = rope_init(&d->shape.rope[0], config, s->head_dim, s->theta, b->err);
    d->shape.rope_count = 1;
    d->rope = build_function(b, s->classes->scope, "apply_rotary_pos_emb", TN_OP_ROPE);
    if (!d->rope)
        return;
    d->rope->site.meaning[TN_AXIS_ROPE] = TN_ROPE_HALF;
    d->rope->site.dim[TN_DIM_HEAD] = d->rope->site.dim[TN_DIM_ROTARY] = s->head_dim;
    d->rope->site.dim[TN_DIM_Q_HEADS] = s->heads;
    d->rope->site.dim[TN_DIM_KV_HEADS] = s->kv_heads;
}

void *decoder_build(graph_builder *b, const config_node *config, const decoder_spec *s)
{
    if (b->status != TN_OK)
        return NULL;
    decoder *d = calloc(1, sizeof *d);
    if (d) {
        d->layers = calloc((size_t)s->layers, sizeof *d->layers);
        d->cache = calloc((size_t)s->layers, sizeof *d->cache);
    }
    if (!d || !d->layers || !d->cache) {
        decoder_free(d);
        return build_fail(b, TN_E_MEMORY, "graph", "out of memory for %lld layers", (long long)s->layers);
    }
    d->heads = s->heads;
    d->kv_heads = s->kv_heads;
    d->head_dim = s->head_dim;
    d->shape.layers = s->layers;
    d->shape.hidden = s->hidden;
    d->shape.vocab = s->vocab;
    d->shape.layer = d->cache;
    d->shape.max_positions = 2048;
    b->status = config_i64(config, "max_position_embeddings", 1, INT32_MAX, &d->shape.max_positions, b->err);
    graph_module *model = build_module(b, b->graph->root, "model", s->classes->model);
    graph_module *embed = build_module(b, model, "embed_tokens", "Embedding");
    graph_module *layers = build_module(b, model, "layers", "ModuleList");
    for (int64_t i = 0; i < s->layers && b->status == TN_OK; i++)
        build_layer(b, config, layers, s, i, d);
    d->norm = build_layer_norm(b, model, "norm", s, true);
    build_module(b, model, "rotary_emb", s->classes->rotary);
    build_ends(b, embed, s, d);
    build_rope(b, config, s, d);
    if (b->status != TN_OK) {
        decoder_free(d);
        return NULL;
    }
    return d;
}

void decoder_free(void *state)
{
    decoder *d = state;
    if (!d)
        return;
    free(d->layers);
    free(d->cache);
    free(d);
}

const model_shape *decoder_shape(const void *state)
{
    return &((const decoder *)state)->shape;
}

/* ---- running ------------------------------------------------------------------------------------ */

static tn_tensor heads_of(const graph_run *r, const tn_tensor *x, int64_t heads, int64_t dim)
{
    return run_view(x, 4, (int64_t[]){r->rows, r->tokens, heads, dim});
}

static tn_tensor attend(graph_run *r, const decoder *d, int64_t i, const tn_tensor *x)
{
    const decoder_layer *l = &d->layers[i];
    tn_tensor q = run_linear(r, l->q, x), k = run_linear(r, l->k, x), v = run_linear(r, l->v, x);
    q = heads_of(r, &q, d->heads, d->head_dim);
    k = heads_of(r, &k, d->kv_heads, d->head_dim);
    v = heads_of(r, &v, d->kv_heads, d->head_dim);
    if (l->q_norm) {
        run_norm_in_place(r, l->q_norm, &q);
        run_norm_in_place(r, l->k_norm, &k);
    }
    run_rope(r, d->rope, 0, &q, &k);
    run_cache_append(r, i, &k, &v);
    tn_tensor o = run_attention(r, l->attention, i, &q);
    return run_linear(r, l->o, &o);
}

/* What attention and MLP give is added by the norm behind them, so h trails by one sum between the two. */
void decoder_forward(graph_run *r, const void *state)
{
    const decoder *d = state;
    tn_tensor h = run_embedding(r, &d->embed, d->shape.hidden);
    tn_tensor mlp = run_take(r, r->dtype, 2, h.shape);
    for (int64_t i = 0; i < d->shape.layers; i++) {
        const decoder_layer *l = &d->layers[i];
        size_t mark = arena_mark(r->arena);
        tn_tensor x = i == 0 ? run_norm(r, l->input_norm, &h) : run_add_norm(r, l->input_norm, &h, &mlp);
        run_capture(r, i, &h);
        x = attend(r, d, i, &x);
        x = run_add_norm(r, l->post_norm, &h, &x);
        run_mlp(r, l->mlp, &x, &mlp);
        arena_release(r->arena, mark);
    }
    r->result = run_add_norm(r, d->norm, &h, &mlp);
    run_capture(r, d->shape.layers, &r->result);
}
