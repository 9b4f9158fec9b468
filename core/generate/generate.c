/* The decode loop: prompts in, token by token of each row out. */
#include "base/clock.h"
#include "generate/sample.h"
#include "generate/session.h"

#include "base/structs.h"

#include <stdlib.h>
#include <string.h>

typedef struct decode_row {
    sampler sampler;
    int64_t *out;
    tn_generate_result *result;
    bool ended;
} decode_row;

typedef struct decode {
    tn_session *session;
    tn_generate_options options;
    tn_model_info info;
    int64_t rows;
    decode_row *row;
    float *logits; /* [rows, vocab] of the last position                                          */
    int64_t *ids;  /* [rows] of a step, and its mask behind them                                  */
    double start;  /* of decoding                                                                 */
} decode;

static tn_status feed(decode *d, const tn_batch *batch, int (*progress)(void *, int64_t, int64_t), tn_error *err)
{
    tn_outputs outputs = {.size = sizeof outputs, .last_logits = d->logits};
    return session_run(d->session, batch, &outputs, progress, d->options.ctx, err);
}

static bool is_eos(const decode *d, int64_t id)
{
    for (int64_t i = 0; i < d->info.eos_total; i++)
        if (d->info.eos_ids[i] == id)
            return true;
    return false;
}

static void end_row(decode *d, decode_row *row, tn_stop stop)
{
    if (row->ended)
        return;
    row->ended = true;
    row->result->stop = stop;
    row->result->decode_seconds = clock_seconds() - d->start;
}

static void end_all(decode *d)
{
    for (int64_t b = 0; b < d->rows; b++)
        end_row(d, &d->row[b], TN_STOP_CALLBACK);
}

/* Hands a token out; what the callbacks want of the row. */
static int tell(const decode *d, int64_t b, int64_t id)
{
    const tn_generate_options *o = &d->options;
    bool stopped = o->on_token && o->on_token(o->ctx, id) != 0;
    int next = o->on_row_token ? o->on_row_token(o->ctx, b, id) : TN_NEXT_TOKEN;
    return next == TN_NEXT_TOKEN && stopped ? TN_NEXT_END_ROW : next;
}

/* Chooses a row's next token and sees whether it is the last. */
static tn_status choose(decode *d, int64_t b, tn_error *err)
{
    decode_row *row = &d->row[b];
    const tn_generate_options *o = &d->options;
    float *logits = d->logits + b * d->info.vocab;
    int64_t *count = &row->result->count, id;
    int next = o->on_logits ? o->on_logits(o->ctx, b, *count, logits, d->info.vocab) : TN_NEXT_TOKEN;
    if (next == TN_NEXT_TOKEN) {
        sample_penalise(&row->sampler, logits);
        tn_status status = sample_pick(&row->sampler, logits, session_position(d->session, b), &id, err);
        if (status != TN_OK)
            return status;
        row->out[(*count)++] = d->ids[b] = id;
        sample_see(&row->sampler, &id, 1, NULL);
        next = tell(d, b, id);
        if (is_eos(d, id) && !o->ignore_eos)
            end_row(d, row, TN_STOP_EOS);
    }
    if (next == TN_NEXT_END_ROW)
        end_row(d, row, TN_STOP_CALLBACK);
    else if (next != TN_NEXT_TOKEN)
        end_all(d);
    if (*count == o->max_tokens)
        end_row(d, row, TN_STOP_LENGTH);
    if (session_is_full(d->session, b))
        end_row(d, row, TN_STOP_CONTEXT);
    return TN_OK;
}

/* Samples, hands out and feeds until all rows have ended. */
static tn_status decode_tokens(decode *d, tn_error *err)
{
    int64_t *mask = d->ids + d->rows;
    for (bool more = d->options.max_tokens > 0; more;) {
        int64_t going = 0;
        for (int64_t b = 0; b < d->rows; b++) {
            tn_status status = d->row[b].ended ? TN_OK : choose(d, b, err);
            if (status != TN_OK)
                return status;
        }
        for (int64_t b = 0; b < d->rows; b++)
            going += mask[b] = !d->row[b].ended;
        more = going > 0;
        tn_batch batch = {.size = sizeof batch, .rows = d->rows, .tokens = 1, .ids = d->ids};
        batch.mask = going < d->rows ? mask : NULL;
        tn_status status = more ? feed(d, &batch, NULL, err) : TN_OK;
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

static tn_status run(decode *d, const tn_batch *prompts, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    double start = clock_seconds();
    tn_status status = feed(d, prompts, d->options.on_prompt, &why);
    d->start = clock_seconds();
    for (int64_t b = 0; b < d->rows; b++)
        d->row[b].result->prompt_seconds = d->start - start;
    if (status == TN_E_CANCELLED) { /* by on_prompt: the caller's wish, not an error */
        for (int64_t b = 0; b < d->rows; b++)
            d->row[b].result->stop = TN_STOP_CALLBACK;
        return TN_OK;
    }
    if (status != TN_OK)
        return tn_fail(err, status, why.where, "%s", why.message);
    status = decode_tokens(d, err);
    for (int64_t b = 0; b < d->rows; b++) /* those that an error or nothing to write leaves */
        end_row(d, &d->row[b], TN_STOP_LENGTH);
    return status;
}

/* What the repetition penalty is for before anything was generated. */
static tn_status see_all(const decode *d, int64_t b, const tn_batch *prompts, tn_error *err)
{
    const tn_generate_options *o = &d->options;
    sampler *s = &d->row[b].sampler;
    tn_status status = sample_see(s, o->history, o->history_count, err);
    for (int64_t i = b * prompts->tokens; i < (b + 1) * prompts->tokens && status == TN_OK; i++)
        if (!prompts->mask || prompts->mask[i] != 0)
            status = sample_see(s, prompts->ids + i, 1, err);
    return status;
}

static tn_status prepare(decode *d, const tn_batch *prompts, int64_t *out, tn_generate_result *const *results,
                         tn_error *err)
{
    const tn_generate_options *o = &d->options;
    size_t rows = (size_t)d->rows;
    d->row = calloc(rows, sizeof *d->row);
    d->ids = calloc(rows, 2 * sizeof *d->ids);
    d->logits = malloc(rows * (size_t)d->info.vocab * sizeof *d->logits);
    if (!d->row || !d->ids || !d->logits)
        return tn_fail(err, TN_E_MEMORY, "generate", "out of memory for %lld logits", (long long)d->info.vocab);
    for (int64_t b = 0; b < d->rows; b++) {
        tn_generate_options own = *o;
        own.seed += (uint64_t)b;
        d->row[b].result = results[b];
        d->row[b].out = out ? out + b * o->max_tokens : NULL;
        tn_status status = sample_init(&d->row[b].sampler, &own, d->info.vocab, err);
        if (status == TN_OK)
            status = see_all(d, b, prompts, err);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

static tn_status check(const decode *d, const tn_batch *prompts, const int64_t *out, tn_error *err)
{
    const tn_generate_options *o = &d->options;
    if (o->max_tokens < 0 || (o->max_tokens && !out) || (d->rows > 1 && o->max_tokens > INT32_MAX))
        return tn_fail(err, TN_E_USAGE, "max_tokens", "%lld tokens cannot be written", (long long)o->max_tokens);
    if (prompts->tokens < 1 || !prompts->ids)
        return tn_fail(err, TN_E_INPUT, "prompt", "the prompt is empty; give at least one token");
    if (o->history_count < 0 || (o->history_count > 0 && !o->history))
        return tn_fail(err, TN_E_USAGE, "history", "%lld tokens cannot be read", (long long)o->history_count);
    return session_check(d->session, prompts, err);
}

/* Results are those of the rows that the session has. */
static tn_status generate(tn_session *session, const tn_batch *prompts, const tn_generate_options *options,
                          int64_t *out, tn_generate_result *const *results, tn_error *err)
{
    decode d = {.session = session, .info = {.size = sizeof d.info}, .rows = session_rows(session)};
    tn_status status = TN_OK;
    if (options)
        status = structs_take(&d.options, sizeof d.options, options, "tn_generate_options", err);
    if (status == TN_OK)
        status = check(&d, prompts, out, err);
    if (status == TN_OK && (status = tn_model_get_info(session_model(session), &d.info)) != TN_OK)
        tn_fail(err, status, "model", "has no information");
    if (status == TN_OK)
        status = prepare(&d, prompts, out, results, err);
    if (status == TN_OK)
        status = run(&d, prompts, err);
    for (int64_t b = 0; d.row && b < d.rows; b++)
        sample_close(&d.row[b].sampler);
    free(d.row);
    free(d.ids);
    free(d.logits);
    return status;
}

tn_status tn_generate(tn_session *session, const int64_t *prompt, int64_t prompt_count,
                      const tn_generate_options *options, int64_t *out, tn_generate_result *result, tn_error *err)
{
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = prompt_count, .ids = prompt};
    tn_generate_result own = {.size = sizeof own};
    tn_status status = !session ? structs_missing("session", err) : TN_OK;
    if (status == TN_OK && result)
        status = structs_check(result, "tn_generate_result", err);
    if (status == TN_OK)
        status = generate(session, &batch, options, out, (tn_generate_result *[]){&own}, err);
    else
        return status;
    if (result)
        structs_give(result, &own, sizeof own, "tn_generate_result", NULL);
    return status;
}

tn_status tn_generate_rows(tn_session *session, const tn_batch *prompts, const tn_generate_options *options,
                           int64_t *out, tn_generate_result ***results, tn_error *err)
{
    tn_batch batch = {0};
    if (results)
        *results = NULL;
    tn_status status =
        !session ? structs_missing("session", err) : structs_take(&batch, sizeof batch, prompts, "tn_batch", err);
    if (status != TN_OK)
        return status;
    tn_generate_result **list = structs_list((size_t)session_rows(session), sizeof **list);
    if (!list)
        return tn_fail(err, TN_E_MEMORY, "generate", "out of memory; use fewer rows");
    status = generate(session, &batch, options, out, list, err);
    if (results)
        *results = list;
    else
        free(list);
    return status;
}
