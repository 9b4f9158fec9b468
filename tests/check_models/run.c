/* Feeding a case to a model, at once or in pieces. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

void run_free(run_results *r)
{
    for (int64_t i = 0; r->hidden && i <= r->layers; i++)
        free(r->hidden[i]);
    free(r->hidden);
    free(r->logits);
    *r = (run_results){0};
}

bool run_allocate(const golden *g, const tn_model *model, bool hidden, run_results *r)
{
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(model, &info);
    size_t positions = (size_t)(g->ids.shape[0] * g->ids.shape[1]);
    *r = (run_results){.layers = info.layers, .width = info.hidden, .vocab = info.vocab};
    r->logits = malloc(positions * (size_t)info.vocab * sizeof(float));
    bool ok = r->logits != NULL;
    if (hidden)
        ok = (r->hidden = calloc((size_t)info.layers + 1, sizeof *r->hidden)) != NULL && ok;
    for (int64_t i = 0; ok && hidden && i <= info.layers; i++)
        ok = (r->hidden[i] = malloc(positions * (size_t)info.hidden * sizeof(float))) != NULL;
    return ok;
}

/* Columns begin .. begin + count of rows of tokens, packed. Owned; NULL from NULL. */
static int64_t *columns(const tn_tensor *t, int64_t rows, int64_t tokens, int64_t begin, int64_t count)
{
    int64_t *out = t->data ? malloc((size_t)(rows * count) * sizeof *out) : NULL;
    for (int64_t i = 0; out && i < rows; i++)
        memcpy(out + i * count, (const int64_t *)t->data + i * tokens + begin, (size_t)count * sizeof *out);
    return out;
}

/* One call: logits of its tokens to their places in r->logits; hidden only when the call has all tokens. */
static bool run_piece(const golden *g, tn_session *session, int64_t begin, int64_t count, bool computed, run_results *r,
                      tn_error *err)
{
    int64_t rows = g->ids.shape[0], tokens = g->ids.shape[1];
    bool whole = count == tokens, three = g->positions.data && g->positions.ndim == 3;
    float *logits = whole ? r->logits : malloc((size_t)(rows * count * r->vocab) * sizeof(float));
    int64_t *ids = columns(&g->ids, rows, tokens, begin, count), *mask = columns(&g->mask, rows, tokens, begin, count);
    int64_t *positions = computed ? NULL : columns(&g->positions, three ? 3 * rows : rows, tokens, begin, count);
    tn_batch batch = {.size = sizeof batch, .rows = rows, .tokens = count, .ids = ids, .mask = mask};
    batch.positions = positions;
    tn_outputs out = {.size = sizeof out, .logits = logits, .hidden = whole ? r->hidden : NULL};
    bool ok = tn_session_run(session, &batch, &out, err) == TN_OK;
    for (int64_t i = 0; ok && !whole && i < rows; i++)
        memcpy(r->logits + (i * tokens + begin) * r->vocab, logits + i * count * r->vocab,
               (size_t)(count * r->vocab) * sizeof(float));
    if (!whole)
        free(logits);
    free(ids);
    free(mask);
    free(positions);
    return ok;
}

bool run_case(const golden *g, tn_model *model, int64_t chunk, bool computed, run_results *r, tn_error *err)
{
    int64_t tokens = g->ids.shape[1];
    tn_session_options so = {.size = sizeof so, .rows = g->ids.shape[0], .context = tokens};
    tn_session *session = tn_session_new(model, &so, err);
    bool ok = session != NULL;
    int64_t step = chunk ? chunk : tokens;
    for (int64_t begin = 0; ok && begin < tokens; begin += step)
        ok = run_piece(g, session, begin, tokens - begin < step ? tokens - begin : step, computed, r, err);
    tn_session_free(session);
    return ok;
}
