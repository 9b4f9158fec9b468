/* The text of an answer, divided; see splitter.h. */
#include "splitter.h"

#include "splitter_match.h"

#include <stdlib.h>
#include <string.h>

typedef enum stage { IN_CONTENT, IN_THOUGHT, IN_MATCH } stage;

/* By what a pattern is found. */
typedef struct opening {
    const char *text; /* an object of JSON has its brace                                                      */
    size_t size;
    bool start, calls, thinks;
} opening;

struct splitter {
    const splitter_family *family;
    opening openings[SPLITTER_PATTERNS];
    int count;       /* of them                                                                              */
    bool first[256]; /* bytes that a mark begins with                                                          */
    json_t *tools;   /* NULL: calls are not looked for                                                          */
    bool one_call, reasoning;
    bool hold; /* white space behind content may be before a call or what is left out                           */
    split_sink *sink;
    void *ctx;
    int told;
    splitter_window window;
    size_t from, place; /* what is before from is out or dropped; what is before place is looked at                */
    stage stage;
    bool inside; /* the prompt has begun a thought, and nothing but white space has come                        */
    bool said;   /* content beside thoughts has come out                                                        */
    bool memory; /* never failed                                                                               */
    /* White space is held until it is known what is behind it. */
    splitter_text space;
    bool written; /* content has come out                                                                        */
    bool trim;    /* behind a thought or a call no content has come yet                                          */
    bool thought; /* text of the thought has come out                                                            */
    splitter_match match;
    int pattern;   /* that is tried                                                                              */
    size_t looked; /* bytes of calls that were none, looked through again                                          */
};

static void find_openings(splitter *s)
{
    s->hold = s->tools;
    for (; s->count < SPLITTER_PATTERNS && s->family->patterns[s->count]; s->count++) {
        const char *pattern = s->family->patterns[s->count];
        opening *m = &s->openings[s->count];
        m->start = splitter_family_is(pattern, START);
        m->calls = splitter_family_calls(pattern);
        m->thinks = strstr(pattern, THINK);
        m->text = pattern + m->start;
        m->size = splitter_family_text(m->text);
        if (!m->size) {
            m->text = "{";
            m->size = 1;
        }
        s->first[(unsigned char)m->text[0]] = true;
        s->hold |= strstr(pattern, LAST) != NULL;
    }
}

splitter *splitter_new(const splitter_options *options, split_sink *sink, void *ctx)
{
    splitter *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->family = s->match.family = options->family;
    s->one_call = options->one_call;
    s->reasoning = options->reasoning;
    s->sink = sink;
    s->ctx = ctx;
    s->memory = true;
    s->inside = options->prompt && splitter_family_inside(s->family, options->prompt, options->prompt_length);
    if (json_array_size(options->tools) && !(s->tools = json_deep_copy(options->tools))) {
        splitter_free(s);
        return NULL;
    }
    s->match.tools = s->tools;
    splitter_match_begin(&s->match, "");
    find_openings(s);
    return s;
}

void splitter_free(splitter *s)
{
    if (!s)
        return;
    json_decref(s->tools);
    splitter_text_free(&s->window.text);
    splitter_text_free(&s->space);
    splitter_match_free(&s->match);
    free(s);
}

int splitter_calls(const splitter *s)
{
    return s->told;
}

static void emit(splitter *s, split_kind kind, const char *text, size_t length)
{
    if (length)
        s->sink(s->ctx, &(split_event){.kind = kind, .call = s->told, .text = text, .length = length});
}

/* Sends what is held of white space, or drops it. */
static void send_space(splitter *s, split_kind kind, bool keep)
{
    if (keep)
        emit(s, kind, s->space.bytes, s->space.length);
    s->space.length = 0;
}

/* Text of one kind comes out, but white space that may be that before a call or around a thought. */
static void say(splitter *s, split_kind kind, size_t from, size_t to)
{
    const char *text = splitter_window_at(&s->window, from);
    size_t length = to - from, lead = 0, tail = length;
    bool content = kind == SPLIT_CONTENT, *begun = content ? &s->written : &s->thought;
    while (lead < length && splitter_space(text[lead]))
        lead++;
    if (lead < length || (content && *begun && !s->hold)) {
        while (tail && (s->hold || !content) && splitter_space(text[tail - 1]))
            tail--;
        bool keep = *begun || (content && !s->trim);
        send_space(s, kind, keep);
        lead = keep ? 0 : lead;
        emit(s, kind, text + lead, tail - lead);
        *begun = true;
        s->trim = s->trim && !content;
    } else {
        tail = 0;
    }
    s->memory = splitter_text_add(&s->space, text + tail, length - tail) && s->memory;
}

static void say_content(splitter *s, size_t to)
{
    if (to == s->from)
        return;
    for (size_t i = s->from; i < to && !s->said; i++)
        s->said = !splitter_space(*splitter_window_at(&s->window, i));
    say(s, SPLIT_CONTENT, s->from, to);
    s->from = to;
}

static void say_thought(splitter *s, size_t to)
{
    if (to != s->from)
        say(s, s->reasoning ? SPLIT_REASONING : SPLIT_CONTENT, s->from, to);
    s->from = to;
}

static void begin_thought(splitter *s, size_t behind)
{
    if (s->reasoning) {
        send_space(s, SPLIT_CONTENT, s->written && !s->trim);
        s->from = behind;
    } else {
        say_thought(s, behind);
    }
    s->stage = IN_THOUGHT;
    s->inside = s->thought = false;
}

static void end_thought(splitter *s, size_t behind)
{
    if (s->reasoning) {
        send_space(s, SPLIT_REASONING, false);
        s->trim = true;
        s->from = behind;
    } else {
        say_thought(s, behind);
    }
    s->stage = IN_CONTENT;
}

/* The calls of a match come out. */
static void tell(splitter *s)
{
    if (s->match.count && !s->written)
        s->space.length = 0;
    for (size_t i = 0; i < s->match.count; i++) {
        if (s->one_call && s->told)
            break;
        const json_t *name = json_object_get(s->match.calls[i].tool, "name");
        emit(s, SPLIT_CALL, json_string_value(name), json_string_length(name));
        emit(s, SPLIT_ARGUMENTS, s->match.calls[i].arguments.bytes, s->match.calls[i].arguments.length);
        s->told++;
    }
    if (s->match.count)
        s->trim = true;
    splitter_match_clear(&s->match);
    s->from = s->place;
}

/* How far the text at place agrees with mark: its whole length, up to the window's end (less), or 0. */
static size_t agrees(const splitter *s, size_t place, const char *mark, size_t size)
{
    size_t there = splitter_window_end(&s->window) - place;
    size_t length = there < size ? there : size;
    return memcmp(splitter_window_at(&s->window, place), mark, length) == 0 ? length : 0;
}

static bool may_begin(const splitter *s, const opening *m)
{
    return (m->thinks || !s->inside) && (s->tools || !m->calls) && !(m->start && s->said);
}

/* The first pattern, from first on, that is found at place; -1: none; *hold: one before it may be, which depends on
 * what comes. */
static int find(const splitter *s, size_t place, int first, bool last, bool *hold)
{
    *hold = false;
    if (!s->first[(unsigned char)*splitter_window_at(&s->window, place)])
        return -1;
    for (int i = first; i < s->count; i++) {
        const opening *m = &s->openings[i];
        size_t same = may_begin(s, m) ? agrees(s, place, m->text, m->size) : 0;
        if (!same)
            continue;
        if (same == m->size)
            return i;
        if (!last) {
            *hold = true;
            return -1;
        }
    }
    return -1;
}

static void begin_match(splitter *s, int pattern)
{
    s->pattern = pattern;
    s->place = s->from;
    s->stage = IN_MATCH;
    splitter_match_begin(&s->match, s->family->patterns[pattern]);
}

/* false: the rest waits for more. */
static bool run_content(splitter *s, bool last)
{
    size_t end = splitter_window_end(&s->window);
    for (; s->place < end; s->place++) {
        bool hold;
        int pattern = find(s, s->place, 0, last, &hold);
        if (hold)
            break;
        if (pattern >= 0) {
            say_content(s, s->place);
            begin_match(s, pattern);
            return true;
        }
        char c = *splitter_window_at(&s->window, s->place);
        if (splitter_space(c))
            continue;
        if (s->inside) {
            begin_thought(s, s->place);
            return true;
        }
        s->said = true;
    }
    say_content(s, s->place);
    return false;
}

static bool run_thought(splitter *s, bool last)
{
    size_t end = splitter_window_end(&s->window);
    for (; s->place < end; s->place++)
        for (int i = 0; i < SPLITTER_CLOSES && s->family->closes[i]; i++) {
            bool keep = splitter_family_is(s->family->closes[i], KEEP);
            const char *mark = s->family->closes[i] + keep;
            size_t size = strlen(mark), same = agrees(s, s->place, mark, size);
            if (!same || (same < size && last))
                continue;
            say_thought(s, s->place);
            if (same < size)
                return false;
            s->place += keep ? 0 : size;
            end_thought(s, s->place);
            return true;
        }
    say_thought(s, s->place);
    return false;
}

/* Not the first byte of a character. */
static bool is_within(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* What was held is none: the next pattern that begins alike is tried, else its mark is content, and the rest is looked
 * through for another, which is given up where much was looked through in vain. */
static void run_failed(splitter *s, bool last)
{
    enum { FREELY = 1 << 16, TIMES = 4 };
    size_t held = s->place - s->from, mark_size = 0;
    s->looked += held;
    bool hold, enough = s->looked > FREELY + TIMES * s->place;
    if (!s->match.some) {
        mark_size = s->openings[s->pattern].size;
        int other = enough ? -1 : find(s, s->from, s->pattern + 1, last, &hold);
        if (other >= 0) {
            begin_match(s, other);
            return;
        }
    }
    s->stage = IN_CONTENT;
    if (!enough)
        s->place = s->from + mark_size;
    while (s->place < splitter_window_end(&s->window) && is_within(*splitter_window_at(&s->window, s->place)))
        s->place++;
    say_content(s, s->place);
}

/* false: the rest waits for more. */
static bool run_match(splitter *s, bool last, bool cut)
{
    splitter_match_result result = splitter_match_run(&s->match, &s->window, &s->place);
    if (result == MATCH_MORE) {
        if (!last)
            return false;
        result = MATCH_FAILED;
        if (splitter_match_may_end(&s->match, cut)) {
            result = MATCH_DONE;
            s->trim = true;
        }
    }
    switch (result) {
    case MATCH_TELL:
        tell(s);
        break;
    case MATCH_DONE:
        tell(s);
        s->stage = IN_CONTENT;
        break;
    case MATCH_THINK:
        begin_thought(s, s->place);
        break;
    case MATCH_MEMORY:
        s->memory = false;
        break;
    default:
        run_failed(s, last);
    }
    return true;
}

static bool run(splitter *s, bool last, bool cut)
{
    bool more = true;
    while (more && s->memory)
        more = s->stage == IN_MATCH     ? run_match(s, last, cut)
               : s->stage == IN_THOUGHT ? run_thought(s, last)
                                        : run_content(s, last);
    size_t out = s->from - s->window.base;
    if (out > s->window.text.length / 2) {
        splitter_text_drop(&s->window.text, out);
        s->window.base += out;
    }
    return s->memory;
}

bool splitter_push(splitter *s, const char *text, size_t length, bool special)
{
    if (!s->memory || !splitter_text_add(&s->window.text, text,
                                         special && !splitter_family_knows(s->family, text, length) ? 0 : length))
        return false;
    return run(s, false, false);
}

bool splitter_end(splitter *s, bool cut)
{
    bool ok = s->memory && run(s, true, cut);
    /* White space behind content is its own; that of a thought, and behind one or a call, is nobody's. */
    if (s->stage == IN_CONTENT || !s->reasoning)
        send_space(s, SPLIT_CONTENT, ok && !s->trim);
    return ok;
}
