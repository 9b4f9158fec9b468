/* Feeding a case to a model, at once or in pieces. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

run_mode run_main_mode(const golden *g)
{
    return golden_has_media(g) ? RUN_MADE : RUN_GIVEN;
}

void run_free(run_results *r)
{
    for (int64_t i = 0; r->hidden && i <= r->layers; i++)
        free(r->hidden[i]);
    free(r->hidden);
    for (int i = 0; i < GOLDEN_DEEP; i++) {
        free(r->deep[i]);
        free(r->video_deep[i]);
    }
    free(r->image);
    free(r->video);
    free(r->sound);
    free(r->axes);
    free(r->logits);
    *r = (run_results){0};
}

/* Memory for as many floats as t has, if it is there. */
static bool like(const tn_tensor *t, float **out)
{
    *out = t->data ? calloc((size_t)tn_tensor_count(t), sizeof(float)) : NULL;
    return *out || !t->data;
}

bool run_allocate(const golden *g, const tn_model *model, bool hidden, run_results *r)
{
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(model, &info);
    size_t positions = (size_t)(g->ids.shape[0] * g->ids.shape[1]);
    *r = (run_results){.layers = info.layers, .width = info.hidden, .vocab = info.vocab};
    r->logits = malloc(positions * (size_t)info.vocab * sizeof(float));
    bool ok = r->logits != NULL && like(&g->image_features, &r->image) && like(&g->video_features, &r->video) &&
              like(&g->audio_features, &r->sound);
    for (int i = 0; i < GOLDEN_DEEP; i++)
        ok = like(&g->deepstack[i], &r->deep[i]) && ok;
    for (int i = 0; i < GOLDEN_DEEP && i < media_deep(model); i++)
        ok = like(&g->video_features, &r->video_deep[i]) && ok;
    if (golden_has_media(g))
        ok = (r->axes = calloc(3 * positions, sizeof(float))) != NULL && ok;
    if (hidden)
        ok = (r->hidden = calloc((size_t)info.layers + 1, sizeof *r->hidden)) != NULL && ok;
    for (int64_t i = 0; ok && hidden && i <= info.layers; i++)
        ok = (r->hidden[i] = malloc(positions * (size_t)info.hidden * sizeof(float))) != NULL;
    return ok;
}

/* One call: logits of its tokens to their places in r->logits; the rest only when the call has all tokens. */
static bool run_piece(const golden *g, tn_session *session, int64_t begin, int64_t count, run_mode mode, run_results *r,
                      tn_error *err)
{
    int64_t rows = g->ids.shape[0], tokens = g->ids.shape[1];
    bool whole = count == tokens;
    float *logits = whole ? r->logits : malloc((size_t)(rows * count * r->vocab) * sizeof(float));
    int64_t *ids = media_columns(&g->ids, rows, tokens, begin, count);
    int64_t *mask = media_columns(&g->mask, rows, tokens, begin, count);
    tn_tensor none = {0};
    bool flat = mode == RUN_GIVEN && g->positions.ndim == 2;
    int64_t *positions = media_columns(flat ? &g->positions : &none, rows, tokens, begin, count);
    tn_batch batch = {.size = sizeof batch, .rows = rows, .tokens = count, .ids = ids, .mask = mask};
    batch.positions = positions;
    media m = {0};
    media_fill(g, mode, begin, count, &m, &batch);
    tn_outputs out = {.size = sizeof out, .logits = logits};
    if (whole) {
        out.hidden = r->hidden;
        out.image_features = r->image;
        out.video_features = r->video;
        out.video_deep = r->video_deep[0] ? r->video_deep : NULL;
        out.sound_features = r->sound;
        out.image_deep = r->deep[0] ? r->deep : NULL;
        out.axes = r->axes;
    }
    bool ok = tn_session_run(session, &batch, &out, err) == TN_OK;
    for (int64_t i = 0; ok && !whole && i < rows; i++)
        memcpy(r->logits + (i * tokens + begin) * r->vocab, logits + i * count * r->vocab,
               (size_t)(count * r->vocab) * sizeof(float));
    if (!whole)
        free(logits);
    free(ids);
    free(mask);
    free(positions);
    media_free(&m);
    return ok;
}

bool run_prompt(const golden *g, tn_session *session, float *last_logits, tn_error *err)
{
    int64_t rows = g->ids.shape[0], tokens = g->ids.shape[1];
    tn_batch batch = {.size = sizeof batch, .rows = rows, .tokens = tokens, .ids = g->ids.data, .mask = g->mask.data};
    media m = {0};
    media_fill(g, RUN_MADE, 0, tokens, &m, &batch);
    tn_outputs out = {.size = sizeof out, .last_logits = last_logits};
    bool ok = tn_session_run(session, &batch, &out, err) == TN_OK;
    media_free(&m);
    return ok;
}

/* A picture whose tokens see each other is one piece; so is a prompt, which has no picture's tokens beside others. */
static int64_t piece_of(const golden *g, int64_t begin, int64_t step)
{
    const int64_t *kind = g->mutual.data;
    int64_t tokens = g->ids.shape[1], end = begin + step < tokens ? begin + step : tokens;
    bool apart = false;
    for (int64_t i = 0; kind && i < tokens; i++)
        apart |= kind[i] != 0;
    if (kind && !apart)
        return tokens - begin;
    while (kind && end < tokens && kind[end - 1] && kind[end])
        end++;
    return end - begin;
}

static bool run_session(const golden *g, tn_model *model, int64_t chunk, run_mode mode, run_look *look, void *ctx,
                        run_results *r, tn_error *err)
{
    int64_t tokens = g->ids.shape[1];
    tn_session_options so = {.size = sizeof so, .rows = g->ids.shape[0], .context = tokens};
    tn_session *session = tn_session_new(model, &so, err);
    bool ok = session != NULL;
    int64_t step = chunk ? chunk : tokens;
    if (ok && look)
        session_look(session, look, ctx);
    for (int64_t begin = 0, count; ok && begin < tokens; begin += count)
        ok = run_piece(g, session, begin, count = piece_of(g, begin, step), mode, r, err);
    tn_session_free(session);
    return ok;
}

bool run_case(const golden *g, tn_model *model, int64_t chunk, run_mode mode, run_results *r, tn_error *err)
{
    return run_session(g, model, chunk, mode, NULL, NULL, r, err);
}

bool run_watched(const golden *g, tn_model *model, run_mode mode, run_look *look, void *ctx, tn_error *err)
{
    run_results r = {0};
    bool ok = run_allocate(g, model, false, &r) && run_session(g, model, 0, mode, look, ctx, &r, err);
    run_free(&r);
    return ok;
}
