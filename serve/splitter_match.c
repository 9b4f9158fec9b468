/* Patterns against text, byte by byte; see splitter_match.h. */
#include "splitter_match.h"

#include "splitter_call.h"
#include "splitter_literal.h"
#include "splitter_value.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Of names of arguments, and of what is skipped. */
enum { SHORT = 256 };

static splitter_match_result next(splitter_match *m)
{
    m->at++;
    m->since = SIZE_MAX;
    return MATCH_MORE;
}

static bool name_byte(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

static splitter_match_result name(splitter_match *m, const splitter_window *w, size_t *place)
{
    if (name_byte(*splitter_window_at(w, *place))) {
        ++*place;
        return *place - m->since > SHORT ? MATCH_FAILED : MATCH_MORE;
    }
    m->open.tool = splitter_call_tool(m->tools, splitter_window_at(w, m->since), *place - m->since);
    return m->open.tool ? next(m) : MATCH_FAILED;
}

static splitter_match_result arguments(splitter_match *m, const splitter_window *w, size_t *place)
{
    char c = *splitter_window_at(w, *place);
    if (*place == m->since) {
        m->json = (splitter_json){0};
        if (c != '{' && c != '"')
            return MATCH_FAILED;
    }
    ++*place;
    switch (splitter_json_step(&m->json, c)) {
    case SCAN_WRONG:
        return MATCH_FAILED;
    case SCAN_MORE:
        return MATCH_MORE;
    case SCAN_END:
        break;
    }
    bool memory = true;
    if (splitter_json_add_object(&m->open.arguments, splitter_window_at(w, m->since), *place - m->since, &memory))
        return next(m);
    return memory ? MATCH_FAILED : MATCH_MEMORY;
}

/* key: value, where the value has come. */
static splitter_match_result argument(splitter_match *m, const splitter_window *w, size_t end)
{
    const char *key = splitter_window_at(w, m->key), *value = splitter_window_at(w, m->since);
    size_t length = end - m->since;
    if (splitter_family_is(m->at, LINES)) {
        if (length && value[0] == '\n')
            value++, length--;
        if (length && value[length - 1] == '\n')
            length--;
    }
    splitter_text *out = &m->open.arguments;
    const char *before = out->length ? ", " : "{";
    bool ok = splitter_text_add(out, before, strlen(before)) && splitter_text_add_string(out, key, m->key_length) &&
              splitter_text_add(out, ": ", 2) &&
              splitter_value_add(out, m->open.tool, key, m->key_length, value, length);
    m->pairs = true;
    return ok ? MATCH_MORE : MATCH_MEMORY;
}

/* KEY, VALUE, LINES, SKIP: up to the text behind them. */
static splitter_match_result until(splitter_match *m, const splitter_window *w, size_t *place)
{
    size_t size = splitter_family_text(m->at + 1), length = ++*place - m->since;
    bool brief = splitter_family_is(m->at, KEY SKIP);
    if (length < size || memcmp(splitter_window_at(w, *place - size), m->at + 1, size) != 0)
        return brief && length > SHORT ? MATCH_FAILED : MATCH_MORE;
    if (splitter_family_is(m->at, KEY)) {
        m->key = m->since;
        m->key_length = length - size;
    } else if (!splitter_family_is(m->at, SKIP) && argument(m, w, *place - size) == MATCH_MEMORY) {
        return MATCH_MEMORY;
    }
    m->at += size;
    return next(m);
}

/* The AGAIN of a MANY, and the MANY of an AGAIN. */
static const char *other_end(const char *at)
{
    int step = splitter_family_is(at, MANY) ? 1 : -1;
    for (int depth = 0;; at += step) {
        depth += splitter_family_is(at, MANY) ? 1 : splitter_family_is(at, AGAIN) ? -1 : 0;
        if (!depth)
            return at;
    }
}

static splitter_match_result many(splitter_match *m, const splitter_window *w, size_t *place)
{
    const char *body = m->at + 1, *behind = other_end(m->at) + 1;
    const char *text = splitter_window_at(w, m->since);
    size_t body_size = splitter_family_text(body), behind_size = splitter_family_text(behind);
    size_t length = ++*place - m->since;
    bool is_body = length <= body_size && memcmp(text, body, length) == 0;
    bool is_behind = length <= behind_size && memcmp(text, behind, length) == 0;
    if (is_body && length == body_size) {
        m->at = body + body_size - 1;
        return next(m);
    }
    if (is_behind && length == behind_size) {
        m->at = behind + behind_size - 1;
        return next(m);
    }
    if (is_body || is_behind)
        return MATCH_MORE;
    if (body_size && behind_size)
        return MATCH_FAILED;
    *place = m->since;
    m->at = (body_size ? behind : body) - 1;
    return next(m);
}

/* The call in m->open is whole, and one if its arguments are JSON: names of arguments may be anything. */
static splitter_match_result whole(splitter_match *m)
{
    splitter_text *a = &m->open.arguments;
    bool memory = true;
    if (!splitter_text_add(a, a->length ? "}" : "{}", m->pairs ? 1 : a->length ? 0 : 2))
        return MATCH_MEMORY;
    if (!splitter_json_is_object(a->bytes, a->length, &memory))
        return memory ? MATCH_FAILED : MATCH_MEMORY;
    if (m->count == m->room) {
        size_t room = m->room * 2 + 4;
        splitter_call *grown = realloc(m->calls, room * sizeof *grown);
        if (!grown)
            return MATCH_MEMORY;
        m->calls = grown;
        m->room = room;
    }
    m->calls[m->count++] = m->open;
    m->open = (splitter_call){0};
    m->pairs = false;
    return next(m);
}

static splitter_match_result object(splitter_match *m, const splitter_window *w, size_t *place)
{
    if (*place == m->since)
        splitter_call_begin(&m->object, m->at == m->pattern + 1);
    splitter_match_result result = splitter_call_step(&m->object, m->tools, w, (*place)++, &m->open);
    return result == MATCH_DONE ? whole(m) : result;
}

static splitter_match_result literal(splitter_match *m, splitter_literal_form form, const char *text, size_t length)
{
    bool memory = true;
    if (splitter_literal_add(&m->open.arguments, form, text, length, m->family->quote, &memory))
        return form == LITERAL_ARGUMENTS ? whole(m) : next(m);
    return memory ? MATCH_FAILED : MATCH_MEMORY;
}

/* name(key=value, ...) */
static splitter_match_result python(splitter_match *m, const splitter_window *w, size_t *place)
{
    char c = *splitter_window_at(w, (*place)++);
    size_t length = *place - 1 - m->since;
    if (!m->open.tool) {
        if (c != '(')
            return name_byte(c) && length < SHORT ? MATCH_MORE : MATCH_FAILED;
        m->open.tool = splitter_call_tool(m->tools, splitter_window_at(w, m->since), length);
        m->inside = *place;
        m->brackets = (splitter_brackets){.depth = 1};
        return m->open.tool ? MATCH_MORE : MATCH_FAILED;
    }
    if (!splitter_brackets_step(&m->brackets, c))
        return MATCH_MORE;
    return literal(m, LITERAL_ARGUMENTS, splitter_window_at(w, m->inside), *place - 1 - m->inside);
}

/* {key: value, ...} */
static splitter_match_result braces(splitter_match *m, const splitter_window *w, size_t *place)
{
    char c = *splitter_window_at(w, *place);
    if (*place == m->since) {
        m->brackets = (splitter_brackets){.mark = m->family->quote};
        if (c != '{')
            return MATCH_FAILED;
    }
    ++*place;
    if (!splitter_brackets_step(&m->brackets, c))
        return MATCH_MORE;
    return literal(m, LITERAL_OBJECT, splitter_window_at(w, m->since), *place - m->since);
}

/* One byte for the operation in progress, which may leave it to the next. */
static splitter_match_result read_byte(splitter_match *m, const splitter_window *w, size_t *place)
{
    char c = *splitter_window_at(w, *place);
    if (m->since == SIZE_MAX)
        m->since = *place;
    if (splitter_family_is(m->at, NAME))
        return name(m, w, place);
    if (splitter_family_is(m->at, KEY VALUE LINES SKIP))
        return until(m, w, place);
    if (splitter_family_is(m->at, CALL))
        return object(m, w, place);
    if (splitter_family_is(m->at, ARGS))
        return arguments(m, w, place);
    if (splitter_family_is(m->at, PYTHON))
        return python(m, w, place);
    if (splitter_family_is(m->at, BRACES))
        return braces(m, w, place);
    if (splitter_family_is(m->at, MANY))
        return many(m, w, place);
    if (splitter_family_is(m->at, WS) && !splitter_space(c))
        return next(m);
    if (splitter_family_is(m->at, LAST) || (!splitter_family_is(m->at, WS) && c != *m->at))
        return MATCH_FAILED;
    ++*place;
    return splitter_family_is(m->at, WS) ? MATCH_MORE : next(m);
}

splitter_match_result splitter_match_run(splitter_match *m, const splitter_window *w, size_t *place)
{
    for (;;) {
        splitter_match_result result = MATCH_MORE;
        if (*m->at == '\0')
            return m->count || m->some || !splitter_family_calls(m->pattern) ? MATCH_DONE : MATCH_FAILED;
        if (splitter_family_is(m->at, THINK))
            return MATCH_THINK;
        if (splitter_family_is(m->at, START)) {
            next(m);
        } else if (splitter_family_is(m->at, DONE)) {
            result = whole(m);
        } else if (splitter_family_is(m->at, AGAIN)) {
            m->at = other_end(m->at) - 1;
            next(m);
        } else if (splitter_family_is(m->at, TELL)) {
            next(m);
            m->some = true;
            return MATCH_TELL;
        } else if (*place == splitter_window_end(w)) {
            return MATCH_MORE;
        } else {
            result = read_byte(m, w, place);
        }
        if (result != MATCH_MORE)
            return result;
    }
}

/* Behind the calls there is nothing that must be there. */
static bool is_over(const splitter_match *m)
{
    const char *at = m->at;
    if (m->since != SIZE_MAX && !splitter_family_is(at, WS))
        return false;
    while (splitter_family_is(at, WS MANY))
        at = splitter_family_is(at, WS) ? at + 1 : other_end(at) + 1;
    return splitter_family_is(at, LAST) || (!*at && (m->some || !splitter_family_calls(m->pattern)));
}

bool splitter_match_may_end(const splitter_match *m, bool cut)
{
    bool begun = m->open.tool || (m->since != SIZE_MAX && (splitter_family_is(m->at, CALL PYTHON)));
    return is_over(m) || (!cut && m->count && !begun);
}

void splitter_match_clear(splitter_match *m)
{
    for (size_t i = 0; i < m->count; i++)
        splitter_text_free(&m->calls[i].arguments);
    m->count = 0;
}

void splitter_match_begin(splitter_match *m, const char *pattern)
{
    splitter_match_clear(m);
    splitter_text_free(&m->open.arguments);
    m->open = (splitter_call){0};
    m->pairs = m->some = false;
    m->pattern = m->at = pattern;
    m->since = SIZE_MAX;
}

void splitter_match_free(splitter_match *m)
{
    splitter_match_begin(m, "");
    free(m->calls);
}
