/* Answers and events as JSON. */
#include "respond.h"

#include <stdio.h>
#include <string.h>

/* ---- pieces ------------------------------------------------------------------------------------- */

static const char *object_of(const reply *g)
{
    return !g->chat ? "text_completion" : g->stream ? "chat.completion.chunk" : "chat.completion";
}

/* What every answer and chunk begins with. choices is taken. NULL: no memory. */
static json_t *envelope(const reply *g, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", g->id, "object", object_of(g), "created",
                     (json_int_t)g->created, "model", g->api->name, "system_fingerprint", g->api->fingerprint,
                     "choices", choices);
}

static json_t *usage_of(const reply *g)
{
    int64_t prompt = 0, cached = 0, generated = 0, reasoning = 0;
    for (size_t i = 0; i < g->prompt_count; i++)
        prompt += (int64_t)g->prompts[i].count;
    for (size_t i = 0; i < g->choice_count; i++) {
        cached += g->choices[i].number == 0 ? g->choices[i].cached : 0;
        generated += g->choices[i].generated;
        reasoning += g->choices[i].reasoning_tokens;
    }
    json_t *usage = json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                              (json_int_t)generated, "total_tokens", (json_int_t)(prompt + generated),
                              "prompt_tokens_details", "cached_tokens", (json_int_t)cached);
    if (usage && reasoning > 0)
        json_object_set_new(usage, "completion_tokens_details",
                            json_pack("{s:I}", "reasoning_tokens", (json_int_t)reasoning));
    return usage;
}

/* ---- streams ------------------------------------------------------------------------------------ */

/* event is taken. */
static void send_event(reply *g, json_t *event)
{
    if (!event)
        reply_fail(g, 500, "out of memory");
    else if (!exchange_event(g->x, event))
        atomic_store(&g->client, REPLY_GONE);
}

/* delta and logprobs are taken; delta of a completion is its text. */
static void send_chunk(choice *c, json_t *delta, json_t *logprobs, const char *finish)
{
    reply *g = c->of;
    json_t *list = logprobs ? logprobs : json_null(), *end = finish ? json_string(finish) : json_null();
    json_t *one = json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)c->index, g->chat ? "delta" : "text", delta,
                            "logprobs", list, "finish_reason", end);
    send_event(g, one ? envelope(g, json_pack("[o]", one)) : NULL);
}

void respond_begin(reply *g)
{
    exchange_begin_events(g->x);
    for (size_t i = 0; i < g->choice_count && g->chat; i++)
        send_chunk(&g->choices[i], json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL, NULL);
}

void respond_delta(choice *c, json_t *delta)
{
    if (c->of->failed)
        json_decref(delta);
    else
        send_chunk(c, delta, choice_take_entries(c, false), NULL);
}

void respond_text(choice *c, const char *key, const char *text, size_t length)
{
    json_t *string = json_stringn(text, length);
    respond_delta(c, c->of->chat ? json_pack("{s:o}", key, string) : string);
}

void respond_finish(choice *c)
{
    json_t *nothing = c->of->chat ? json_object() : json_string("");
    send_chunk(c, nothing, choice_take_entries(c, true), choice_finish_reason(c));
}

/* ---- whole answers ------------------------------------------------------------------------------ */

static json_t *calls_of(const choice *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->call_count && list; i++) {
        const choice_call *call = &c->calls[i];
        json_t *one = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", call->id, "type", "function", "function", "name",
                                call->name.at, "arguments", json_stringn(call->arguments.at, call->arguments.length));
        if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *string_of(const grown *text)
{
    return json_stringn(text->at ? text->at : "", text->length);
}

/* Content is null beside calls alone. */
static json_t *message_of(const choice *c)
{
    json_t *content = c->content.length == 0 && c->call_count > 0 ? json_null() : string_of(&c->content);
    json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", content, "refusal");
    bool good = message != NULL;
    if (good && c->reasoning.length > 0)
        good = json_object_set_new(message, "reasoning_content", string_of(&c->reasoning)) == 0;
    if (good && c->call_count > 0)
        good = json_object_set_new(message, "tool_calls", calls_of(c)) == 0;
    if (good)
        return message;
    json_decref(message);
    return NULL;
}

static json_t *choice_of(choice *c)
{
    json_t *logprobs = choice_take_entries(c, true);
    json_t *said = c->of->chat ? message_of(c) : string_of(&c->content);
    return json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)c->index, c->of->chat ? "message" : "text", said,
                     "logprobs", logprobs ? logprobs : json_null(), "finish_reason", choice_finish_reason(c));
}

static void send_whole(reply *g)
{
    json_t *choices = json_array();
    for (size_t i = 0; i < g->choice_count && choices; i++)
        if (json_array_append_new(choices, choice_of(&g->choices[i])) != 0) {
            json_decref(choices);
            choices = NULL;
        }
    json_t *body = choices ? envelope(g, choices) : NULL;
    if (body && json_object_set_new(body, "usage", usage_of(g)) != 0) {
        json_decref(body);
        body = NULL;
    }
    if (g->failed) { /* of what it takes to make the answer                                          */
        json_decref(body);
        body = NULL;
    }
    exchange_json(g->x, 200, body);
}

/* ---- the end ------------------------------------------------------------------------------------ */

static void send_error(reply *g)
{
    if (!g->stream) {
        if (g->failed == 503)
            exchange_header(g->x, "Retry-After", "5");
        else if (g->failed >= 500) /* clients must not compute it again and again                          */
            exchange_header(g->x, "x-should-retry", "false");
        exchange_error(g->x, g->failed, NULL, "%s", g->failure);
        return;
    }
    json_t *event = json_pack("{s:{s:s, s:s, s:n, s:i}}", "error", "message", g->failure, "type",
                              g->failed == 503 ? "unavailable_error" : "server_error", "param", "code", g->failed);
    if (event)
        exchange_event(g->x, event);
}

static void end_stream(reply *g)
{
    static const char done[] = "data: [DONE]\n\n";
    if (g->include_usage && !g->failed) {
        json_t *event = envelope(g, json_array());
        if (event && json_object_set_new(event, "usage", usage_of(g)) != 0) {
            json_decref(event);
            event = NULL;
        }
        send_event(g, event);
    }
    if (g->failed)
        send_error(g);
    exchange_write(g->x, done, sizeof done - 1);
    exchange_end(g->x);
}

void respond_end(reply *g)
{
    if (g->stream)
        end_stream(g);
    else if (g->failed)
        send_error(g);
    else
        send_whole(g);
}
