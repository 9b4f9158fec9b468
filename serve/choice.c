/* A sequence from its beginning to its end. */
#include "respond.h"

#include <stdlib.h>
#include <string.h>

/* Tokens of the prompt that the decoder sees first, so that what follows them is no beginning of a text. */
enum { PRIMING = 4 };

/* ---- opening and closing ------------------------------------------------------------------------ */

static void on_split(void *ctx, const split_event *event);

static bool prime(choice *c, request_error *e)
{
    const reply_prompt *p = &c->of->prompts[c->prompt];
    for (size_t i = p->count > PRIMING ? p->count - PRIMING : 0; i < p->count; i++)
        if (!c->of->api->special[p->ids[i]] && !tn_stream_push(c->stream, p->ids[i], NULL, NULL))
            return request_no_memory(e);
    return true;
}

static bool open_text(choice *c, const splitter_options *splitting, request_error *e)
{
    const reply *g = c->of;
    tn_error err = TN_ERROR_INIT;
    if (!(c->stream = tn_stream_new(g->api->tokenizer, false, &err)))
        return request_failed(e, NULL, &err);
    if (g->sampling.stop_count > 0 && !g->forced &&
        !(c->stops = tn_stop_text_new(g->sampling.stops, g->sampling.stop_count, &err)))
        return request_failed(e, NULL, &err);
    if (splitting && !(c->splitter = splitter_new(splitting, on_split, c)))
        return request_no_memory(e);
    return (g->echo && c->likely) || prime(c, e);
}

bool choice_open(choice *c, const splitter_options *splitting, request_error *e)
{
    const reply *g = c->of;
    tn_error err = TN_ERROR_INIT;
    c->first = true;
    c->likely = g->sampling.top >= 0;
    c->likelihood = (likelihood){.api = g->api, .top = g->sampling.top, .chat = g->chat};
    if (!open_text(c, splitting, e))
        return false;
    if (g->grammar && !(c->grammar = tn_grammar_state_new(g->grammar, &err)))
        return request_failed(e, NULL, &err);
    return true;
}

void choice_close(choice *c)
{
    json_decref(choice_take_entries(c, true));
    json_decref(c->listed);
    tn_stream_free(c->stream);
    tn_stop_text_free(c->stops);
    splitter_free(c->splitter);
    tn_grammar_state_free(c->grammar);
    likelihood_free(&c->likelihood);
    for (size_t i = 0; i < c->call_count; i++) {
        grown_free(&c->calls[i].name);
        grown_free(&c->calls[i].arguments);
    }
    free(c->calls);
    free(c->entries);
    free(c->seen);
    grown_free(&c->content);
    grown_free(&c->reasoning);
    grown_free(&c->forced);
}

bool choice_fail(choice *c, int status, const char *message)
{
    if (c->ending != CHOICE_FAILED)
        reply_fail(c->of, status, message);
    c->ending = CHOICE_FAILED;
    return false;
}

const char *choice_finish_reason(const choice *c)
{
    if (c->ending == CHOICE_CUT)
        return "length";
    return c->call_count > 0 ? "tool_calls" : "stop";
}

static void on_split(void *ctx, const split_event *event)
{
    choice_split(ctx, event);
}

/* ---- tokens ------------------------------------------------------------------------------------- */

static void measure(choice *c)
{
    double now = reply_clock();
    if (c->last_token > 0)
        metrics_next_token(&c->of->api->metrics, now - c->last_token);
    else
        metrics_first_token(&c->of->api->metrics, now - c->of->begun);
    c->last_token = now;
}

static bool is_stop_id(const choice *c, int64_t id)
{
    const sampling *s = &c->of->sampling;
    for (size_t i = 0; i < s->stop_id_count; i++)
        if (s->stop_ids[i] == id)
            return true;
    return false;
}

/* The grammar's text goes on by the token, unless that is of a thought. */
static bool follow_grammar(choice *c, int64_t id, bool first)
{
    tn_error err = TN_ERROR_INIT;
    if (!c->grammar || c->free_yet)
        return true;
    if (first && id == c->of->api->think_open && c->splitter) {
        c->free_yet = true;
        return true;
    }
    return tn_grammar_accept(c->grammar, id, &err) == TN_OK || choice_fail(c, 500, err.message);
}

/* What the token shows: special tokens by themselves, others as they go on with the text before. Owned. */
static char *text_of(choice *c, int64_t id, bool special, size_t *length)
{
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    if (special) {
        if (tn_tokenizer_decode(c->of->api->tokenizer, &id, 1, false, &text, length, &err) != TN_OK)
            choice_fail(c, 500, err.message);
        return text;
    }
    const char *told = tn_stream_push(c->stream, id, length, &err);
    text = told ? malloc(*length + 1) : NULL;
    if (!text) {
        choice_fail(c, 500, told ? "out of memory" : err.message);
        return NULL;
    }
    memcpy(text, told, *length);
    text[*length] = '\0';
    return text;
}

/* false: the text has come to its end. */
static bool show(choice *c, int64_t id)
{
    const reply *g = c->of;
    bool special = g->api->special[id], hidden = special && g->sampling.skip_special, more = false;
    size_t length = 0;
    char *text = text_of(c, id, special, &length);
    if (text && (!c->likely || hidden || choice_note(c, id, text, length)))
        more = choice_text(c, text, length, hidden);
    free(text);
    return more;
}

/* Is all said that may be? */
static bool is_complete(const choice *c)
{
    return c->grammar && !c->free_yet && (c->of->forced || c->of->api->info.eos_total == 0) &&
           tn_grammar_is_done(c->grammar);
}

int choice_on_token(void *ctx, int64_t row, int64_t id)
{
    choice *c = ctx;
    bool first = c->first;
    (void)row;
    if (c->ending != CHOICE_RUNS || id < 0 || id >= c->of->api->info.vocab)
        return TN_NEXT_END_ALL;
    c->first = false;
    c->generated++;
    c->reasoning_tokens += c->thinking;
    measure(c);
    if (!choice_count_token(c, id))
        return TN_NEXT_END_ALL;
    if (state_ends(c->of->api, id)) /* the engine ends the text, unless it is not to heed it             */
        return TN_NEXT_TOKEN;
    if (is_stop_id(c, id)) {
        c->ending = CHOICE_STOPPED;
        return TN_NEXT_END_ALL;
    }
    if (!follow_grammar(c, id, first) || !show(c, id))
        return TN_NEXT_END_ALL;
    if (is_complete(c))
        c->ending = CHOICE_STOPPED;
    return c->ending == CHOICE_RUNS ? TN_NEXT_TOKEN : TN_NEXT_END_ALL;
}

/* ---- the prompt as part of the text -------------------------------------------------------------- */

/* Entry and text of one token of the prompt. */
static bool echo_token(choice *c, int64_t id)
{
    size_t length = 0;
    bool special = c->of->api->special[id], hidden = special && c->of->sampling.skip_special;
    char *text = text_of(c, id, special, &length);
    if (text && hidden)
        length = 0;
    bool good = text && choice_note(c, id, text, length) && choice_echo(c, text, length);
    free(text);
    return good;
}

void choice_on_prompt_logits(void *ctx, int64_t position, const float *logits, int64_t vocab)
{
    choice *c = ctx;
    const reply_prompt *p = &c->of->prompts[c->prompt];
    if (c->ending != CHOICE_RUNS || vocab != c->of->api->info.vocab || (size_t)position >= p->count)
        return;
    if (position == 0 && !echo_token(c, p->ids[0]))
        return;
    if (!likelihood_see(&c->likelihood, logits)) {
        choice_fail(c, 500, "out of memory");
        return;
    }
    if ((size_t)position + 1 < p->count)
        echo_token(c, p->ids[position + 1]);
}

/* ---- the end ------------------------------------------------------------------------------------- */

static void count_end(const choice *c, const tn_engine_result *result)
{
    const reply *g = c->of;
    metrics_sequence s = {.finish = c->ending == CHOICE_FAILED ? METRICS_ABORT
                                    : c->ending == CHOICE_CUT  ? METRICS_LENGTH
                                                               : METRICS_STOP,
                          .prompt_tokens = c->number == 0 ? (int64_t)g->prompts[c->prompt].count : 0,
                          .generated = c->generated,
                          .whole = reply_clock() - g->begun};
    if (result) {
        s.queue = result->queue_seconds;
        s.prompt = result->prompt_seconds;
        s.decode = result->decode_seconds;
    }
    metrics_sequence_ended(&g->api->metrics, &s);
}

static void end(choice *c, const tn_engine_result *result)
{
    if (c->ended)
        return;
    c->ended = true;
    if (c->ending != CHOICE_FAILED)
        choice_text_end(c, c->ending == CHOICE_CUT);
    if (c->ending != CHOICE_FAILED && c->of->stream && !c->of->failed)
        respond_finish(c);
    likelihood_free(&c->likelihood);
    count_end(c, result);
    c->of->ended++;
}

void choice_on_end(void *ctx, const tn_engine_result *result)
{
    choice *c = ctx;
    c->cached = result->cached;
    if (c->ending != CHOICE_RUNS) {
        end(c, result);
        return;
    }
    if (result->status == TN_OK)
        c->ending = result->stop == TN_STOP_LENGTH || result->stop == TN_STOP_CONTEXT ? CHOICE_CUT : CHOICE_STOPPED;
    else if (result->status == TN_E_CANCELLED)
        choice_fail(c, 500, "the request was cancelled");
    else
        choice_fail(c, 500, result->error.message);
    end(c, result);
}

void choice_abandon(choice *c)
{
    c->ending = CHOICE_FAILED;
    end(c, NULL);
}
