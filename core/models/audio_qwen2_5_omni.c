/* modeling_qwen2_5_omni: Qwen2_5OmniAudioEncoder. Two convolutions over a chunk's frames, of which the second halves
 * their number; a chunk is a span; the mean of each pair of rows is projected. */
#include "models/audio.h"

#include <stdlib.h>

static const audio_classes classes = {.encoder = "Qwen2_5OmniAudioEncoder",
                                      .layer = "Qwen2_5OmniAudioEncoderLayer",
                                      .attention = "Qwen2_5OmniAudioAttention",
                                      .n_window = 100};

typedef struct hearing {
    audio_encoder encoder; /* first: audio_free takes both                                        */
    audio_conv conv1, conv2;
    graph_site *proj;
    tn_site *half;
} hearing;

static void free_state(void *state)
{
    hearing *h = state;
    if (h)
        audio_free(&h->encoder);
}

static void *build(graph_builder *b, graph_module *parent, const char *name, const config_reader *config,
                   int64_t text_hidden)
{
    hearing *h = b->status == TN_OK ? calloc(1, sizeof *h) : NULL;
    if (!h)
        return build_fail(b, TN_E_MEMORY, "graph", "out of memory for a tower");
    audio_encoder *e = &h->encoder;
    tn_tensor unused;
    audio_read(config, &classes, text_hidden, e);
    audio_build(b, parent, name, &classes, e);
    h->conv1 = (audio_conv){NULL, e->mel, e->width, {1, 3}, {1, 1}, {0, 1}};
    h->conv2 = (audio_conv){NULL, e->width, e->width, {1, 3}, {1, 2}, {0, 1}};
    audio_conv_build(b, e->module, "conv1", &h->conv1);
    audio_conv_build(b, e->module, "conv2", &h->conv2);
    h->proj = parts_linear(b, e->module, "proj", e->width, e->out, true, NULL);
    /* Files have it; nothing of the tower reads it. */
    graph_module *ends = build_module(b, e->module, "audio_bos_eos_token", "Embedding");
    if (b->status == TN_OK && build_has(b, ends, "weight"))
        build_tensor(b, ends, "weight", 2, (int64_t[]){2, e->out}, &unused);
    h->half = parts_factor(b, e->module, 0.5, e->width);
    if (b->status == TN_OK)
        return h;
    free_state(h);
    return NULL;
}

/* Rows of so many frames after the convolutions. */
static int64_t rows_of(int64_t frames)
{
    return (frames - 1) / 2 + 1;
}

static int64_t tokens(const void *state, const tower_media *media, tn_error *err)
{
    const audio_encoder *e = &((const hearing *)state)->encoder;
    if (!audio_check(e, media, err))
        return -1;
    if (rows_of(audio_longest(e, media)) > e->positions) {
        tn_fail(err, TN_E_INPUT, "audio", "a chunk has %lld rows, max_source_positions of the model is %lld",
                (long long)rows_of(audio_longest(e, media)), (long long)e->positions);
        return -1;
    }
    int64_t count = 0;
    for (int64_t i = 0; i < media->pixels.shape[0]; i++)
        count += rows_of(media->frames[i]) / 2;
    return count;
}

/* The rows of every chunk and, in span, how many they are; returns the number of chunks. */
static int64_t convolve(graph_run *r, const hearing *h, const tower_media *media, const tn_tensor *rows, int64_t *span)
{
    const audio_encoder *e = &h->encoder;
    tn_tensor positions = audio_positions(r, e, rows_of(audio_longest(e, media)));
    int64_t begin = 0, count = 0;
    for (audio_chunk c = {0}; audio_next(e, media, &c); count++) {
        size_t mark = arena_mark(r->arena);
        tn_tensor x = audio_plane(e, media, &c, 1);
        x = audio_conv_forward(r, e, &h->conv1, &x, c.frames);
        x = audio_conv_forward(r, e, &h->conv2, &x, c.frames);
        span[count] = x.shape[2];
        x = steps_view(&x, 2, (int64_t[]){x.shape[2], e->width});
        tn_tensor to = steps_part(rows, 0, begin, x.shape[0]), index = steps_part(&positions, 0, 0, x.shape[0]);
        steps_add(r, &x, &index);
        steps_copy(r, e->copy, &x, &to);
        begin += x.shape[0];
        arena_release(r->arena, mark);
    }
    return count;
}

/* Means of pairs, clip by clip; an odd row at the end of one is left out. */
static tn_tensor pool(graph_run *r, const hearing *h, const tower_media *media, const tn_tensor *rows, int64_t count)
{
    int64_t width = h->encoder.width, from = 0, to = 0;
    tn_tensor pooled = steps_take(r, r->dtype, 2, (int64_t[]){count, width});
    for (int64_t i = 0; i < media->pixels.shape[0]; i++) {
        int64_t all = rows_of(media->frames[i]), pairs = all / 2;
        tn_tensor even = steps_part(rows, 0, from, pairs), odd = steps_part(rows, 0, from + 1, pairs);
        tn_tensor part = steps_part(&pooled, 0, to, pairs);
        even.stride[0] = odd.stride[0] = 2 * width;
        if (pairs > 0) {
            steps_copy(r, h->encoder.copy, &even, &part);
            steps_add(r, &part, &odd);
        }
        from += all;
        to += pairs;
    }
    if (count > 0)
        steps_change(r, h->half, &pooled);
    return pooled;
}

static tn_tensor head(graph_run *r, const void *state, const tn_tensor *x)
{
    const hearing *h = state;
    tn_tensor y = steps_norm(r, h->encoder.ln_post, x);
    return steps_linear(r, h->proj, &y);
}

static void forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out)
{
    const hearing *h = state;
    int64_t rows = 0, chunks = 0;
    for (audio_chunk c = {0}; audio_next(&h->encoder, media, &c); chunks++)
        rows += rows_of(c.frames);
    int64_t *span = calloc((size_t)chunks + 1, sizeof *span), count = tokens(state, media, r->err);
    if (!span && r->status == TN_OK)
        r->status = tn_fail(r->err, TN_E_MEMORY, "audio", "out of memory for %lld chunks", (long long)chunks);
    if (count < 0 && r->status == TN_OK)
        r->status = TN_E_INPUT;
    if (r->status == TN_OK) {
        tn_tensor x = steps_take(r, r->dtype, 2, (int64_t[]){rows, h->encoder.width});
        convolve(r, h, media, &x, span);
        audio_layers(r, &h->encoder, &x, span, chunks);
        x = pool(r, h, media, &x, count);
        out->features = audio_head(r, &h->encoder, h, &x, head);
    }
    free(span);
}

const tower_kind audio_qwen2_5_omni = {
    "Qwen2_5OmniAudioEncoder", build, free_state, tokens, forward, NULL, false, NULL};
