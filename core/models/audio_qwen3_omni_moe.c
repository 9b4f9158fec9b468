/* modeling_qwen3_omni_moe: Qwen3OmniMoeAudioEncoder. Three convolutions over a chunk as a picture of mel bins and
 * frames, each of which halves both; several chunks are a span. All chunks of a call are padded to its longest. */
#include "models/audio.h"

#include <stdlib.h>

static const audio_classes classes = {.encoder = "Qwen3OmniMoeAudioEncoder",
                                      .layer = "Qwen3OmniMoeAudioEncoderLayer",
                                      .attention = "Qwen3OmniMoeAudioAttention",
                                      .k_bias = true,
                                      .n_window = 50};

enum { CONVOLUTIONS = 3 };

typedef struct hearing {
    audio_encoder encoder; /* first: audio_free takes both                                        */
    audio_conv conv[CONVOLUTIONS];
    graph_site *conv_out, *proj1, *proj2;
    tn_site *act;
    int64_t chunks_of_span; /* n_window_infer, in whole chunks                                    */
} hearing;

static void free_state(void *state)
{
    hearing *h = state;
    if (h)
        audio_free(&h->encoder);
}

/* A size behind all convolutions. */
static int64_t shortened(const hearing *h, int axis, int64_t size)
{
    for (int i = 0; i < CONVOLUTIONS; i++)
        size = audio_conv_size(&h->conv[i], axis, size);
    return size;
}

static void build_convolutions(graph_builder *b, const config_reader *config, hearing *h)
{
    static const char *const name[CONVOLUTIONS] = {"conv2d1", "conv2d2", "conv2d3"};
    audio_encoder *e = &h->encoder;
    int64_t channels = config_i64(config, "downsample_hidden_size", 480, 1, 1 << 16);
    for (int i = 0; i < CONVOLUTIONS; i++) {
        h->conv[i] = (audio_conv){NULL, i == 0 ? 1 : channels, channels, {3, 3}, {2, 2}, {1, 1}};
        audio_conv_build(b, e->module, name[i], &h->conv[i]);
    }
    h->conv_out = parts_linear(b, e->module, "conv_out", channels * shortened(h, 0, e->mel), e->width, false, NULL);
}

static void *build(graph_builder *b, graph_module *parent, const char *name, const config_reader *config,
                   int64_t text_hidden)
{
    hearing *h = b->status == TN_OK ? calloc(1, sizeof *h) : NULL;
    if (!h)
        return build_fail(b, TN_E_MEMORY, "graph", "out of memory for a tower");
    audio_encoder *e = &h->encoder;
    audio_read(config, &classes, text_hidden, e);
    int64_t infer = config_i64(config, "n_window_infer", 800, 1, INT32_MAX);
    h->chunks_of_span = infer / (2 * e->n_window);
    if (h->chunks_of_span < 1)
        config_fail(config, "n_window_infer", "is %lld, less than two n_window of %lld", (long long)infer,
                    (long long)e->n_window);
    audio_build(b, parent, name, &classes, e);
    build_convolutions(b, config, h);
    h->proj1 = parts_linear(b, e->module, "proj1", e->width, e->width, true, NULL);
    h->act = parts_act_step(b, e->module, TN_OP_ACT, e->act, e->width);
    h->proj2 = parts_linear(b, e->module, "proj2", e->width, e->out, true, NULL);
    if (b->status == TN_OK)
        return h;
    free_state(h);
    return NULL;
}

/* Rows that the modeling file counts for a chunk: 13 of a whole one, whatever n_window is. */
static int64_t rows_of(const hearing *h, int64_t frames)
{
    return frames == 2 * h->encoder.n_window ? 13 : shortened(h, 1, frames);
}

/* How the chunks of a call lie in its rows. */
typedef struct chunk_plan {
    int64_t chunks, rows; /* of all clips                                                        */
    int64_t longest;      /* frames that each chunk is padded to                                 */
    int64_t places;       /* rows that the convolutions make of each                             */
    int64_t most;         /* rows counted for the longest: how far chunks are taken to be apart  */
    int64_t last;         /* rows of the convolutions that are read                              */
} chunk_plan;

static chunk_plan plan_of(const hearing *h, const tower_media *media)
{
    chunk_plan p = {.longest = audio_longest(&h->encoder, media)};
    p.places = shortened(h, 1, p.longest);
    for (audio_chunk c = {0}; audio_next(&h->encoder, media, &c);)
        p.most = rows_of(h, c.frames) > p.most ? rows_of(h, c.frames) : p.most;
    for (audio_chunk c = {0}; audio_next(&h->encoder, media, &c); p.chunks++) {
        p.rows += rows_of(h, c.frames);
        p.last = p.chunks * p.most + rows_of(h, c.frames) > p.last ? p.chunks * p.most + rows_of(h, c.frames) : p.last;
    }
    return p;
}

static int64_t tokens(const void *state, const tower_media *media, tn_error *err)
{
    const hearing *h = state;
    const audio_encoder *e = &h->encoder;
    if (!audio_check(e, media, err))
        return -1;
    chunk_plan p = plan_of(h, media);
    if (p.places > e->positions)
        tn_fail(err, TN_E_INPUT, "audio", "a chunk has %lld rows, max_source_positions of the model is %lld",
                (long long)p.places, (long long)e->positions);
    else if (p.last > p.chunks * p.places)
        tn_fail(err, TN_E_INPUT, "audio", "n_window %lld leaves %lld rows of a chunk, but 13 are counted",
                (long long)e->n_window, (long long)p.places);
    else if (p.most * h->chunks_of_span > GRAPH_MAX_TOKENS)
        tn_fail(err, TN_E_INPUT, "audio", "n_window_infer makes spans of %lld rows, %d are supported",
                (long long)(p.most * h->chunks_of_span), (int)GRAPH_MAX_TOKENS);
    else
        return p.rows;
    return -1;
}

/* Rows of one chunk, [places, width]. */
static tn_tensor convolve(graph_run *r, const hearing *h, const tower_media *media, const audio_chunk *c,
                          const chunk_plan *p)
{
    const audio_encoder *e = &h->encoder;
    tn_tensor x = audio_plane(e, media, c, e->mel);
    int64_t width = p->longest;
    for (int i = 0; i < CONVOLUTIONS; i++) {
        x = audio_conv_forward(r, e, &h->conv[i], &x, width);
        width = x.shape[2];
    }
    /* A row has the channels of its place, and of each its heights. */
    tn_tensor rows = steps_take(r, r->dtype, 4, (int64_t[]){width, x.shape[0], x.shape[1], 1}), seen = rows;
    seen.data = x.data;
    seen.stride[0] = x.stride[2];
    seen.stride[1] = x.stride[0];
    seen.stride[2] = x.stride[1];
    steps_copy(r, e->copy, &seen, &rows);
    rows = steps_view(&rows, 2, (int64_t[]){width, x.shape[0] * x.shape[1]});
    return steps_linear(r, h->conv_out, &rows);
}

/* The rows of all chunks that count, with their positions inside the chunk. */
static void gather(graph_run *r, const hearing *h, const tower_media *media, const chunk_plan *p, const tn_tensor *to)
{
    const audio_encoder *e = &h->encoder;
    size_t mark = arena_mark(r->arena);
    tn_tensor positions = audio_positions(r, e, p->places);
    tn_tensor all = steps_take(r, r->dtype, 2, (int64_t[]){p->chunks * p->places, e->width});
    int64_t n = 0, begin = 0;
    for (audio_chunk c = {0}; audio_next(e, media, &c); n++) {
        size_t inner = arena_mark(r->arena);
        tn_tensor part = steps_part(&all, 0, n * p->places, p->places), x = convolve(r, h, media, &c, p);
        steps_add(r, &x, &positions);
        steps_copy(r, e->copy, &x, &part);
        arena_release(r->arena, inner);
    }
    n = 0;
    for (audio_chunk c = {0}; audio_next(e, media, &c); n++) {
        int64_t count = rows_of(h, c.frames);
        tn_tensor from = steps_part(&all, 0, n * p->most, count), part = steps_part(to, 0, begin, count);
        steps_copy(r, e->copy, &from, &part);
        begin += count;
    }
    arena_release(r->arena, mark);
}

static tn_tensor head(graph_run *r, const void *state, const tn_tensor *x)
{
    const hearing *h = state;
    tn_tensor y = steps_norm(r, h->encoder.ln_post, x);
    y = steps_linear(r, h->proj1, &y);
    steps_change(r, h->act, &y);
    return steps_linear(r, h->proj2, &y);
}

/* Spans of each clip: whole ones, then what is left. Returns how many there are. */
static int64_t spans_of(const hearing *h, const tower_media *media, int64_t whole, int64_t *span)
{
    int64_t count = 0, rows = 0;
    audio_chunk next = {0};
    for (bool more = audio_next(&h->encoder, media, &next); more;) {
        audio_chunk c = next;
        rows += rows_of(h, c.frames);
        more = audio_next(&h->encoder, media, &next);
        if (more && next.clip == c.clip)
            continue;
        for (; rows > 0; rows -= span[count++])
            span[count] = rows < whole ? rows : whole;
        rows = 0;
    }
    return count;
}

static void forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out)
{
    const hearing *h = state;
    if (r->status == TN_OK && tokens(state, media, r->err) < 0)
        r->status = TN_E_INPUT;
    if (r->status != TN_OK)
        return;
    chunk_plan p = plan_of(h, media);
    int64_t *span = calloc((size_t)p.rows + 1, sizeof *span);
    if (!span) {
        r->status = tn_fail(r->err, TN_E_MEMORY, "audio", "out of memory for %lld rows", (long long)p.rows);
        return;
    }
    tn_tensor x = steps_take(r, r->dtype, 2, (int64_t[]){p.rows, h->encoder.width});
    gather(r, h, media, &p, &x);
    audio_layers(r, &h->encoder, &x, span, spans_of(h, media, p.most * h->chunks_of_span, span));
    out->features = audio_head(r, &h->encoder, h, &x, head);
    free(span);
}

const tower_kind audio_qwen3_omni_moe = {
    "Qwen3OmniMoeAudioEncoder", build, free_state, tokens, forward, NULL, true, NULL};
