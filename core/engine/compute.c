/* A run over pieces of texts: all of their tokens are one row, in which each piece has keys and states of its own. */
#include "engine/compute.h"

#include "engine/prints.h"

#include <stdlib.h>
#include <string.h>

/* ---- a run --------------------------------------------------------------------------------------- */

/* Keys of a picture whose tokens see each other stand where its first one does: see join_mutual of sessions. */
static void join_mutual(compute *c, int64_t part, const compute_part *p)
{
    kv_cache *cache = &p->text->cache;
    int64_t fed = p->text->fed;
    cache->joined = NULL;
    c->first[part] = fed;
    if (p->media && fed < p->media->tokens && media_mutual(p->media, fed, p->tokens) > 0)
        cache->joined = &c->first[part];
}

/* A token, and its positions. */
static void enter_token(compute *c, int64_t to, const compute_part *p, int64_t place)
{
    const media none = {.shape = c->shape}, *m = p->media;
    int64_t token = p->text->tokens[place];
    c->in.ids[to] = media_id(&none, m ? prints_token(m, token, place) : token);
    if (m && place < m->tokens)
        media_position(m, 0, place, place, c->in.positions[to]);
    else
        for (int a = 0; a < ROPE_AXES; a++)
            c->in.positions[to][a] = (float)place + (m ? m->ahead[0] : 0);
}

/* Token by token what the pieces bring, and room for their keys. */
static tn_status enter(compute *c, const compute_part *parts, int64_t count, tn_error *err)
{
    tn_status status = TN_OK;
    int64_t at = 0;
    c->in.has_near = false;
    inbox_begin(&c->in.box);
    for (int64_t i = 0; i < count && status == TN_OK; at += parts[i].tokens, i++) {
        held_text *t = parts[i].text;
        int64_t n = parts[i].tokens;
        join_mutual(c, i, &parts[i]);
        status = cache_advance(&t->cache, n, NULL, 0, c->in.index + at, err);
        chunk_near(&c->in, at, n, t->cache.joined ? c->first[i] : INT32_MAX);
        for (int64_t k = 0; k < n; k++)
            enter_token(c, at + k, &parts[i], t->fed + k);
        c->segment[i] = (run_segment){at, n, t->cache.view};
        c->part[i] = (chunk_part){n, t->rope_length, t->fed};
    }
    return status == TN_OK ? chunk_upload(&c->in, c->part, count, err) : status;
}

/* Rows of pictures and sounds of the part that has some. */
static tn_status enter_media(const compute_part *parts, int64_t count, int64_t tokens, run_media *out, tn_error *err)
{
    int64_t at = 0;
    *out = (run_media){0};
    for (int64_t i = 0; i < count; at += parts[i].tokens, i++) {
        media *m = parts[i].media;
        int64_t fed = parts[i].text->fed, n = parts[i].tokens;
        if (m && fed < m->tokens && media_plain(m, fed, n) < n)
            return media_part(m, fed, n, at, tokens, out, err);
    }
    return TN_OK;
}

tn_status compute_see(compute *c, media *m, int64_t context, tn_error *err)
{
    if (m->device_features)
        return TN_OK;
    int64_t most = media_largest_call(m);
    tn_status status = most > c->most_tokens ? model_check_calls(c->model, 1, most, context, err) : TN_OK;
    if (status != TN_OK)
        return status;
    int32_t limit = threads_limit(c->threads);
    guest_watch_begin(&c->watch);
    status = media_features(m, &(tn_outputs){0}, err);
    guest_watch_end(&c->watch);
    threads_limit(limit);
    return model_files_check(c->model, status, err);
}

typedef struct handing {
    compute *c;
    const compute_part *parts;
    int64_t count, before; /* tokens of the run, and those of its beginning that have no result          */
    compute_sink *sink;
    void *ctx;
} handing;

static int64_t first_wanted(const compute_part *part)
{
    return part->tokens - part->wanted;
}

/* Rows of the result, which are those of wanted tokens. The next of these is at *place of parts[*part], or where that
 * is the part's end in a later one; both move on. */
static void hand_rows(graph_run *r, const handing *h, int64_t first, int64_t rows, int64_t *part, int64_t *place)
{
    compute *c = h->c;
    int64_t vocab = c->shape->vocab;
    head_block(&c->head, r, first, rows, c->logits);
    for (int64_t i = 0; i < rows && r->status == TN_OK; i++, ++*place) {
        while (*place == h->parts[*part].tokens) {
            ++*part;
            *place = first_wanted(&h->parts[*part]);
        }
        tn_error why = TN_ERROR_INIT;
        graph_run look = {.err = &why, .broken = r->broken};
        int64_t position = h->parts[*part].text->fed + *place;
        head_check(&c->head, &look, c->logits + i * vocab, 0, position);
        h->sink(h->ctx, *part, position, c->logits + i * vocab, look.status == TN_OK ? NULL : &why);
    }
}

/* All wanted rows, brought together. */
static void hand_out(graph_run *r, const handing *h)
{
    int64_t rows = 0, begin = -h->before, part = 0, place = first_wanted(&h->parts[0]);
    for (int64_t i = 0; i < h->count; begin += h->parts[i].tokens, i++)
        for (int64_t t = first_wanted(&h->parts[i]); t < h->parts[i].tokens; t++)
            head_move(&h->c->head, r, begin + t, rows++);
    for (int64_t first = 0; first < rows && r->status == TN_OK; first += HEAD_ROWS)
        hand_rows(r, h, first, rows - first < HEAD_ROWS ? rows - first : HEAD_ROWS, &part, &place);
}

/* The last tokens of the run that hold all wanted ones. */
static int64_t wanted_tokens(const compute_part *parts, int64_t count)
{
    int64_t wanted = 0, behind = 0;
    for (int64_t i = count - 1; i >= 0; behind += parts[i].tokens, i--)
        wanted = parts[i].wanted > 0 ? behind + parts[i].wanted : wanted;
    return wanted;
}

static graph_run start(compute *c, int64_t tokens, int64_t segments, tn_error *err)
{
    graph_run r = {.device = c->model->target.device,
                   .arena = &c->arena,
                   .dtype = c->model->dtype,
                   .segment = c->segment,
                   .segments = segments,
                   .err = err};
    chunk_show(&c->in, tokens, &r);
    arena_release(&c->arena, 0);
    return r;
}

static tn_status run_parts(compute *c, const compute_part *parts, int64_t count, compute_sink *sink, void *ctx,
                           tn_error *err)
{
    tn_status status = enter(c, parts, count, err);
    if (status != TN_OK)
        return status;
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++)
        tokens += parts[i].tokens;
    run_media seen;
    status = enter_media(parts, count, tokens, &seen, err);
    if (status != TN_OK)
        return status;
    graph_run r = start(c, tokens, count, err);
    r.wanted = wanted_tokens(parts, count);
    r.media = seen.features.data ? &seen : NULL;
    models_forward(c->model->flow, &r, c->model->arch_state);
    if (r.status == TN_OK && r.wanted > 0)
        hand_out(&r, &(handing){c, parts, count, tokens - r.result.shape[0], sink, ctx});
    if (r.status == TN_OK)
        r.status = device_sync(c->model->target.device, err);
    return r.status;
}

tn_status compute_run(compute *c, const compute_part *parts, int64_t count, compute_sink *sink, void *ctx,
                      tn_error *err)
{
    int32_t limit = threads_limit(c->threads);
    guest_watch_begin(&c->watch);
    tn_status status = run_parts(c, parts, count, sink, ctx, err);
    guest_watch_end(&c->watch);
    threads_limit(limit);
    for (int64_t i = 0; i < count; i++) {
        parts[i].text->cache.joined = NULL;
        parts[i].text->fed += status == TN_OK ? parts[i].tokens : 0;
    }
    return model_files_check(c->model, status, err);
}

/* ---- its size ------------------------------------------------------------------------------------- */

/* A run over pieces of one token and one of several, all of whose caches are full. one: room for the views of a call of
 * one token. */
static tn_status measure(compute *c, kv_cache *full, run_cache *one, int64_t singles, int64_t tokens, bool all,
                         tn_error *err)
{
    int64_t count = 0, at = tokens;
    cache_measure(full, 1);
    memcpy(one, full->view, (size_t)c->shape->layers * sizeof *one);
    cache_measure(full, tokens);
    if (tokens > 0)
        c->segment[count++] = (run_segment){0, tokens, full->view};
    for (int64_t i = 0; i < singles; i++)
        c->segment[count++] = (run_segment){at++, 1, one};
    run_media seen;
    media_measure(&(media){.dtype = c->model->dtype, .shape = c->shape, .rows = 1}, at, &seen);
    graph_run r = start(c, at, count, err);
    r.wanted = all ? at : singles + (tokens > 0);
    r.media = &seen;
    models_forward(c->model->flow, &r, c->model->arch_state);
    int64_t rows = r.result.shape[0] < HEAD_ROWS ? r.result.shape[0] : HEAD_ROWS;
    head_block(&c->head, &r, 0, rows, NULL);
    head_block(&c->head, &r, 0, 1, NULL);
    return r.status;
}

/* Single tokens in any number; beside none, one and all of them but one, pieces of some sizes. */
static tn_status measure_all(compute *c, kv_cache *full, run_cache *one, int64_t budget, tn_error *err)
{
    tn_status status = TN_OK;
    for (int64_t singles = 0; singles <= c->most_parts && status == TN_OK; singles++) {
        bool some = singles < 2 || singles + 1 == c->most_parts;
        if (singles > 0)
            status = measure(c, full, one, singles, 0, true, err);
        for (int64_t n = 1; some && singles < c->most_parts && status == TN_OK && n <= budget;
             n = n < budget && n * 2 > budget ? budget : n * 2)
            for (int all = 0; all < 2 && status == TN_OK; all++)
                status = measure(c, full, one, singles, n, all, err);
    }
    return status;
}

static tn_status size_arena(compute *c, kv_cache *full, int64_t budget, tn_error *err)
{
    run_cache *one = calloc((size_t)c->shape->layers + 1, sizeof *one);
    if (!one)
        return tn_fail(err, TN_E_MEMORY, "engine", "out of memory");
    tn_status status = arena_init(&c->arena, c->model->target.device, 0, err);
    if (status == TN_OK)
        status = measure_all(c, full, one, budget, err);
    free(one);
    size_t size = c->arena.peak;
    arena_close(&c->arena);
    /* Between the sizes that were measured others may take a little more. */
    return status == TN_OK ? arena_init(&c->arena, c->model->target.device, size + size / 16 + 65536, err) : status;
}

tn_status compute_init(compute *c, tn_model *model, kv_cache *full, int64_t most_parts, int64_t most_tokens,
                       tn_error *err)
{
    const device *device = model->target.device;
    const model_shape *shape = model->flow->shape(model->arch_state);
    *c = (compute){.model = model,
                   .shape = shape,
                   .most_parts = most_parts,
                   .most_tokens = most_tokens,
                   .threads = tn_thread_count()};
    c->logits = malloc((size_t)HEAD_ROWS * (size_t)shape->vocab * sizeof *c->logits);
    c->segment = calloc((size_t)most_parts, sizeof *c->segment);
    c->part = calloc((size_t)most_parts, sizeof *c->part);
    c->first = calloc((size_t)most_parts, sizeof *c->first);
    tn_status status = c->logits && c->segment && c->part && c->first
                           ? TN_OK
                           : tn_fail(err, TN_E_MEMORY, "engine", "out of memory; use fewer sequences");
    if (status == TN_OK)
        status = chunk_init(&c->in, device, model->dtype, shape, 1, most_tokens, 0, err);
    if (status == TN_OK)
        status = head_init(&c->head, model, shape, HEAD_ROWS, err);
    if (status == TN_OK)
        status = size_arena(c, full, most_tokens - most_parts, err);
    guest_watch_open(&c->watch, device, model->target.graph);
    return status;
}

void compute_close(compute *c)
{
    if (!c->model)
        return;
    device_sync(c->model->target.device, NULL);
    guest_watch_close(&c->watch);
    arena_close(&c->arena);
    chunk_close(&c->in);
    head_close(&c->head);
    free(c->logits);
    free(c->segment);
    free(c->part);
    free(c->first);
    *c = (compute){0};
}
