/* The text of a sequence on its way out: ends are looked for, then it is thinking, content or a call. */
#include "respond.h"

#include <stdlib.h>
#include <string.h>

static bool no_memory(choice *c)
{
    return choice_fail(c, 500, "out of memory");
}

/* ---- what it is --------------------------------------------------------------------------------- */

/* Content of an answer, or thinking. */
static void give(choice *c, const char *key, grown *to, const char *text, size_t length)
{
    if (c->ending == CHOICE_FAILED || length == 0)
        return;
    if (c->of->stream)
        respond_text(c, key, text, length);
    else if (!grown_add(to, text, length))
        no_memory(c);
}

static const char *content_key(const choice *c)
{
    return c->of->chat ? "content" : "text";
}

static void begin_call(choice *c, const char *name, size_t length)
{
    choice_call *larger = realloc(c->calls, (c->call_count + 1) * sizeof *larger);
    if (!larger) {
        no_memory(c);
        return;
    }
    c->calls = larger;
    choice_call *call = &c->calls[c->call_count++];
    *call = (choice_call){0};
    state_id(call->id, sizeof call->id, c->of->short_ids ? "" : "call_", c->of->short_ids ? 9 : 24);
    if (!grown_add(&call->name, name, length) || !grown_add(&call->arguments, "", 0)) {
        no_memory(c);
        return;
    }
    if (c->of->stream)
        respond_delta(c, json_pack("{s:[{s:i, s:s, s:s, s:{s:s, s:s}}]}", "tool_calls", "index",
                                   (int)(c->call_count - 1), "id", call->id, "type", "function", "function", "name",
                                   call->name.at, "arguments", ""));
}

static void add_arguments(choice *c, const char *text, size_t length)
{
    if (c->call_count == 0)
        return;
    if (!grown_add(&c->calls[c->call_count - 1].arguments, text, length))
        no_memory(c);
    else if (c->of->stream && length > 0)
        respond_delta(c, json_pack("{s:[{s:i, s:{s:o}}]}", "tool_calls", "index", (int)(c->call_count - 1), "function",
                                   "arguments", json_stringn(text, length)));
}

void choice_split(choice *c, const split_event *event)
{
    if (c->ending == CHOICE_FAILED)
        return;
    c->thinking = event->kind == SPLIT_REASONING;
    switch (event->kind) {
    case SPLIT_CONTENT:
        give(c, content_key(c), &c->content, event->text, event->length);
        break;
    case SPLIT_REASONING:
        give(c, "reasoning_content", &c->reasoning, event->text, event->length);
        break;
    case SPLIT_CALL:
        begin_call(c, event->text, event->length);
        break;
    case SPLIT_ARGUMENTS:
        add_arguments(c, event->text, event->length);
        break;
    }
}

/* Text that stands before every stop. */
static void hand_on(choice *c, const char *text, size_t length, bool special)
{
    if (c->ending == CHOICE_FAILED || length == 0)
        return;
    if (c->of->forced && !c->free_yet) {
        if (!grown_add(&c->forced, text, length))
            no_memory(c);
    } else if (!c->splitter) {
        give(c, content_key(c), &c->content, text, special ? 0 : length);
    } else if (!splitter_push(c->splitter, text, length, special)) {
        no_memory(c);
    }
}

/* ---- where it ends ------------------------------------------------------------------------------ */

/* A thought that must end before the text has its form does so at this tag. */
static const char thought_end[] = "</think>";

static void watch_thought(choice *c, const char *text, size_t length)
{
    enum { MARK = sizeof thought_end - 1, MOST = sizeof c->window };
    for (size_t i = 0; i < length && c->free_yet; i++) {
        if (c->window_length == MOST)
            memmove(c->window, c->window + 1, --c->window_length);
        c->window[c->window_length++] = text[i];
        c->free_yet = c->window_length < MARK || memcmp(c->window + c->window_length - MARK, thought_end, MARK) != 0;
        c->thinking = c->thinking && c->free_yet;
    }
}

/* A special token is never a part of a stop, but can be one. */
static bool is_stop(const choice *c, const char *text)
{
    const sampling *s = &c->of->sampling;
    for (size_t i = 0; c->stops && i < s->stop_count; i++)
        if (strcmp(s->stops[i], text) == 0)
            return true;
    return false;
}

static void let_go(choice *c)
{
    size_t length = 0;
    const char *held = c->stops ? tn_stop_text_flush(c->stops, &length) : NULL;
    if (!held)
        return;
    c->kept += length;
    hand_on(c, held, length, false);
}

bool choice_text(choice *c, const char *text, size_t length, bool special)
{
    tn_error err = TN_ERROR_INIT;
    bool found = false;
    if (special) {
        let_go(c);
        if (is_stop(c, text))
            c->ending = CHOICE_STOPPED;
        else
            hand_on(c, text, length, true);
        return c->ending == CHOICE_RUNS;
    }
    size_t before = length;
    const char *out = text;
    c->told += length;
    if (c->stops && !(out = tn_stop_text_push(c->stops, text, length, &before, &found, &err)))
        return choice_fail(c, 500, err.message);
    c->kept += before;
    hand_on(c, out, before, false);
    watch_thought(c, text, length);
    c->met_stop = found;
    if (found && c->ending != CHOICE_FAILED)
        c->ending = CHOICE_STOPPED;
    return c->ending == CHOICE_RUNS;
}

bool choice_echo(choice *c, const char *text, size_t length)
{
    c->told += length;
    c->kept += length;
    give(c, content_key(c), &c->content, text, length);
    return c->ending != CHOICE_FAILED;
}

/* ---- the end ------------------------------------------------------------------------------------ */

/* What was forced is one call, or text where it was cut. */
static void end_forced(choice *c)
{
    static const char before[] = "{\"name\":\"", between[] = "\",\"arguments\":";
    const char *text = c->forced.at ? c->forced.at : "", *name = c->of->forced_tool;
    size_t length = c->forced.length, size = name ? strlen(name) : 0;
    if (!c->grammar || !tn_grammar_is_done(c->grammar)) {
        give(c, content_key(c), &c->content, text, length);
        return;
    }
    if (!name) {
        name = text + sizeof before - 1;
        size = strcspn(name, "\"");
        text = name + size + sizeof between - 1;
        length = length - (size_t)(text - c->forced.at) - 1; /* less the brace at the end                       */
    }
    begin_call(c, name, size);
    if (c->ending != CHOICE_FAILED)
        add_arguments(c, text, length);
}

/* A text that ends in the midst of a character loses that. */
static size_t without_cut(const char *text, size_t length)
{
    while (length >= 3 && memcmp(text + length - 3, "\xEF\xBF\xBD", 3) == 0)
        length -= 3;
    return length;
}

void choice_text_end(choice *c, bool cut)
{
    tn_error err = TN_ERROR_INIT;
    size_t length = 0;
    const char *text = c->met_stop ? "" : tn_stream_flush(c->stream, &length, &err);
    if (!text) {
        choice_fail(c, 500, err.message);
        return;
    }
    if (!c->met_stop)
        choice_text(c, text, without_cut(text, length), false);
    if (!c->met_stop)
        let_go(c);
    if (c->of->forced)
        end_forced(c);
    if (c->splitter && !splitter_end(c->splitter, cut))
        no_memory(c);
}
