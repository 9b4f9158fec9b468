/* Running a text through a model in the calls that sessions make: prompts in chunks, single tokens, few tokens, a
 * batch.
 */
#include "bind/apply.h"
#include "generate/session.h"
#include "verify/whole.h"

#include <math.h>
#include <stdlib.h>

/* The part of a window that is fed token by token, and the most of it, in the first window and in the others. */
enum { STEPS_PART = 4, MOST_STEPS = 64, MOST_STEPS_LATER = 16 };

/* The part of the text that is computed again in calls of few tokens, and the sizes of those, in turn: those that
 * leave most of a small tile empty come first, for there may not be text for all. */
enum { FEW_PART = 4 };
static const int64_t few_sizes[] = {7, 2, 3, 5, 4, 6, 8, 9, 15, 17, 31, 33, 63, 65, 127, 129};
enum { FEW_SIZES = sizeof few_sizes / sizeof *few_sizes };

/* The batch: rows, the part of the text that the longest one has, its most tokens, and tokens behind it. */
enum { ROWS = 3, ROW_PART = 12, MOST_ROW = 48, BEYOND = 4 };

tn_status whole_tell(const whole_progress *p, const char *what, int64_t done, int64_t total, tn_error *err)
{
    if (p->call && p->call(p->ctx, what, done, total) != 0)
        return tn_fail(err, TN_E_CANCELLED, "verify", "cancelled");
    return TN_OK;
}

tn_status whole_no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "verify", "out of memory for the logits; use fewer tokens");
}

/* ---- which calls ------------------------------------------------------------------------------------------------ */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t steps_of(int64_t count, bool first)
{
    return least(count / STEPS_PART, first ? MOST_STEPS : MOST_STEPS_LATER);
}

whole_calls whole_run_calls(const whole_text *text)
{
    whole_calls c = {.steps = steps_of(least(text->window, text->count), true)};
    int64_t left = least(text->count / FEW_PART, text->window);
    for (int i = 0; i < FEW_SIZES && left > 0; i++) {
        int64_t n = least(few_sizes[i], left);
        c.few += n;
        c.most_few = n > c.most_few ? n : c.most_few;
        left -= n;
    }
    c.row = least(least(text->count / ROW_PART, MOST_ROW), text->window - BEYOND);
    if (c.row < ROWS) /* each is shorter than the one before                                             */
        c.row = 0;
    c.rows = c.row > 0 ? ROWS : 0;
    c.beyond = c.row > 0 ? BEYOND : 0;
    return c;
}

int64_t whole_run_count(const whole_text *text)
{
    whole_calls c = whole_run_calls(text);
    return text->count + c.few + c.rows * (c.row + c.beyond);
}

/* Where a row of the batch begins in the text, and its padding. */
static int64_t row_begin(const whole_text *text, int64_t row)
{
    return row * (text->count / ROWS);
}

static int64_t row_padding(const whole_calls *c, int64_t row)
{
    return row * (c->row / c->rows);
}

/* The text's token in a column of a row; negative: padding. */
static int64_t token_of(const whole_text *text, const whole_calls *c, int64_t row, int64_t column)
{
    int64_t padding = row_padding(c, row);
    return column < padding ? -1 : row_begin(text, row) + column - padding;
}

int64_t whole_run_position(const whole_text *text, int64_t token)
{
    whole_calls c = whole_run_calls(text);
    int64_t i = token - text->count, prompt = c.rows * c.row;
    if (i < 0)
        return token;
    if (i < c.few)
        return i;
    i -= c.few;
    int64_t position = i < prompt ? token_of(text, &c, i / c.row, i % c.row)
                                  : token_of(text, &c, (i - prompt) % c.rows, c.row + (i - prompt) / c.rows);
    return position < 0 ? 0 : position;
}

const char *whole_run_manner(const whole_text *text, int64_t token)
{
    whole_calls c = whole_run_calls(text);
    int64_t window = token / text->window, begin = window * text->window;
    int64_t count = least(text->count - begin, text->window);
    if (token >= text->count + c.few)
        return "in a batch";
    if (token >= text->count)
        return "in a call of few tokens";
    return token - begin >= count - steps_of(count, window == 0) ? "as a single token" : "in a prompt";
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

float *whole_run_alloc(const whole_text *text, int64_t vocab, tn_error *err)
{
    float *logits = malloc((size_t)whole_run_count(text) * (size_t)vocab * sizeof *logits);
    if (!logits)
        whole_no_memory(err);
    return logits;
}

static tn_status run_call(tn_session *session, const int64_t *ids, int64_t count, float *logits, tn_error *err)
{
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = count, .ids = ids};
    tn_outputs outputs = {.size = sizeof outputs, .logits = logits};
    return tn_session_run(session, &batch, &outputs, err);
}

static tn_status run_window(tn_session *session, const int64_t *ids, int64_t count, int64_t steps, int64_t vocab,
                            float *logits, tn_error *err)
{
    tn_status status = TN_OK;
    tn_session_reset(session);
    for (int64_t at = 0; at < count && status == TN_OK;) {
        int64_t n = at == 0 ? count - steps : 1;
        status = run_call(session, ids + at, n, logits + at * vocab, err);
        at += n;
    }
    return status;
}

static tn_status run_few(tn_session *session, const whole_text *text, int64_t count, int64_t vocab, float *logits,
                         tn_error *err)
{
    tn_status status = TN_OK;
    int64_t at = 0;
    tn_session_reset(session);
    for (int i = 0; at < count && status == TN_OK; i++) {
        int64_t n = least(few_sizes[i], count - at);
        status = run_call(session, text->ids + at, n, logits + at * vocab, err);
        at += n;
    }
    return status;
}

static tn_session *new_session(tn_model *model, int64_t rows, int64_t context, int64_t chunk, tn_error *err)
{
    tn_session_options options = {.size = sizeof options, .rows = rows, .context = context, .chunk = chunk};
    tn_session *session = tn_session_new(model, &options, err);
    if (session)
        session_take_any_logits(session);
    return session;
}

static tn_status run_windows(tn_model *model, const whole_text *text, const whole_calls *c, float *logits,
                             tn_error *err)
{
    int64_t vocab = model->info.vocab;
    tn_session *session = new_session(model, 1, text->window, 0, err);
    tn_status status = session ? TN_OK : err->code;
    for (int64_t at = 0; at < text->count && status == TN_OK; at += text->window) {
        int64_t n = least(text->count - at, text->window);
        status = run_window(session, text->ids + at, n, steps_of(n, at == 0), vocab, logits + at * vocab, err);
    }
    if (status == TN_OK)
        status = run_few(session, text, c->few, vocab, logits + text->count * vocab, err);
    tn_session_free(session);
    return status;
}

/* All rows of the batch, in so many columns from one on. */
static tn_status run_columns(tn_session *session, const whole_text *text, const whole_calls *c, int64_t first,
                             int64_t columns, int64_t vocab, float *logits, tn_error *err)
{
    int64_t ids[ROWS * MOST_ROW], mask[ROWS * MOST_ROW];
    for (int64_t i = 0; i < c->rows * columns; i++) {
        int64_t token = token_of(text, c, i / columns, first + i % columns);
        mask[i] = token >= 0;
        ids[i] = text->ids[token < 0 ? 0 : token];
    }
    tn_batch batch = {.size = sizeof batch, .rows = c->rows, .tokens = columns, .ids = ids, .mask = mask};
    tn_outputs outputs = {.size = sizeof outputs, .logits = logits};
    tn_status status = tn_session_run(session, &batch, &outputs, err);
    for (int64_t i = 0; i < c->rows * columns && status == TN_OK; i++)
        for (int64_t j = 0; j < vocab && !mask[i]; j++)
            logits[i * vocab + j] = NAN;
    return status;
}

static tn_status run_batch(tn_model *model, const whole_text *text, const whole_calls *c, float *logits, tn_error *err)
{
    int64_t vocab = model->info.vocab, at = c->row;
    if (c->rows == 0)
        return TN_OK;
    /* A session with larger chunks would have kernels checked with more tokens than are computed here. */
    tn_session *session = new_session(model, c->rows, c->row + c->beyond, c->row, err);
    tn_status status = session ? run_columns(session, text, c, 0, c->row, vocab, logits, err) : err->code;
    for (; at < c->row + c->beyond && status == TN_OK; at++)
        status = run_columns(session, text, c, at, 1, vocab, logits + c->rows * at * vocab, err);
    tn_session_free(session);
    return status;
}

static tn_status run_all(tn_model *model, const whole_text *text, float *logits, tn_error *err)
{
    whole_calls c = whole_run_calls(text);
    tn_status status = run_windows(model, text, &c, logits, err);
    return status == TN_OK ? run_batch(model, text, &c, logits + (text->count + c.few) * model->info.vocab, err)
                           : status;
}

tn_status whole_run(tn_model *model, const whole_text *text, bool eager, float *logits, tn_error *err)
{
    if (!eager)
        return run_all(model, text, logits, err);
    bool *none = calloc(model->target.graph->site_count + 1, sizeof *none);
    if (!none)
        return whole_no_memory(err);
    apply_only(&model->target, none);
    tn_status status = run_all(model, text, logits, err);
    apply_only(&model->target, NULL);
    free(none);
    return status;
}
