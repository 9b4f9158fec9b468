/* Towers that hear: reading what they have in common, cutting clips into chunks, the layers. */
#include "models/audio.h"

#include "base/convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_WIDTH = 1 << 20, MAX_LAYERS = 1 << 12, MAX_POSITIONS = 1 << 20 };

/* What torch.nn.LayerNorm has where a modeling file says nothing. */
static const parts_norm_kind norm = {.class_name = "LayerNorm", .eps = 1e-5, .layer_norm = true, .bias = true};

/* ---- reading ------------------------------------------------------------------------------------ */

/* A size that has a name of its own here beside the one that all configs know. */
static int64_t read_size(const config_reader *c, const char *key, const char *other, int64_t fallback, int64_t max)
{
    return config_i64(c, key, config_i64(c, other, fallback, 1, max), 1, max);
}

void audio_read(const config_reader *c, const audio_classes *classes, int64_t text_hidden, audio_encoder *e)
{
    e->mel = config_i64(c, "num_mel_bins", 128, 1, MAX_WIDTH);
    e->width = read_size(c, "d_model", "hidden_size", 1280, MAX_WIDTH);
    e->heads = read_size(c, "encoder_attention_heads", "num_attention_heads", 20, MAX_WIDTH);
    e->inter = read_size(c, "encoder_ffn_dim", "intermediate_size", 5120, MAX_WIDTH);
    e->layers = read_size(c, "encoder_layers", "num_hidden_layers", 32, MAX_LAYERS);
    e->positions = config_i64(c, "max_source_positions", 1500, 1, MAX_POSITIONS);
    /* A span has no more rows than its chunk has frames, and a call takes only so many rows. */
    e->n_window = config_i64(c, "n_window", classes->n_window, 1, GRAPH_MAX_TOKENS / 2);
    e->out = config_i64(c, "output_dim", 3584, 1, MAX_WIDTH);
    e->act = parts_act(c, "activation_function", "gelu");
    if (e->out != text_hidden)
        config_fail(c, "output_dim", "is %lld, but hidden_size of the text model is %lld", (long long)e->out,
                    (long long)text_hidden);
    if (e->width % e->heads)
        config_fail(c, "encoder_attention_heads", "is %lld, which does not divide d_model %lld", (long long)e->heads,
                    (long long)e->width);
    if (e->width < 4 || e->width % 2)
        config_fail(c, "d_model", "is %lld; for its sinusoids it must be even and at least 4", (long long)e->width);
}

/* ---- building ----------------------------------------------------------------------------------- */

static void build_attention(graph_builder *b, graph_module *layer, const audio_classes *classes, const audio_encoder *e,
                            audio_layer *l)
{
    graph_module *m = build_module(b, layer, "self_attn", classes->attention);
    l->attention = build_site(b, m, TN_OP_ATTENTION, NULL);
    if (!l->attention)
        return;
    tn_site *s = &l->attention->site;
    s->dim[TN_DIM_HEAD] = s->dim[TN_DIM_HEAD_V] = e->width / e->heads;
    s->dim[TN_DIM_Q_HEADS] = s->dim[TN_DIM_KV_HEADS] = e->heads;
    s->num[TN_NUM_SCALE] = 1.0 / sqrt((double)s->dim[TN_DIM_HEAD]);
    l->k = parts_linear(b, m, "k_proj", e->width, e->width, classes->k_bias, NULL);
    l->v = parts_linear(b, m, "v_proj", e->width, e->width, true, NULL);
    l->q = parts_linear(b, m, "q_proj", e->width, e->width, true, NULL);
    l->o = parts_linear(b, m, "out_proj", e->width, e->width, true, NULL);
}

static void build_layer(graph_builder *b, graph_module *parent, const audio_classes *classes, int64_t i,
                        audio_encoder *e)
{
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)i);
    audio_layer *l = &e->layer[i];
    graph_module *m = build_module(b, parent, name, classes->layer);
    build_attention(b, m, classes, e, l);
    l->norm = parts_norm(b, m, "self_attn_layer_norm", &norm, e->width, false);
    l->fc1 = parts_linear(b, m, "fc1", e->width, e->inter, true, NULL);
    l->fc2 = parts_linear(b, m, "fc2", e->inter, e->width, true, NULL);
    l->mlp_norm = parts_norm(b, m, "final_layer_norm", &norm, e->width, false);
}

static void build_steps(graph_builder *b, audio_encoder *e)
{
    e->copy = build_step(b, e->module, TN_OP_COPY, e->width);
    e->gelu = parts_act_step(b, e->module, TN_OP_ACT, TN_ACT_GELU, e->width);
    e->fc_act = parts_act_step(b, e->module, TN_OP_ACT, e->act, e->inter);
    e->limit = b->dtype == TN_F16 ? build_step(b, e->module, TN_OP_CLAMP, e->width) : NULL;
    if (e->limit)
        e->limit->num[TN_NUM_LIMIT] = 65504.0 - 1000.0;
}

void audio_build(graph_builder *b, graph_module *parent, const char *name, const audio_classes *classes,
                 audio_encoder *e)
{
    e->module = build_module(b, parent, name, classes->encoder);
    e->layer = b->status == TN_OK ? calloc((size_t)e->layers, sizeof *e->layer) : NULL;
    if (!e->layer) {
        build_fail(b, TN_E_MEMORY, "graph", "out of memory for %lld layers", (long long)e->layers);
        return;
    }
    build_steps(b, e);
    graph_module *layers = build_module(b, e->module, "layers", "ModuleList");
    for (int64_t i = 0; i < e->layers && b->status == TN_OK; i++)
        build_layer(b, layers, classes, i, e);
    e->ln_post = parts_norm(b, e->module, "ln_post", &norm, e->width, false);
}

void audio_free(audio_encoder *e)
{
    free(e->layer);
    free(e);
}

/* ---- chunks ------------------------------------------------------------------------------------- */

bool audio_check(const audio_encoder *e, const tower_media *media, tn_error *err)
{
    const tn_tensor *x = &media->pixels;
    if (x->ndim != 3 || x->shape[1] != e->mel) {
        tn_fail(err, TN_E_INPUT, "audio", "features have %lld mel bins, num_mel_bins of the model is %lld",
                x->ndim == 3 ? (long long)x->shape[1] : 0, (long long)e->mel);
        return false;
    }
    for (int64_t i = 0; i < x->shape[0]; i++)
        if (media->frames[i] < 1 || media->frames[i] > x->shape[2]) {
            tn_fail(err, TN_E_INPUT, "audio", "clip %lld has %lld real frames of %lld; give at least one of each clip",
                    (long long)i, (long long)media->frames[i], (long long)x->shape[2]);
            return false;
        }
    return true;
}

bool audio_next(const audio_encoder *e, const tower_media *media, audio_chunk *chunk)
{
    int64_t clips = media->pixels.shape[0], most = 2 * e->n_window;
    if (chunk->frames > 0)
        chunk->begin += chunk->frames;
    if (chunk->clip < clips && chunk->begin >= media->frames[chunk->clip]) {
        chunk->clip++;
        chunk->begin = 0;
    }
    if (chunk->clip >= clips)
        return false;
    int64_t left = media->frames[chunk->clip] - chunk->begin;
    chunk->frames = left < most ? left : most;
    return true;
}

int64_t audio_longest(const audio_encoder *e, const tower_media *media)
{
    int64_t longest = 0;
    for (audio_chunk c = {0}; audio_next(e, media, &c);)
        longest = c.frames > longest ? c.frames : longest;
    return longest;
}

tn_tensor audio_plane(const audio_encoder *e, const tower_media *media, const audio_chunk *chunk, int64_t height)
{
    const tn_tensor *all = &media->pixels;
    tn_tensor x = tn_tensor_dense(NULL, all->dtype, 3, (int64_t[]){e->mel / height, height, chunk->frames});
    x.stride[0] = height * all->stride[1];
    x.stride[1] = all->stride[1];
    if (all->data)
        x.data = (char *)all->data + (size_t)(chunk->clip * all->stride[0] + chunk->begin) * tn_dtype_size(all->dtype);
    return x;
}

/* Sines of all frequencies, then cosines; in single precision, as the class computes them. */
tn_tensor audio_positions(graph_run *r, const audio_encoder *e, int64_t rows)
{
    int64_t half = e->width / 2, shape[2] = {rows, e->width};
    size_t row_bytes = (size_t)e->width * tn_dtype_size(r->dtype);
    float *row = malloc((size_t)e->width * sizeof *row);
    char *table = malloc((size_t)rows * row_bytes + 1);
    float step = (float)(log(10000.0) / (double)(half - 1));
    for (int64_t t = 0; row && table && !r->arena->measuring && t < rows; t++) {
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)t * expf(-step * (float)i);
            row[i] = sinf(angle);
            row[half + i] = cosf(angle);
        }
        convert_from_f32(row, r->dtype, table + (size_t)t * row_bytes, e->width);
    }
    if (r->status == TN_OK && (!row || !table))
        r->status = tn_fail(r->err, TN_E_MEMORY, "audio", "out of memory for %lld positions", (long long)rows);
    tn_tensor positions = steps_upload(r, r->dtype, 2, shape, table);
    free(row);
    free(table);
    return positions;
}

/* ---- layers ------------------------------------------------------------------------------------- */

/* Attention inside each span; spans of one length that follow each other are rows of one call. */
static tn_tensor attend(graph_run *r, const audio_encoder *e, const audio_layer *l, const tn_tensor *x,
                        const int64_t *span, int64_t spans)
{
    tn_tensor q = steps_linear(r, l->q, x), k = steps_linear(r, l->k, x), v = steps_linear(r, l->v, x);
    tn_tensor o = steps_take(r, r->dtype, 2, x->shape);
    int64_t begin = 0;
    for (int64_t i = 0, same; i < spans; i += same) {
        for (same = 1; i + same < spans && span[i + same] == span[i];)
            same++;
        int64_t rows = same * span[i], shape[4] = {same, span[i], e->heads, e->width / e->heads};
        tn_tensor part[4] = {steps_part(&q, 0, begin, rows), steps_part(&k, 0, begin, rows),
                             steps_part(&v, 0, begin, rows), steps_part(&o, 0, begin, rows)};
        for (int p = 0; p < 4; p++)
            part[p] = steps_view(&part[p], 4, shape);
        steps_attend(r, l->attention, &part[0], &part[1], &part[2], &part[3]);
        begin += rows;
    }
    return steps_linear(r, l->o, &o);
}

static void layer(graph_run *r, const audio_encoder *e, const audio_layer *l, const tn_tensor *h, const int64_t *span,
                  int64_t spans)
{
    size_t mark = arena_mark(r->arena);
    tn_tensor x = steps_norm(r, l->norm, h);
    x = attend(r, e, l, &x, span, spans);
    x = steps_add_norm(r, l->mlp_norm, h, &x);
    x = steps_linear(r, l->fc1, &x);
    steps_change(r, e->fc_act, &x);
    x = steps_linear(r, l->fc2, &x);
    steps_add(r, h, &x);
    steps_change(r, e->limit, h);
    arena_release(r->arena, mark);
}

/* Whole spans at a time. */
void audio_layers(graph_run *r, const audio_encoder *e, const tn_tensor *h, const int64_t *span, int64_t spans)
{
    int64_t begin = 0;
    for (int64_t i = 0, count; i < spans && r->status == TN_OK; i += count) {
        int64_t rows = span[i];
        for (count = 1; i + count < spans && rows + span[i + count] <= TOWER_PIECE; count++)
            rows += span[i + count];
        tn_tensor part = steps_part(h, 0, begin, rows);
        for (int64_t n = 0; n < e->layers; n++)
            layer(r, e, &e->layer[n], &part, span + i, count);
        begin += rows;
    }
}

tn_tensor audio_head(graph_run *r, const audio_encoder *e, const void *state, const tn_tensor *x,
                     tn_tensor (*head)(graph_run *r, const void *state, const tn_tensor *x))
{
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){x->shape[0], e->out});
    for (int64_t i = 0; i < x->shape[0]; i += TOWER_PIECE) {
        int64_t left = x->shape[0] - i, rows = left < TOWER_PIECE ? left : TOWER_PIECE;
        size_t mark = arena_mark(r->arena);
        tn_tensor from = steps_part(x, 0, i, rows), to = steps_part(&y, 0, i, rows);
        tn_tensor part = head(r, state, &from);
        steps_copy(r, e->copy, &part, &to);
        arena_release(r->arena, mark);
    }
    return y;
}
