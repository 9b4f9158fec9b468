/* Whole batches: logits, hidden states, and how well a text is predicted. */
#include "binding.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/services.h>

/* Tokens of a row that are computed before Ctrl-C is looked for, and whose logits perplexity holds at once. */
enum { PIECE = 256, PREDICTED = 64 };

typedef struct batch_run {
    const ids *ids, *mask; /* mask->values NULL: none                                                  */
    int64_t width;         /* of a result                                                             */
    float *out;            /* [rows, tokens, width]                                                   */
    bool hidden;
    float **states; /* [layers + 1], all NULL but the last                                             */
    int64_t layers;
    int64_t *piece_ids; /* [rows, PIECE], and what comes of them                                        */
    float *piece;
} batch_run;

static tn_status run_tokens(tn_session *session, batch_run *r, const tn_batch *batch, float *out, tn_error *err)
{
    tn_outputs outputs = {.size = sizeof outputs};
    if (r->hidden) {
        r->states[r->layers] = out;
        outputs.hidden = r->states;
    } else {
        outputs.logits = out;
    }
    return tn_session_run(session, batch, &outputs, err);
}

/* The tokens from `at` on of each row. */
static tn_status run_piece(tn_session *session, batch_run *r, int64_t at, int64_t count, tn_error *err)
{
    int64_t rows = r->ids->rows, tokens = r->ids->tokens;
    for (int64_t b = 0; b < rows; b++)
        memcpy(r->piece_ids + b * count, r->ids->values + b * tokens + at, (size_t)count * sizeof *r->piece_ids);
    const tn_batch batch = {.size = sizeof batch, .rows = rows, .tokens = count, .ids = r->piece_ids};
    float *out = rows == 1 ? r->out + at * r->width : r->piece;
    tn_status status = run_tokens(session, r, &batch, out, err);
    for (int64_t b = 0; b < rows && rows > 1 && status == TN_OK; b++)
        memcpy(r->out + (b * tokens + at) * r->width, out + b * count * r->width,
               (size_t)(count * r->width) * sizeof *out);
    return status;
}

static tn_status run_all(model_object *m, batch_run *r, call *c, tn_error *err)
{
    int64_t rows = r->ids->rows, tokens = r->ids->tokens;
    const tn_session_options options = {.size = sizeof options, .rows = rows, .context = tokens};
    bool whole = tokens <= PIECE || r->mask->values;
    size_t piece = whole ? 0 : (size_t)(rows * PIECE);
    r->layers = m->info.layers;
    r->states = calloc((size_t)r->layers + 1, sizeof *r->states);
    r->piece_ids = malloc((piece + 1) * sizeof *r->piece_ids);
    r->piece = malloc((rows == 1 ? 1 : piece * (size_t)r->width + 1) * sizeof *r->piece);
    tn_session *session = NULL;
    tn_status status = TN_OK;
    if (!r->states || !r->piece_ids || !r->piece)
        status = tn_fail(err, TN_E_MEMORY, "run", "out of memory; give fewer rows");
    else if (!(session = tn_session_new(m->model, &options, err)))
        status = err->code;
    if (status == TN_OK && whole) {
        const tn_batch batch = {
            .size = sizeof batch, .rows = rows, .tokens = tokens, .ids = r->ids->values, .mask = r->mask->values};
        status = run_tokens(session, r, &batch, r->out, err);
    }
    for (int64_t at = 0; at < tokens && !whole && status == TN_OK; at += PIECE)
        status = !call_goes_on(c) ? TN_E_CANCELLED
                                  : run_piece(session, r, at, tokens - at < PIECE ? tokens - at : PIECE, err);
    tn_session_free(session);
    free(r->states);
    free(r->piece_ids);
    free(r->piece);
    return status;
}

static PyObject *run_taken(model_object *m, const ids *tokens, const ids *mask, bool hidden)
{
    batch_run r = {.ids = tokens, .mask = mask, .hidden = hidden};
    tn_error err = TN_ERROR_INIT;
    call c;
    if (tokens->rows * tokens->tokens == 0)
        return errors_fail(TN_E_INPUT, "ids", "there are none; give at least one token");
    if (mask->values && (mask->rows != tokens->rows || mask->tokens != tokens->tokens))
        return errors_fail(TN_E_USAGE, "mask", "it has not the shape of the ids");
    if (!model_take(m))
        return NULL;
    r.width = hidden ? m->info.hidden : m->info.vocab;
    const int64_t shape[] = {tokens->rows, tokens->tokens, r.width};
    PyObject *result = tensor_new(3, shape, &r.out);
    if (result) {
        call_begin(&c);
        tn_status status = run_all(m, &r, &c, &err);
        call_end(&c);
        if (status != TN_OK) {
            errors_raise(&err);
            Py_CLEAR(result);
        }
    }
    model_give(m);
    return result;
}

PyObject *run_batch(PyObject *self, PyObject *arguments)
{
    PyObject *list, *masks;
    int hidden;
    ids tokens = {0}, mask = {0};
    if (!PyArg_ParseTuple(arguments, "OOp", &list, &masks, &hidden) || !ids_take(list, &tokens))
        return NULL;
    PyObject *result = masks == Py_None || ids_take(masks, &mask)
                           ? run_taken((model_object *)self, &tokens, &mask, hidden != 0)
                           : NULL;
    ids_free(&tokens);
    ids_free(&mask);
    return result;
}

/* ---- perplexity --------------------------------------------------------------------------------- */

typedef struct prediction {
    const float *logits; /* [PREDICTED, vocab]                                                        */
    const int64_t *targets;
    int64_t vocab;
    double nll[PREDICTED];
} prediction;

/* Negative log-likelihood of each target, in double: -log softmax(logits)[target]. */
static void predict(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    prediction *p = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *row = p->logits + t * p->vocab;
        double largest = row[0], sum = 0;
        for (int64_t v = 1; v < p->vocab; v++)
            largest = row[v] > largest ? row[v] : largest;
        for (int64_t v = 0; v < p->vocab; v++)
            sum += exp(row[v] - largest);
        p->nll[t] = log(sum) + largest - row[p->targets[t]];
    }
}

/* Tokens of a window predict the token behind each; the window begins with nothing before it. */
static tn_status predict_all(model_object *m, const ids *text, int64_t window, call *c, double *sum, tn_error *err)
{
    const tn_session_options options = {.size = sizeof options,
                                        .rows = 1,
                                        .context = window < text->tokens ? window : text->tokens,
                                        .chunk = PREDICTED};
    float *logits = malloc((size_t)(PREDICTED * m->info.vocab) * sizeof *logits);
    tn_session *session = logits ? tn_session_new(m->model, &options, err) : NULL;
    tn_status status = session  ? TN_OK
                       : logits ? err->code
                                : tn_fail(err, TN_E_MEMORY, "perplexity", "no memory for the logits");
    for (int64_t at = 0, count; at < text->tokens - 1 && status == TN_OK; at += count) {
        int64_t left = text->tokens - 1 - at, within = window - at % window;
        if (within == window)
            tn_session_reset(session);
        count = left < within ? left : within;
        count = count < PREDICTED ? count : PREDICTED;
        const tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = count, .ids = text->values + at};
        const tn_outputs outputs = {.size = sizeof outputs, .logits = logits};
        prediction p = {.logits = logits, .targets = text->values + at + 1, .vocab = m->info.vocab};
        status = call_goes_on(c) ? tn_session_run(session, &batch, &outputs, err) : TN_E_CANCELLED;
        if (status == TN_OK)
            tn_parallel_for(count, 1, predict, &p);
        for (int64_t i = 0; i < count; i++)
            *sum += p.nll[i];
    }
    tn_session_free(session);
    free(logits);
    return status;
}

/* The last target is looked up without having been fed. */
static bool is_known(const ids *text, int64_t vocab)
{
    for (int64_t i = 0; i < text->tokens; i++)
        if (text->values[i] < 0 || text->values[i] >= vocab)
            return false;
    return true;
}

PyObject *run_perplexity(PyObject *self, PyObject *arguments)
{
    model_object *m = (model_object *)self;
    PyObject *list;
    long long window;
    ids text;
    double sum = 0;
    tn_error err = TN_ERROR_INIT;
    tn_status status = TN_OK;
    call c = {0};
    if (!PyArg_ParseTuple(arguments, "OL", &list, &window) || !ids_take(list, &text))
        return NULL;
    if (window < 1)
        status = tn_fail(&err, TN_E_USAGE, "window", "it has no tokens; give 1 or more");
    else if (text.rows != 1 || text.tokens < 2)
        status = tn_fail(&err, TN_E_INPUT, "text", "perplexity needs two tokens in one row; give a longer text");
    else if (!is_known(&text, m->info.vocab))
        status =
            tn_fail(&err, TN_E_INPUT, "text", "a token is outside the vocabulary of %lld", (long long)m->info.vocab);
    if (status == TN_OK && model_take(m)) {
        call_begin(&c);
        status = predict_all(m, &text, window, &c, &sum, &err);
        call_end(&c);
        model_give(m);
    }
    int64_t predicted = text.tokens - 1;
    ids_free(&text);
    if (status != TN_OK)
        errors_raise(&err);
    return PyErr_Occurred() ? NULL : Py_BuildValue("(dL)", sum, (long long)predicted);
}
