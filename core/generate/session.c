/* Sessions: tokens in, logits out. A call is cut into chunks, so that the arena is as large as a chunk needs and no
 * larger; the arena's size is found by running the model once over nothing. */
#include "generate/session.h"

#include "base/convert.h"
#include "base/structs.h"
#include "generate/chunk.h"
#include "generate/media.h"
#include "generate/past.h"
#include "open/model.h"
#include "plugin/kernels_config_read.h"
#include "run/cache.h"
#include "run/guest.h"
#include "run/observe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CHUNK = 512, HEAD_ROWS = GRAPH_WIDE_TOKENS };

struct tn_session {
    tn_model *model;
    const model_shape *shape;
    int64_t rows, context, chunk;
    int32_t threads; /* that the arena is sized for                                               */
    bool any_logits; /* NaN and infinity among logits are no error                                */
    guest_watch watch;
    kv_cache cache;
    media media;
    arena arena;
    run_observer observer;
    int64_t rope_length[MODEL_ROPES]; /* that the frequencies of each kind of table follow        */
    int64_t columns;                  /* tokens of a row so far, with padding                     */
    int64_t picture_end;              /* ... at the end of the last picture whose tokens see each other */
    int64_t *first;                   /* [B] where the rows' pictures begin that are the chunk, or INT32_MAX */
    session_past past;
    chunk_inputs in; /* of one chunk                                                             */
    void *staging;   /* of a device without host memory: one block of results, else NULL         */
};

const tn_model *session_model(const tn_session *s)
{
    return s->model;
}

int64_t session_rows(const tn_session *s)
{
    return s->rows;
}

int64_t session_position(const tn_session *s, int64_t row)
{
    return s->cache.length[row];
}

int64_t session_context(const tn_session *s)
{
    return s->context;
}

static int64_t head_rows(const tn_session *s)
{
    return s->rows > HEAD_ROWS ? s->rows : HEAD_ROWS;
}

static size_t staging_bytes(const tn_session *s)
{
    size_t row = (size_t)(s->shape->vocab > s->shape->hidden ? s->shape->vocab : s->shape->hidden);
    return (size_t)head_rows(s) * row * tn_dtype_size(s->model->dtype);
}

/* ---- running one chunk ----------------------------------------------------------------------- */

/* Where the results of a chunk go. */
typedef struct chunk_sink {
    tn_session *s;
    const tn_outputs *outputs;
    int64_t all_tokens, begin, tokens; /* a row of the whole call, of this chunk                   */
    bool last;
    tn_status status;
    tn_error *err;
} chunk_sink;

/* n elements of the device as floats of the host, in the pieces that staging holds. */
static tn_status fetch(tn_session *s, const void *from, float *to, int64_t n, tn_error *err)
{
    tn_dtype dtype = s->model->dtype;
    size_t element = tn_dtype_size(dtype);
    if (!s->staging) {
        tn_status ready = device_sync(s->model->target.device, err);
        if (ready == TN_OK)
            convert_to_f32(from, dtype, to, n);
        return ready;
    }
    int64_t piece = (int64_t)(staging_bytes(s) / element);
    tn_status status = TN_OK;
    for (int64_t i = 0; i < n && status == TN_OK; i += piece) {
        int64_t count = n - i < piece ? n - i : piece;
        status = device_download(s->model->target.device, s->staging, (const char *)from + (size_t)i * element,
                                 (size_t)count * element, err);
        if (status == TN_OK)
            convert_to_f32(s->staging, dtype, to + i, count);
    }
    return status;
}

static void capture_hidden(void *ctx, int64_t index, const tn_tensor *hidden)
{
    chunk_sink *sink = ctx;
    int64_t width = sink->s->shape->hidden, state = index - sink->s->shape->states_behind;
    if (state < 0 || !sink->outputs->hidden[state])
        return;
    for (int64_t b = 0; b < sink->s->rows && sink->status == TN_OK; b++) {
        const char *from =
            (const char *)hidden->data + (size_t)(b * sink->tokens * width) * tn_dtype_size(hidden->dtype);
        float *to = sink->outputs->hidden[state] + (b * sink->all_tokens + sink->begin) * width;
        sink->status = fetch(sink->s, from, to, sink->tokens * width, sink->err);
    }
}

/* Logits of count rows of the result, beginning at row, to out. */
static void head_block(graph_run *r, tn_session *s, int64_t row, int64_t count, float *out)
{
    size_t mark = arena_mark(r->arena);
    tn_tensor x = steps_view(&r->result, 2, (int64_t[]){count, s->shape->hidden});
    if (x.data)
        x.data = (char *)x.data + (size_t)(row * s->shape->hidden) * tn_dtype_size(x.dtype);
    tn_tensor y = s->model->flow->logits(r, s->model->arch_state, &x);
    if (r->status == TN_OK && !r->arena->measuring)
        r->status = fetch(s, y.data, out, count * s->shape->vocab, r->err);
    arena_release(r->arena, mark);
}

/* Logits that choose no token: says what brought them. */
static void broken_logits(graph_run *r, const tn_session *s, int64_t row, int64_t token)
{
    char where[80] = "the output head gives";
    if (r->broken == 1)
        snprintf(where, sizeof where, "the embeddings give");
    else if (r->broken > 1)
        snprintf(where, sizeof where, "layer %lld%s",
                 (long long)(r->broken - 1 < s->shape->layers ? r->broken - 2 : s->shape->layers - 1),
                 r->broken - 1 >= s->shape->layers ? " or the norm behind it gives" : " gives");
    r->status = tn_fail(r->err, TN_E_VERIFY, "logits",
                        "NaN or infinity for token %lld of row %lld; the first stand in what %s; is the "
                        "checkpoint whole? Try --kernels=none, and --dtype f32",
                        (long long)token, (long long)row, where);
}

/* Logits of a real token must be numbers. */
static void check_logits(graph_run *r, const chunk_sink *sink, int64_t b, int64_t t, int64_t count, const float *logits)
{
    const tn_session *s = sink->s;
    for (int64_t i = 0; i < count && r->status == TN_OK && !s->any_logits; i++)
        if (s->in.index[b * sink->tokens + t + i] >= 0 &&
            convert_has_broken_logit(logits + i * s->shape->vocab, s->shape->vocab))
            broken_logits(r, s, b, sink->begin + t + i);
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
    float *logits = sink->outputs->logits, *last = sink->outputs->last_logits;
    for (int64_t b = 0; b < s->rows && r->status == TN_OK; b++) {
        int64_t first = b * tokens;
        for (int64_t t = 0; logits && t < sink->tokens && r->status == TN_OK; t += HEAD_ROWS) {
            int64_t count = sink->tokens - t < HEAD_ROWS ? sink->tokens - t : HEAD_ROWS;
            float *to = logits + (b * sink->all_tokens + sink->begin + t) * vocab;
            head_block(r, s, first + t, count, to);
            check_logits(r, sink, b, t, count, to);
        }
        if (last && sink->last) {
            head_block(r, s, first + tokens - 1, 1, last + b * vocab);
            check_logits(r, sink, b, sink->tokens - 1, 1, last + b * vocab);
        }
    }
}

static void set_inputs(graph_run *r, const tn_session *s, int64_t tokens)
{
    chunk_show(&s->in, tokens, r);
    r->cache = s->cache.view;
}

void session_take_any_logits(tn_session *session)
{
    session->any_logits = true;
}

static graph_run start_run(tn_session *s, tn_error *err)
{
    return (graph_run){.device = s->model->target.device, .arena = &s->arena, .dtype = s->model->dtype, .err = err};
}

/* Keys of a picture that is a chunk stand where its first one does, so that all of its tokens see them. */
static void join_pictures(tn_session *s)
{
    s->cache.joined = NULL;
    for (int64_t b = 0; b < s->rows; b++) {
        if (s->first[b] >= 0)
            s->cache.joined = s->first;
        s->first[b] = s->first[b] >= 0 ? s->cache.length[b] : INT32_MAX;
    }
}

/* ... and where a window is shorter than the picture, no token is further from the first one than it reaches: what lies
 * before the picture is out of sight there. */
static void stay_near(tn_session *s, int64_t tokens)
{
    int64_t window = 0;
    for (int64_t i = 0; i < s->shape->layers && window == 0; i++)
        window = s->shape->layer[i].window;
    s->in.has_near = s->cache.joined && window > 0 && !s->shape->near_pictures;
    for (int64_t i = 0; s->in.has_near && i < s->rows * tokens; i++) {
        int64_t most = s->first[i / tokens] + window - 1;
        s->in.near[i] = s->in.index[i] > most ? (int32_t)most : s->in.index[i];
    }
}

static tn_status run_chunk(chunk_sink *sink, const tn_batch *batch, tn_error *err)
{
    tn_session *s = sink->s;
    chunk_inputs *in = &s->in;
    int64_t tokens = sink->tokens, all = sink->all_tokens;
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
    stay_near(s, tokens);
    if (status == TN_OK)
        status = chunk_upload(in, tokens, s->rope_length, s->columns, err);
    run_media media = {0};
    if (status == TN_OK)
        status = media_chunk(&s->media, sink->begin, tokens, &media, err);
    if (status != TN_OK)
        return status;
    past_keep(&s->past, tokens, in->ids, in->positions, in->index);
    s->columns += tokens;
    graph_run r = start_run(s, err);
    set_inputs(&r, s, tokens);
    r.wanted = wanted_tokens(sink);
    r.media = media.features.data ? &media : NULL;
    if (sink->outputs->hidden) {
        r.capture = capture_hidden;
        r.capture_ctx = sink;
    }
    arena_release(&s->arena, 0);
    s->model->flow->forward(&r, s->model->arch_state);
    if (r.status == TN_OK)
        run_head(&r, sink);
    return r.status != TN_OK ? r.status : sink->status;
}

/* ---- a call ------------------------------------------------------------------------------------ */

static tn_status too_long(const tn_session *s, int64_t tokens, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, "input",
                   "%lld tokens do not fit into the context of %lld; raise it (--context, or context of "
                   "tn_session_options) or shorten the prompt",
                   (long long)tokens, (long long)s->context);
}

static tn_status check_head(const tn_session *s, tn_error *err)
{
    if (!s->shape->no_head)
        return TN_OK;
    return tn_fail(err, TN_E_INPUT, s->model->folder,
                   "has no head (lm_head.weight), so it gives no logits and continues no text; tenon embed uses it, or "
                   "take the checkpoint of %s",
                   s->model->info.class_name);
}

tn_status session_check_continues(const tn_session *s, tn_error *err)
{
    if (!s->shape->both_sides)
        return check_head(s, err);
    return tn_fail(err, TN_E_INPUT, s->model->folder,
                   "is a model whose tokens see those behind them (use_bidirectional_attention), so it continues no "
                   "text; tenon embed uses it");
}

tn_status session_check(const tn_session *s, const tn_batch *batch, tn_error *err)
{
    if (batch->rows != s->rows)
        return tn_fail(err, TN_E_USAGE, "session", "the batch has %lld rows, the session %lld", (long long)batch->rows,
                       (long long)s->rows);
    if (batch->tokens < 1)
        return tn_fail(err, TN_E_INPUT, "input", "the prompt is empty; give at least one token");
    if (!batch->ids)
        return structs_missing("tn_batch.ids", err);
    if (s->shape->both_sides && (s->columns > 0 || batch->tokens > s->chunk))
        return tn_fail(
            err, TN_E_INPUT, "input",
            "%lld tokens behind %lld: what sees both sides (use_bidirectional_attention) takes a text in one "
            "call of at most %lld tokens and continues none; reset the session, or shorten the text",
            (long long)batch->tokens, (long long)s->columns, (long long)s->chunk);
    int64_t most = s->shape->learnt.count ? s->shape->max_positions - 1 : INT32_MAX;
    if (!batch->mask && batch->tokens > s->context) /* before any of them is looked at                    */
        return too_long(s, batch->tokens, err);
    for (int64_t b = 0; b < s->rows; b++) {
        int64_t real = 0;
        for (int64_t t = 0; t < batch->tokens; t++) {
            int64_t i = b * batch->tokens + t;
            if (batch->ids[i] < 0 || batch->ids[i] >= s->shape->vocab)
                return tn_fail(err, TN_E_INPUT, "input",
                               "token id %lld at position %lld is outside the vocabulary of %lld",
                               (long long)batch->ids[i], (long long)t, (long long)s->shape->vocab);
            bool is_real = !batch->mask || batch->mask[i] != 0;
            if (batch->positions && (batch->positions[i] < 0 || batch->positions[i] > (is_real ? most : INT32_MAX)))
                return tn_fail(err, TN_E_INPUT, "input", "position id %lld at position %lld is out of range",
                               (long long)batch->positions[i], (long long)t);
            real += is_real;
        }
        if (s->cache.length[b] + real > s->context)
            return too_long(s, s->cache.length[b] + real, err);
    }
    return TN_OK;
}

/* Some rotary frequencies follow the length: that of the whole call, however it is cut into chunks. */
static void follow_length(tn_session *s, const tn_batch *batch)
{
    int64_t length = 0;
    for (int64_t b = 0; b < s->rows; b++) {
        int64_t index = s->cache.length[b];
        for (int64_t t = 0; t < batch->tokens; t++) {
            bool real = !batch->mask || batch->mask[b * batch->tokens + t] != 0;
            float position[ROPE_AXES];
            media_position(&s->media, b, t, index, position);
            index += real;
            for (int a = 0; a < ROPE_AXES && real; a++)
                length = (int64_t)position[a] + 1 > length ? (int64_t)position[a] + 1 : length;
        }
    }
    for (int32_t i = 0; i < s->shape->rope_count; i++)
        s->rope_length[i] = rope_tables_length(&s->shape->rope[i], s->rope_length[i], length);
}

typedef int progress_fn(void *ctx, int64_t done, int64_t total);

/* A batch whose rows are stride apart, chunk by chunk. */
static tn_status run_chunks(tn_session *s, const tn_batch *batch, int64_t stride, const tn_outputs *outputs,
                            progress_fn *progress, void *ctx, tn_error *err)
{
    tn_status status = TN_OK;
    for (int64_t begin = 0, count; begin < batch->tokens && status == TN_OK; begin += count) {
        media_before before = s->columns == 0                ? MEDIA_NOTHING
                              : s->columns == s->picture_end ? MEDIA_PICTURE
                                                             : MEDIA_TEXT;
        status = media_cut(&s->media, begin, batch->tokens - begin, s->chunk, before, s->first, &count, err);
        if (status != TN_OK)
            return status;
        join_pictures(s);
        chunk_sink sink = {.s = s,
                           .outputs = outputs,
                           .all_tokens = stride,
                           .begin = begin,
                           .tokens = count,
                           .last = begin + count == batch->tokens,
                           .err = err};
        guest_watch_begin(&s->watch);
        status = run_chunk(&sink, batch, err);
        guest_watch_end(&s->watch);
        if (s->cache.joined)
            s->picture_end = s->columns;
        if (status == TN_OK && progress && progress(ctx, begin + sink.tokens, batch->tokens))
            status = tn_fail(err, TN_E_CANCELLED, "session", "stopped");
    }
    return status;
}

/* Everything so far once more, with the frequencies of the longer call. */
static tn_status run_past(tn_session *s, tn_error *err)
{
    tn_batch past = past_batch(&s->past);
    media now = s->media;
    s->media = media_none(&now, past.positions, s->past.capacity);
    cache_reset(&s->cache);
    s->columns = s->past.count = 0; /* what is kept is kept again where it lies */
    tn_status status = run_chunks(s, &past, s->past.capacity, &(tn_outputs){0}, NULL, NULL, err);
    s->media = now;
    return status;
}

/* What the batch has beside tokens. A tower's calls may be larger than those that kernels were checked with. */
static tn_status begin_media(tn_session *s, const tn_batch *batch, const tn_outputs *outputs, tn_error *err)
{
    tn_status status = media_take(&s->media, batch, err);
    int64_t most = status == TN_OK ? media_largest_call(&s->media) : 0;
    if (most > s->rows * s->chunk)
        status = model_check_calls(s->model, 1, most, s->context, err);
    guest_watch_begin(&s->watch);
    if (status == TN_OK)
        status = media_begin(&s->media, batch, outputs, s->cache.length, err);
    guest_watch_end(&s->watch);
    return status;
}

tn_status session_run(tn_session *s, const tn_batch *given, const tn_outputs *given_outputs,
                      int (*progress)(void *ctx, int64_t done, int64_t total), void *ctx, tn_error *err)
{
    tn_batch batch = {0};
    tn_outputs outputs = {0};
    tn_status status = structs_take(&batch, sizeof batch, given, "tn_batch", err);
    if (status == TN_OK && given_outputs)
        status = structs_take(&outputs, sizeof outputs, given_outputs, "tn_outputs", err);
    if (status == TN_OK && (outputs.logits || outputs.last_logits))
        status = check_head(s, err);
    if (status == TN_OK)
        status = session_check(s, &batch, err);
    if (status != TN_OK)
        return status;
    int32_t limit = threads_limit(s->threads);
    status = begin_media(s, &batch, &outputs, err);
    if (status == TN_OK)
        follow_length(s, &batch);
    if (status == TN_OK && past_restarts(&s->past, s->columns, batch.tokens))
        status = run_past(s, err);
    if (status == TN_OK)
        status = run_chunks(s, &batch, batch.tokens, &outputs, progress, ctx, err);
    if (status == TN_OK)
        status = device_sync(s->model->target.device, err);
    media_end(&s->media);
    threads_limit(limit);
    return model_files_check(s->model, status, err);
}

tn_status tn_session_run(tn_session *session, const tn_batch *batch, const tn_outputs *outputs, tn_error *err)
{
    return !session ? structs_missing("session", err) : session_run(session, batch, outputs, NULL, NULL, err);
}

/* ---- life ---------------------------------------------------------------------------------------- */

/* Runs the model over nothing to see how much of the arena a chunk of tokens needs of which so many are wanted, with
 * pictures or sounds in it or none. */
static tn_status measure(tn_session *s, int64_t tokens, int64_t wanted, bool with_media, tn_error *err)
{
    graph_run r = start_run(s, err);
    run_media media;
    cache_measure(&s->cache, tokens);
    media_measure(&s->media, tokens, &media);
    set_inputs(&r, s, tokens);
    r.wanted = wanted;
    r.media = with_media ? &media : NULL;
    arena_release(&s->arena, 0);
    s->model->flow->forward(&r, s->model->arch_state);
    if (s->shape->no_head)
        return r.status;
    int64_t block = r.result.shape[0] < HEAD_ROWS ? r.result.shape[0] : HEAD_ROWS;
    head_block(&r, s, 0, block, NULL);
    head_block(&r, s, 0, 1, NULL);
    return r.status;
}

static tn_status size_arena(tn_session *s, tn_error *err)
{
    tn_status status = arena_init(&s->arena, s->model->target.device, 0, err);
    for (int64_t tokens = 1; tokens < s->chunk && status == TN_OK; tokens *= 2)
        status = measure(s, tokens, tokens, true, err);
    /* The most tokens that may go another way than more of them do. */
    int64_t some = (GRAPH_MANY_TOKENS - 1) / s->rows;
    if (status == TN_OK && some > 0 && some < s->chunk)
        status = measure(s, some, some, true, err);
    if (status == TN_OK)
        status = measure(s, s->chunk, s->chunk, true, err);
    /* Few tokens may need more scratch than many, and here they come behind many; where features are added behind the
     * last layer, too, they only do so without. */
    for (int with = 0; with < 2 && status == TN_OK; with++)
        status = measure(s, s->chunk, 1, with, err);
    size_t size = s->arena.peak;
    arena_close(&s->arena);
    return status == TN_OK ? arena_init(&s->arena, s->model->target.device, size + 4096, err) : status;
}

tn_session *tn_session_new(tn_model *model, const tn_session_options *options, tn_error *err)
{
    tn_session_options o = {0};
    if (!model)
        structs_missing("model", err);
    if (!model || (options && structs_take(&o, sizeof o, options, "tn_session_options", err) != TN_OK))
        return NULL;
    const model_shape *shape = model->flow->shape(model->arch_state);
    o.rows = o.rows ? o.rows : 1;
    o.context = o.context ? o.context : shape->max_positions;
    o.chunk = o.chunk ? o.chunk : DEFAULT_CHUNK;
    if (o.rows < 1 || o.rows > GRAPH_MAX_TOKENS || o.context < 1 || o.context > INT32_MAX || o.chunk < 1) {
        tn_fail(err, TN_E_USAGE, "session", "rows %lld, context %lld and chunk %lld must be positive and not absurd",
                (long long)o.rows, (long long)o.context, (long long)o.chunk);
        return NULL;
    }
    if (shape->learnt.count && o.context > shape->max_positions) {
        tn_fail(err, TN_E_USAGE, "session", "context %lld: the model has learnt %lld positions; use a smaller context",
                (long long)o.context, (long long)shape->max_positions);
        return NULL;
    }
    tn_session *s = calloc(1, sizeof *s);
    if (!s) {
        tn_fail(err, TN_E_MEMORY, "session", "out of memory");
        return NULL;
    }
    s->model = model;
    s->shape = shape;
    s->threads = tn_thread_count();
    s->rows = o.rows;
    s->context = o.context;
    s->chunk = o.chunk < o.context ? o.chunk : o.context;
    if (shape->both_sides)
        s->chunk = s->context;
    if (s->chunk > GRAPH_MAX_TOKENS / s->rows)
        s->chunk = GRAPH_MAX_TOKENS / s->rows;
    model->target.session_count++;
    tn_status status = model_check_calls(model, s->rows, s->chunk, s->context, err);
    if (status == TN_OK)
        status = cache_init(&s->cache, model->target.device, model->dtype, shape, s->rows, s->context, s->chunk, err);
    if (status == TN_OK && o.whole_cache)
        status = cache_hold(&s->cache, s->context, err);
    if (status == TN_OK)
        status = past_init(&s->past, s->rows, shape->restart_at < s->context ? shape->restart_at : 0, err);
    if (status == TN_OK)
        status = media_init(&s->media, model->target.device, model->dtype, shape, s->rows, s->chunk, err);
    if (status == TN_OK)
        status = chunk_init(&s->in, model->target.device, model->dtype, shape, s->rows, s->chunk, err);
    if (status == TN_OK && !model->target.device->ops->host_memory && !(s->staging = malloc(staging_bytes(s))))
        status = tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows");
    if (!(s->first = malloc((size_t)s->rows * sizeof *s->first)) && status == TN_OK)
        status = tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows");
    if (status == TN_OK)
        status = size_arena(s, err);
    guest_watch_open(&s->watch, model->target.device, model->target.graph);
    if (status != TN_OK) {
        tn_session_free(s);
        return NULL;
    }
    return s;
}

void tn_session_free(tn_session *s)
{
    if (!s)
        return;
    device_sync(s->model->target.device, NULL);
    guest_watch_close(&s->watch);
    arena_close(&s->arena);
    if (s->cache.device)
        cache_close(&s->cache);
    media_close(&s->media);
    chunk_close(&s->in);
    past_close(&s->past);
    free(s->staging);
    free(s->first);
    s->model->target.session_count--;
    model_calls_done(s->model);
    free(s);
}

void tn_session_reset(tn_session *s)
{
    if (!s)
        return;
    cache_reset(&s->cache);
    media_reset(&s->media);
    s->columns = s->picture_end = s->past.count = 0;
    memset(s->rope_length, 0, sizeof s->rope_length);
}

tn_status tn_session_observe(tn_session *s, tn_observer *observer, void *ctx, tn_error *err)
{
    if (!s)
        return structs_missing("session", err);
    s->observer = (run_observer){.see = observer, .ctx = ctx};
    s->arena.observer = s->media.observer = observer ? &s->observer : NULL;
    return TN_OK;
}

void session_look(tn_session *s, run_look *look, void *ctx)
{
    s->observer = (run_observer){.look = look, .ctx = ctx};
    s->arena.observer = &s->observer;
}

tn_status tn_session_rewind(tn_session *s, int64_t length, tn_error *err)
{
    if (!s)
        return structs_missing("session", err);
    int64_t now = cache_length(&s->cache);
    if (s->rows != 1 || s->columns != now)
        return tn_fail(err, TN_E_USAGE, "session", "only a session of one row without padding goes back");
    if (length < 0 || length > now)
        return tn_fail(err, TN_E_USAGE, "session", "it holds %lld tokens and cannot go back to %lld", (long long)now,
                       (long long)length);
    if (length == now)
        return TN_OK;
    const char *why = s->media.ahead[0] != 0    ? "pictures or sounds have shifted positions"
                      : length < s->picture_end ? "its tokens see each other"
                                                : NULL;
    for (int32_t i = 0; i < s->shape->rope_count && !why; i++)
        why = rope_tables_moved(&s->shape->rope[i], s->rope_length[i]) ? "rotary frequencies have followed the length"
                                                                       : NULL;
    if (!why)
        why = cache_rewind(&s->cache, length);
    if (why)
        return tn_fail(err, TN_DECLINED, "session", "%s; reset it and feed all tokens again", why);
    s->columns = length;
    s->past.count = s->past.count < length ? s->past.count : length;
    return TN_OK;
}

int64_t session_way_back(const tn_session *s)
{
    int64_t now = cache_length(&s->cache), room = s->context - now - 1;
    bool moves = false,
         lost = s->rows != 1 || s->columns != now || s->media.ahead[0] != 0 || cache_has_states(&s->cache);
    room = room < s->chunk - 1 ? room : s->chunk - 1;
    for (int32_t i = 0; i < s->shape->rope_count && !lost; i++)
        moves |= rope_tables_moved(&s->shape->rope[i], now + 1 + room);
    return lost || moves || room < 0 ? 0 : room;
}

int64_t tn_session_length(const tn_session *s)
{
    return s ? cache_length(&s->cache) : 0;
}

size_t tn_session_cache_bytes(const tn_session *s)
{
    return s ? s->cache.bytes : 0;
}

size_t tn_session_cache_held(const tn_session *s)
{
    return s ? cache_held(&s->cache) : 0;
}

size_t tn_session_arena_bytes(const tn_session *s)
{
    return s ? s->arena.size : 0;
}
