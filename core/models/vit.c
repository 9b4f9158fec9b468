/* Reading and building a tower of whole pictures, with the names of its family. */
#include "models/vit.h"

#include "models/vision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds that no real tower comes near. */
enum { MAX_WIDTH = 1 << 20, MAX_DEPTH = 1 << 12, MAX_HEADS = 1 << 14, MAX_PATCH = 1 << 10, MAX_SIDE = 1 << 14 };
enum { MAX_HEAD = 1024, MAX_PATCHES = 1 << 20 };

/* ---- reading ------------------------------------------------------------------------------------ */

/* A number, or a list of height and width. */
static int64_t side_of(const config_reader *c, const char *key, int64_t axis, int64_t fallback)
{
    int64_t n = config_list(c, key);
    if (n < 0)
        return fallback;
    int64_t value = n == 1 || n == 2 ? config_list_i64(c, key, n == 2 ? axis : 0) : 0;
    if (value < 1 || value > MAX_WIDTH)
        config_fail(c, key, "must be a number, or two of at least 1: height and width");
    return value < 1 ? 1 : value;
}

static void read_sides(const config_reader *c, const vit_family *f, vit_spec *s)
{
    s->patch = side_of(c, "patch_size", 0, f->patch_size);
    if (s->patch > MAX_PATCH || s->patch != side_of(c, "patch_size", 1, f->patch_size))
        config_fail(c, "patch_size", "is %lld; patches must be squares of at most %d pixels", (long long)s->patch,
                    (int)MAX_PATCH);
    s->rows = side_of(c, "image_size", 0, f->image) / s->patch;
    s->columns = side_of(c, "image_size", 1, f->image) / s->patch;
    if (s->rows < 1 || s->columns < 1 || s->rows > MAX_SIDE || s->columns > MAX_SIDE ||
        s->rows * s->columns > MAX_PATCHES)
        config_fail(c, "image_size", "makes %lld by %lld patches; there must be at least one, together at most %d",
                    (long long)s->rows, (long long)s->columns, (int)MAX_PATCHES);
}

static void read_heads(const config_reader *c, const vit_family *f, vit_spec *s)
{
    s->heads = config_i64(c, "num_attention_heads", f->heads, 1, MAX_HEADS);
    s->head_dim = s->hidden / s->heads;
    if (s->hidden % s->heads || s->head_dim > MAX_HEAD || (f->by_axes && s->head_dim % 4))
        config_fail(c, "num_attention_heads", "is %lld, which does not cut hidden_size %lld into heads%s",
                    (long long)s->heads, (long long)s->hidden,
                    f->by_axes ? " of a multiple of 4, for rotations by row and column" : "");
    else if (config_i64(c, "head_dim", s->head_dim, 1, MAX_WIDTH) != s->head_dim)
        config_fail(c, "head_dim", "is not %lld, which is hidden_size by num_attention_heads", (long long)s->head_dim);
}

static void read_norm(const config_reader *c, const vit_family *f, vit_spec *s)
{
    static const config_word kinds[] = {{"layer_norm", 0}, {"rms_norm", 1}, {0}};
    bool rms = f->norm != NULL;
    double eps = rms || f->fixed ? f->eps : config_f64(c, "layer_norm_eps", f->eps);
    if (f->scale[0])
        rms = config_choice(c, "norm_type", "layer_norm", kinds) != 0;
    s->norm = (parts_norm_kind){.class_name = !rms      ? "LayerNorm"
                                              : f->norm ? f->norm
                                                        : "InternVLVisionRMSNorm",
                                .variant = rms ? TN_NORM_W : 0,
                                .eps = eps,
                                .layer_norm = !rms,
                                .bias = !rms};
    if (!(eps >= 0 && eps < 1))
        config_fail(c, "layer_norm_eps", "is %g, which is out of range", eps);
}

static void read_rope(const config_reader *c, vit_spec *s)
{
    static const config_word types[] = {{"axial", 1}, {"default", 1}, {0}};
    const config_reader rope = config_child(c, "rope_parameters");
    config_choice(&rope, "rope_type", "axial", types);
    s->theta = config_f64(&rope, "rope_theta", config_f64(c, "rope_theta", 10000));
    if (!(s->theta > 0))
        config_fail(c, "rope_theta", "is %g, must be positive", s->theta);
}

static void read_spec(const config_reader *c, const vit_family *f, vit_spec *s)
{
    s->depth = config_i64(c, "num_hidden_layers", f->depth, 1, MAX_DEPTH);
    s->hidden = config_i64(c, "hidden_size", f->hidden, 1, MAX_WIDTH);
    s->inter = config_i64(c, "intermediate_size", f->inter, 1, MAX_WIDTH);
    s->channels = config_i64(c, "num_channels", 3, 1, 16);
    s->act = f->fixed ? TN_ACT_GELU : parts_act(c, "hidden_act", f->act);
    s->qkv_bias = s->o_bias = f->bias;
    read_sides(c, f, s);
    read_heads(c, f, s);
    read_norm(c, f, s);
    if (f->by_axes)
        read_rope(c, s);
    if (!f->scale[0])
        return;
    s->qkv_bias = config_bool(c, "attention_bias", false);
    s->head_norms = config_bool(c, "use_qk_norm", false);
    s->post_norm = !config_bool(c, "use_mean_pooling", true);
}

/* Behind which block "vision_feature_layer" of the model takes rows: a number, or a list. Without a fallback the key
 * says nothing. */
static void read_taken(const config_reader *c, int64_t fallback, vit_tower *v)
{
    static const char key[] = "vision_feature_layer";
    int64_t n = fallback ? config_list(c, key) : -1, depth = v->spec.depth;
    v->taken_count = n < 0 ? 1 : n;
    if (v->taken_count < 1 || v->taken_count > VIT_TAKEN) {
        config_fail(c, key, "has %lld entries, 1 to %d are supported", (long long)n, (int)VIT_TAKEN);
        v->taken_count = 1;
        return;
    }
    for (int64_t i = 0; i < v->taken_count && *c->status == TN_OK; i++) {
        int64_t at = n >= 0 ? config_list_i64(c, key, i) : fallback ? fallback : -1;
        v->taken[i] = at < 0 ? depth + 1 + at : at;
        if (v->taken[i] < 0 || v->taken[i] > depth)
            config_fail(c, key, "is %lld, the tower has %lld layers", (long long)at, (long long)depth);
        v->spec.post_norm = v->spec.post_norm && at == -1; /* last_hidden_state is taken                        */
    }
}

static void read_selection(const config_reader *c, vit_tower *v)
{
    static const config_word ways[] = {{"default", 1}, {"full", 0}, {0}};
    v->drop = config_choice(c, "vision_feature_select_strategy", "default", ways) != 0;
}

/* ---- building ----------------------------------------------------------------------------------- */

/* A tensor [count, hidden] that the file may have under more dimensions in front. */
static void loose_tensor(graph_builder *b, graph_module *m, const char *name, int32_t ndim, int64_t count,
                         int64_t hidden, tn_tensor *out)
{
    const int64_t shape[] = {1, count, hidden};
    if (build_tensor(b, m, name, ndim, shape + 3 - ndim, out))
        *out = tn_tensor_dense(out->data, out->dtype, 2, (int64_t[]){count, hidden});
}

static void build_embeddings(graph_builder *b, graph_module *m, vit_tower *v)
{
    const vit_family *f = v->family;
    const vit_spec *s = &v->spec;
    const int64_t filter[] = {s->hidden, s->channels, s->patch, s->patch};
    int64_t count = s->rows * s->columns + (f->class_token != NULL);
    if (f->embeddings)
        m = build_module(b, m, f->embeddings, f->embeddings_class);
    graph_module *patch = f->patch_inner ? build_module(b, m, f->patch, f->patch_class) : m;
    const char *inner = f->patch_inner ? f->patch_inner : f->patch;
    v->patch = f->patch_linear
                   ? parts_linear(b, patch, inner, s->channels * s->patch * s->patch, s->hidden, f->patch_bias, NULL)
                   : vision_filter(b, patch, inner, "Conv2d", 4, filter, f->patch_bias);
    v->copy = build_step(b, m, TN_OP_COPY, s->hidden);
    if (f->class_token && b->status == TN_OK) {
        if (f->loose == 3)
            loose_tensor(b, m, f->class_token, 3, 1, s->hidden, &v->class_token);
        else if (build_tensor(b, m, f->class_token, 1, &s->hidden, &v->class_token))
            v->class_token = tn_tensor_dense(v->class_token.data, b->dtype, 2, (int64_t[]){1, s->hidden});
    }
    if (f->positions && f->loose)
        loose_tensor(b, m, f->positions, f->loose, count, s->hidden, &v->positions);
    else if (f->positions)
        loose_tensor(b, build_module(b, m, f->positions, "Embedding"), "weight", 2, count, s->hidden, &v->positions);
}

static void build_attention(graph_builder *b, graph_module *block, const vit_tower *v, vit_block *out)
{
    const vit_spec *s = &v->spec;
    graph_module *m = build_module(b, block, v->family->attn, v->family->attention);
    out->attention = build_site(b, m, TN_OP_ATTENTION, NULL);
    if (!out->attention)
        return;
    tn_site *site = &out->attention->site;
    site->dim[TN_DIM_HEAD] = site->dim[TN_DIM_HEAD_V] = s->head_dim;
    site->dim[TN_DIM_Q_HEADS] = site->dim[TN_DIM_KV_HEADS] = s->heads;
    site->num[TN_NUM_SCALE] = 1.0 / sqrt((double)s->head_dim);
    out->q = parts_linear(b, m, "q_proj", s->hidden, s->hidden, s->qkv_bias, NULL);
    out->k = parts_linear(b, m, "k_proj", s->hidden, s->hidden, s->qkv_bias, NULL);
    out->v = parts_linear(b, m, "v_proj", s->hidden, s->hidden, s->qkv_bias, NULL);
    out->o = parts_linear(b, m, v->family->o, s->hidden, s->hidden, s->o_bias, NULL);
    if (!s->head_norms)
        return;
    const parts_norm_kind rms = {.class_name = "InternVLVisionRMSNorm", .variant = TN_NORM_W, .eps = 1e-6};
    out->q_norm = parts_norm(b, m, "q_norm", &rms, s->hidden, false);
    out->k_norm = parts_norm(b, m, "k_norm", &rms, s->hidden, false);
}

/* A factor of each column, as a step of block. */
static tn_site *build_scale(graph_builder *b, graph_module *block, const char *name, int64_t width)
{
    tn_tensor factors;
    tn_site *step = name ? parts_act_step(b, block, TN_OP_GLU, TN_ACT_LINEAR, width) : NULL;
    if (!step || !build_tensor(b, block, name, 1, &width, &factors))
        return NULL;
    build_step_param(b, step, TN_ROLE_WEIGHT, &factors);
    return step;
}

static void build_block(graph_builder *b, graph_module *list, const vit_tower *v, int64_t i, vit_block *out)
{
    const vit_family *f = v->family;
    const vit_spec *s = &v->spec;
    const parts_mlp_spec mlp = {.class_name = f->mlp,
                                .names = f->mlp_names,
                                .hidden = s->hidden,
                                .inter = s->inter,
                                .act = s->act,
                                .layout = f->gated ? TN_LAYOUT_SPLIT : TN_LAYOUT_UP_DOWN,
                                .bias = f->bias};
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)i);
    graph_module *m = build_module(b, list, name, f->block);
    out->norm1 = parts_norm(b, m, f->norm1, &s->norm, s->hidden, false);
    build_attention(b, m, v, out);
    out->norm2 = parts_norm(b, m, f->norm2, &s->norm, s->hidden, true);
    out->mlp = parts_mlp(b, m, f->mlp_name, &mlp, NULL);
    for (int h = 0; h < 2; h++)
        out->scale[h] = build_scale(b, m, f->scale[h], s->hidden);
}

static void build_tower(graph_builder *b, graph_module *root, vit_tower *v)
{
    const vit_family *f = v->family;
    const vit_spec *s = &v->spec;
    graph_module *m = v->module = build_module(b, root, f->tower ? f->tower : "vision_tower", f->model);
    if (m)
        m->apart = true;
    build_embeddings(b, m, v);
    if (f->pre_norm)
        v->pre_norm = parts_norm(b, m, f->pre_norm, &s->norm, s->hidden, false);
    graph_module *around = build_module(b, m, f->around, f->inside);
    graph_module *list = build_module(b, around, f->list, f->list_class);
    int64_t needed = 0;
    for (int64_t i = 0; i < v->taken_count; i++)
        needed = v->taken[i] > needed ? v->taken[i] : needed;
    v->spec.depth = needed; /* what lies behind is never looked at                                           */
    for (int64_t i = 0; i < needed && b->status == TN_OK; i++)
        build_block(b, list, v, i, &v->blocks[i]);
    if (s->post_norm)
        v->post_norm = parts_norm(b, m, f->post_norm, &s->norm, s->hidden, false);
    if (!f->by_axes)
        return;
    const parts_rope_spec rope = {.function = f->pairs ? "vision_apply_rotary_emb" : "apply_rotary_pos_emb",
                                  .style = f->pairs ? TN_ROPE_COMPLEX : TN_ROPE_HALF,
                                  .heads = s->heads,
                                  .kv_heads = s->heads,
                                  .head_dim = s->head_dim,
                                  .rotary = s->head_dim};
    v->rope = parts_rope(b, f->scope, &rope);
}

static void vit_free(void *state)
{
    vit_tower *v = state;
    if (!v)
        return;
    free(v->project);
    free(v->tiles);
    free(v->blocks);
    free(v);
}

static const vit_family *find_family(const config_reader *vision, const vit_projector *projector)
{
    const char *type = config_str(vision, "model_type", projector->tower);
    const vit_family *f = vit_family_of(type);
    if (!f)
        config_fail(vision, "model_type", "is '%s', a tower that is not supported", type);
    return f;
}

/* root holds the text model already; config is that of the whole model. */
static void *vit_build(graph_builder *b, graph_module *root, const char *name, const config_reader *config,
                       int64_t text_hidden)
{
    config_reader vision = config_child(config, "vision_config");
    const vit_projector *projector = vit_projector_of(name);
    const vit_family *f = b->status == TN_OK ? find_family(&vision, projector) : NULL;
    vit_tower *v = f && b->status == TN_OK ? calloc(1, sizeof *v) : NULL;
    if (!v)
        return b->status == TN_OK ? build_fail(b, TN_E_MEMORY, "graph", "out of memory for a vision tower") : NULL;
    v->family = f;
    v->text_hidden = text_hidden;
    v->projector = projector;
    v->drop = f->class_last;
    v->spec.post_norm = f->post_norm && v->projector->last;
    read_spec(&vision, f, &v->spec);
    read_taken(config, v->projector->layer, v);
    if (v->projector->selects)
        read_selection(config, v);
    v->blocks = b->status == TN_OK ? calloc((size_t)v->spec.depth, sizeof *v->blocks) : NULL;
    if (v->blocks)
        build_tower(b, root, v);
    else if (b->status == TN_OK)
        build_fail(b, TN_E_MEMORY, "graph", "out of memory for a vision tower");
    if (b->status == TN_OK)
        v->project = v->projector->build(b, root, config, v, v->taken_count * v->spec.hidden);
    if (v->projector->tiled)
        v->tiles = vit_tiles_build(b, root, config, v);
    if (b->status == TN_OK)
        return v;
    vit_free(v);
    return NULL;
}

static bool knows(const config_reader *config)
{
    const vit_projector *projector = vit_projector_of(config_str(config, "model_type", ""));
    config_reader vision = config_child(config, "vision_config");
    return projector && vit_family_of(config_str(&vision, "model_type", projector->tower)) != NULL;
}

static const tower_beside beside = {.knows = knows, .sight = vit_sight, .marks = vit_marks};

const tower_kind vision_vit = {"vit", vit_build, vit_free, vit_tokens, vit_forward, vit_largest, false, &beside};
