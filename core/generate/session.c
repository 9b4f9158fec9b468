/* Sessions: tokens in, logits out. A call is cut into chunks, so that the arena is as large as a chunk needs and no
 * larger; the arena's size is found by running the model once over nothing. */
#include "generate/session.h"

#include "base/structs.h"
#include "generate/ranks.h"
#include "generate/session_state.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CHUNK = 512 };

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

void session_take_any_logits(tn_session *session)
{
    session->any_logits = true;
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
        status = session_chunk_run(s, batch, stride, outputs, begin, &count, err);
        if (status == TN_OK && progress && progress(ctx, begin + count, batch->tokens))
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
    ranks_asked asked = {s, progress, ctx, err};
    bool tells = s->model->group && s->model->group->end.rank == 0;
    int32_t limit = threads_limit(s->threads);
    status = begin_media(s, &batch, &outputs, err);
    if (status == TN_OK)
        status = ranks_run(s, &batch, &outputs, progress, err);
    bool begun = status == TN_OK || !tells;
    if (status == TN_OK)
        follow_length(s, &batch);
    if (status == TN_OK && past_restarts(&s->past, s->columns, batch.tokens))
        status = run_past(s, err);
    if (status == TN_OK)
        status = run_chunks(s, &batch, batch.tokens, &outputs, tells && progress ? ranks_ask : progress,
                            tells && progress ? &asked : ctx, err);
    if (status == TN_OK)
        status = device_sync(s->model->target.device, err);
    media_end(&s->media);
    threads_limit(limit);
    if (s->model->group && begun && status != TN_OK && status != TN_E_CANCELLED && status != TN_E_VERIFY)
        s->model->group->failed = true; /* the others are in the midst of it                           */
    return model_files_check(s->model, status, err);
}

tn_status tn_session_run(tn_session *session, const tn_batch *batch, const tn_outputs *outputs, tn_error *err)
{
    return !session ? structs_missing("session", err) : session_run(session, batch, outputs, NULL, NULL, err);
}

/* ---- life ---------------------------------------------------------------------------------------- */

static tn_status size_arena(tn_session *s, tn_error *err)
{
    tn_status status = arena_init(&s->arena, s->model->target.device, 0, err);
    for (int64_t tokens = 1; tokens < s->chunk && status == TN_OK; tokens *= 2)
        status = session_chunk_measure(s, tokens, tokens, true, err);
    /* The most tokens that may go another way than more of them do. */
    int64_t some = (GRAPH_MANY_TOKENS - 1) / s->rows;
    if (status == TN_OK && some > 0 && some < s->chunk)
        status = session_chunk_measure(s, some, some, true, err);
    if (status == TN_OK)
        status = session_chunk_measure(s, s->chunk, s->chunk, true, err);
    /* Few tokens may need more scratch than many, and here they come behind many; where features are added behind the
     * last layer, too, they only do so without. */
    for (int with = 0; with < 2 && status == TN_OK; with++)
        status = session_chunk_measure(s, s->chunk, 1, with, err);
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
    if (model->lacks.per_module) {
        tn_fail(err, TN_E_USAGE, "session",
                "the model was borrowed for its modules one by one (per_module); borrow it "
                "without that to run it");
        return NULL;
    }
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
    tn_status status = ranks_new(s, &o, err);
    if (status == TN_OK)
        status = model_check_calls(model, s->rows, s->chunk, s->context, err);
    if (status == TN_OK)
        status = cache_init(&s->cache, model->target.device, model->dtype, shape, s->rows, s->context, s->chunk, err);
    if (status == TN_OK && o.whole_cache)
        status = cache_hold(&s->cache, s->context, err);
    if (status == TN_OK)
        status = past_init(&s->past, s->rows, shape->restart_at < s->context ? shape->restart_at : 0, err);
    if (status == TN_OK)
        status = media_init(&s->media, model->target.device, model->dtype, shape, s->rows, s->chunk, err);
    if (status == TN_OK)
        status = chunk_init(&s->in, model->target.device, model->dtype, shape, s->rows, s->chunk,
                            cache_index_bytes(&s->cache), err);
    s->cache.inbox = &s->in.box;
    if (status == TN_OK)
        status = head_init(&s->head, model, shape, s->rows, err);
    if (!(s->first = malloc((size_t)s->rows * sizeof *s->first)) && status == TN_OK)
        status = tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows");
    if (status == TN_OK)
        status = size_arena(s, err);
    guest_watch_open(&s->watch, model->target.device, model->target.graph);
    status = parallel_agree(model, status, err);
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
    ranks_order(s, ORDER_FREE, 0);
    device_sync(s->model->target.device, NULL);
    guest_watch_close(&s->watch);
    arena_close(&s->arena);
    if (s->cache.device)
        cache_close(&s->cache);
    media_close(&s->media);
    chunk_close(&s->in);
    past_close(&s->past);
    head_close(&s->head);
    free(s->first);
    free(s->discard);
    s->model->target.session_count--;
    model_calls_done(s->model);
    free(s);
}

void tn_session_reset(tn_session *s)
{
    if (!s)
        return;
    ranks_order(s, ORDER_RESET, 0);
    cache_reset(&s->cache);
    media_reset(&s->media);
    s->columns = s->mutual_end = s->past.count = 0;
    memset(s->rope_length, 0, sizeof s->rope_length);
}

/* From now on observer, unless it is empty, sees the calls of the model and of its towers. */
static void observe(tn_session *s, run_observer observer)
{
    s->observer = observer;
    s->arena.observer = s->media.observer = observer.see || observer.look ? &s->observer : NULL;
}

tn_status tn_session_observe(tn_session *s, tn_observer *observer, void *ctx, tn_error *err)
{
    if (!s)
        return structs_missing("session", err);
    observe(s, (run_observer){.see = observer, .ctx = ctx});
    return TN_OK;
}

void session_look(tn_session *s, run_look *look, void *ctx)
{
    observe(s, (run_observer){.look = look, .ctx = ctx});
}

tn_status tn_session_rewind(tn_session *s, int64_t length, tn_error *err)
{
    if (!s)
        return structs_missing("session", err);
    ranks_order(s, ORDER_REWIND, length);
    int64_t now = cache_length(&s->cache);
    if (s->rows != 1 || s->columns != now)
        return tn_fail(err, TN_E_USAGE, "session", "only a session of one row without padding goes back");
    if (length < 0 || length > now)
        return tn_fail(err, TN_E_USAGE, "session", "it holds %lld tokens and cannot go back to %lld", (long long)now,
                       (long long)length);
    if (length == now)
        return TN_OK;
    const char *why = s->media.ahead[0] != 0   ? "pictures or sounds have shifted positions"
                      : length < s->mutual_end ? "its tokens see each other"
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
