/* What one chunk of a call does: where it ends, its tokens' places, the run, and where results go. */
#include "generate/session_state.h"

#include "base/convert.h"

#include <stdio.h>

/* Where the results of a chunk go. */
typedef struct chunk_sink {
    tn_session *s;
    const tn_outputs *outputs;
    int64_t all_tokens, begin, tokens; /* a row of the whole call, of this chunk                   */
    bool last;
    tn_status status;
    tn_error *err;
} chunk_sink;

static void capture_hidden(void *ctx, int64_t index, const tn_tensor *hidden)
{
    chunk_sink *sink = ctx;
    if (sink->s->discard)
        return;
    int64_t width = sink->s->shape->hidden, state = index - sink->s->shape->states_behind;
    if (state < 0 || !sink->outputs->hidden[state])
        return;
    for (int64_t b = 0; b < sink->s->rows && sink->status == TN_OK; b++) {
        const char *from =
            (const char *)hidden->data + (size_t)(b * sink->tokens * width) * tn_dtype_size(hidden->dtype);
        float *to = sink->outputs->hidden[state] + (b * sink->all_tokens + sink->begin) * width;
        sink->status = head_fetch(&sink->s->head, from, to, sink->tokens * width, sink->err);
    }
}

static void check_logits(graph_run *r, const chunk_sink *sink, int64_t b, int64_t t, int64_t count, const float *logits)
{
    const tn_session *s = sink->s;
    for (int64_t i = 0; i < count && !s->any_logits; i++)
        if (s->in.index[b * sink->tokens + t + i] >= 0)
            head_check(&s->head, r, logits + i * s->shape->vocab, b, sink->begin + t + i);
}

/* How many of a chunk's tokens the caller reads: the last ones. */
static int64_t wanted_tokens(const chunk_sink *sink)
{
    const tn_outputs *o = sink->outputs;
    return o->hidden || o->logits ? sink->tokens : o->last_logits && sink->last ? 1 : 0;
}

static void run_head(graph_run *r, chunk_sink *sink)
{
    tn_session *s = sink->s;
    int64_t vocab = s->shape->vocab, tokens = r->result.shape[0] / s->rows;
    float *logits = sink->outputs->logits, *last = sink->last ? sink->outputs->last_logits : NULL;
    for (int64_t b = 0; logits && b < s->rows; b++)
        for (int64_t t = 0; t < sink->tokens && r->status == TN_OK; t += HEAD_ROWS) {
            int64_t count = sink->tokens - t < HEAD_ROWS ? sink->tokens - t : HEAD_ROWS;
            float *to = s->discard ? s->discard : logits + (b * sink->all_tokens + sink->begin + t) * vocab;
            head_block(&s->head, r, b * tokens + t, count, to);
            check_logits(r, sink, b, t, count, to);
        }
    for (int64_t b = 0; last && b < s->rows; b++)
        head_move(&s->head, r, b * tokens + tokens - 1, b);
    for (int64_t b = 0; last && b < s->rows && r->status == TN_OK; b += HEAD_ROWS)
        head_block(&s->head, r, b, s->rows - b < HEAD_ROWS ? s->rows - b : HEAD_ROWS,
                   s->discard ? s->discard : last + b * vocab);
    for (int64_t b = 0; last && !s->discard && b < s->rows; b++)
        check_logits(r, sink, b, sink->tokens - 1, 1, last + b * vocab);
}

/* segment: room for that of the run. */
static void set_inputs(graph_run *r, const tn_session *s, int64_t tokens, run_segment *segment)
{
    chunk_show(&s->in, tokens, r);
    *segment = (run_segment){0, tokens, s->cache.view};
    r->segment = segment;
    r->segments = 1;
}

static graph_run start_run(tn_session *s, tn_error *err)
{
    return (graph_run){.device = s->model->target.device, .arena = &s->arena, .dtype = s->model->dtype, .err = err};
}

/* Keys of a picture, or prompt, that is a chunk stand where its first one does, so that all of its tokens see them. */
static void join_mutual(tn_session *s)
{
    s->cache.joined = NULL;
    for (int64_t b = 0; b < s->rows; b++) {
        if (s->first[b] >= 0)
            s->cache.joined = s->first;
        s->first[b] = s->first[b] >= 0 ? s->cache.length[b] : INT32_MAX;
    }
}

static tn_status run_chunk(chunk_sink *sink, const tn_batch *batch, tn_error *err)
{
    tn_session *s = sink->s;
    chunk_inputs *in = &s->in;
    int64_t tokens = sink->tokens, all = sink->all_tokens;
    inbox_begin(&in->box);
    tn_status status =
        cache_advance(&s->cache, tokens, batch->mask ? batch->mask + sink->begin : NULL, all, in->index, err);
    for (int64_t b = 0; b < s->rows; b++)
        for (int64_t t = 0; t < tokens; t++) {
            int64_t from = b * all + sink->begin + t, to = b * tokens + t;
            int64_t index = in->index[to];
            in->ids[to] = media_id(&s->media, batch->ids[from]);
            media_position(&s->media, b, sink->begin + t, index, in->positions[to]);
            for (int a = 0; a < ROPE_AXES && sink->outputs->axes; a++)
                sink->outputs->axes[a * s->rows * all + from] = index < 0 ? 0 : in->positions[to][a];
        }
    in->has_near = false;
    for (int64_t b = 0; b < s->rows; b++)
        chunk_near(in, b * tokens, tokens, s->first[b]);
    if (status == TN_OK)
        status = chunk_upload(in, &(chunk_part){tokens, s->rope_length, s->columns}, 1, err);
    run_media media = {0};
    if (status == TN_OK)
        status = media_chunk(&s->media, sink->begin, tokens, &media, err);
    if (status != TN_OK)
        return status;
    past_keep(&s->past, tokens, in->ids, in->positions, in->index);
    s->columns += tokens;
    graph_run r = start_run(s, err);
    run_segment segment;
    set_inputs(&r, s, tokens, &segment);
    r.wanted = wanted_tokens(sink);
    r.media = media.features.data ? &media : NULL;
    if (sink->outputs->hidden) {
        r.capture = capture_hidden;
        r.capture_ctx = sink;
    }
    arena_release(&s->arena, 0);
    models_forward(s->model->flow, &r, s->model->arch_state);
    if (r.status == TN_OK)
        run_head(&r, sink);
    return r.status != TN_OK ? r.status : sink->status;
}

/* Where the call is cut next: before or behind tokens that see each other. */
static tn_status cut(tn_session *s, int64_t begin, int64_t left, int64_t *count, tn_error *err)
{
    media_before before = s->columns == 0 ? MEDIA_NOTHING : s->columns == s->mutual_end ? MEDIA_PICTURE : MEDIA_TEXT;
    tn_status status = media_cut(&s->media, begin, left, s->chunk, before, s->first, count, err);
    if (status == TN_OK)
        join_mutual(s);
    return status;
}

tn_status session_chunk_run(tn_session *s, const tn_batch *batch, int64_t stride, const tn_outputs *outputs,
                            int64_t begin, int64_t *count, tn_error *err)
{
    tn_status status = cut(s, begin, batch->tokens - begin, count, err);
    if (status != TN_OK)
        return status;
    chunk_sink sink = {.s = s,
                       .outputs = outputs,
                       .all_tokens = stride,
                       .begin = begin,
                       .tokens = *count,
                       .last = begin + *count == batch->tokens,
                       .err = err};
    guest_watch_begin(&s->watch);
    status = run_chunk(&sink, batch, err);
    guest_watch_end(&s->watch);
    if (s->cache.joined)
        s->mutual_end = s->columns;
    return status;
}

/* The layers, over the views of the cache that are there. */
static graph_run measure_layers(tn_session *s, int64_t tokens, int64_t wanted, bool with_media, bool everywhere,
                                tn_error *err)
{
    graph_run r = start_run(s, err);
    run_media media;
    run_segment segment;
    media_measure(&s->media, tokens, &media);
    set_inputs(&r, s, tokens, &segment);
    r.wanted = wanted;
    r.media = with_media ? &media : NULL;
    r.everywhere = everywhere;
    arena_release(&s->arena, 0);
    models_forward(s->model->flow, &r, s->model->arch_state);
    r.media = NULL; /* the head needs none of these                                                        */
    r.segment = NULL;
    r.segments = 0;
    return r;
}

tn_status session_chunk_measure(tn_session *s, int64_t tokens, int64_t wanted, bool with_media, tn_error *err)
{
    cache_measure(&s->cache, tokens);
    graph_run r = measure_layers(s, tokens, wanted, with_media, false, err);
    if (s->shape->no_head)
        return r.status;
    int64_t block = r.result.shape[0] < HEAD_ROWS ? r.result.shape[0] : HEAD_ROWS;
    head_block(&s->head, &r, 0, block, NULL);
    head_block(&s->head, &r, 0, 1, NULL);
    return r.status;
}

tn_status session_chunk_expect(tn_session *s, int64_t tokens, tn_error *err)
{
    cache_expect(&s->cache, tokens);
    graph_run r = measure_layers(s, tokens, 1, false, true, err);
    if (!s->shape->no_head)
        head_block(&s->head, &r, 0, 1, NULL);
    return r.status;
}
