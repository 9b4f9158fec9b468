/* The decode loop: prompts in, token by token of each row out. */
#include "base/clock.h"
#include "generate/draft.h"
#include "generate/next.h"
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
    float *logits; /* [rows, vocab] of the last position; of one row, also of the drafted tokens  */
    int64_t *ids;  /* [rows] of a step, and its mask behind them; of one row, also what is drafted */
    draft draft;   /* of one row                                                                  */
    double start;  /* of decoding                                                                 */
} decode;

/* Tokens of a draft, at most. */
enum { MOST_DRAFTED = 64 };

static tn_status feed(decode *d, const tn_batch *batch, int (*progress)(void *, int64_t, int64_t), tn_error *err)
{
    tn_outputs outputs = {.size = sizeof outputs, .last_logits = d->logits};
    return session_run(d->session, batch, &outputs, progress, d->options.ctx, err);
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

/* Chooses a row's next token, the one behind `position` others, and sees whether it is the last. */
static tn_status choose(decode *d, int64_t b, int64_t position, float *logits, tn_error *err)
{
    decode_row *row = &d->row[b];
    const tn_generate_options *o = &d->options;
    int64_t *count = &row->result->count, id = 0;
    int next;
    tn_status status = next_choose(&row->sampler, o, b, *count, position, logits, &id, &next, err);
    if (status != TN_OK)
        return status;
    if (next == TN_NEXT_TOKEN) {
        row->out[(*count)++] = d->ids[b] = id;
        draft_see(&d->draft, &id, 1);
        next = next_tell(o, b, id);
        if (next_is_end(&d->info, id) && !o->ignore_eos)
            end_row(d, row, TN_STOP_EOS);
    }
    if (next == TN_NEXT_END_ROW)
        end_row(d, row, TN_STOP_CALLBACK);
    else if (next != TN_NEXT_TOKEN)
        end_all(d);
    if (*count == o->max_tokens)
        end_row(d, row, TN_STOP_LENGTH);
    if (position >= session_context(d->session))
        end_row(d, row, TN_STOP_CONTEXT);
    return TN_OK;
}

/* Feeds the token that was chosen with what is drafted behind it, and chooses among the results as long as what was
 * drafted is what comes. */
static tn_status feed_drafted(decode *d, int64_t drafted, tn_error *err)
{
    int64_t before = session_position(d->session, 0), kept = 0;
    int64_t fed[MOST_DRAFTED + 1];
    memcpy(fed, d->ids, (size_t)(drafted + 1) * sizeof *fed);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = drafted + 1, .ids = fed};
    tn_outputs outputs = {.size = sizeof outputs, .logits = d->logits};
    tn_status status = session_run(d->session, &batch, &outputs, NULL, NULL, err);
    while (status == TN_OK) {
        status = choose(d, 0, before + kept + 1, d->logits + kept * d->info.vocab, err);
        if (d->row[0].ended || kept == drafted || d->ids[0] != fed[kept + 1])
            break;
        kept++;
    }
    draft_learn(&d->draft, drafted, kept);
    return status == TN_OK ? tn_session_rewind(d->session, before + 1 + kept, err) : status;
}

/* Samples, hands out and feeds until all rows have ended. */
static tn_status decode_tokens(decode *d, tn_error *err)
{
    int64_t *mask = d->ids + d->rows;
    for (bool more = d->options.max_tokens > 0; more;) {
        int64_t going = 0;
        for (int64_t b = 0; b < d->rows; b++) {
            tn_status status = d->row[b].ended
                                   ? TN_OK
                                   : choose(d, b, session_position(d->session, b), d->logits + b * d->info.vocab, err);
            if (status != TN_OK)
                return status;
        }
        for (int64_t drafted = 1; drafted > 0 && d->draft.most > 0 && !d->row[0].ended;) {
            drafted = draft_make(&d->draft, session_way_back(d->session), d->ids + 1);
            tn_status status = drafted > 0 ? feed_drafted(d, drafted, err) : TN_OK;
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
    int64_t drafted = d->rows == 1 ? o->speculate : 0;
    size_t rows = (size_t)d->rows, most = rows + (size_t)drafted;
    d->row = calloc(rows, sizeof *d->row);
    d->ids = calloc(most, 2 * sizeof *d->ids);
    d->logits = malloc(most * (size_t)d->info.vocab * sizeof *d->logits);
    if (!d->row || !d->ids || !d->logits)
        return tn_fail(err, TN_E_MEMORY, "generate", "out of memory for %lld logits", (long long)d->info.vocab);
    tn_status made = draft_init(&d->draft, drafted, session_context(d->session) + 1, err);
    if (made != TN_OK)
        return made;
    draft_see(&d->draft, o->history, o->history_count);
    draft_see(&d->draft, prompts->ids, prompts->tokens);
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
    if (o->speculate < 0 || o->speculate > MOST_DRAFTED)
        return tn_fail(err, TN_E_USAGE, "speculate", "%d tokens; 0 to %d can be drafted", (int)o->speculate,
                       (int)MOST_DRAFTED);
    if (prompts->tokens < 1 || !prompts->ids)
        return tn_fail(err, TN_E_INPUT, "prompt", "the prompt is empty; give at least one token");
    if (o->history_count < 0 || (o->history_count > 0 && !o->history))
        return tn_fail(err, TN_E_USAGE, "history", "%lld tokens cannot be read", (long long)o->history_count);
    tn_status status = session_check_continues(d->session, err);
    return status == TN_OK ? session_check(d->session, prompts, err) : status;
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
    if (d.row && d.rows == 1 && results[0]) {
        results[0]->drafted = d.draft.made;
        results[0]->accepted = d.draft.kept;
    }
    draft_close(&d.draft);
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
