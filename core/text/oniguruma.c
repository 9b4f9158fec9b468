/* Where Oniguruma's Ruby syntax and PCRE2's Perl syntax differ, the pattern is translated, or refused rather than read
 * wrongly. Sets in brackets, which Ruby nests and intersects, become alternatives and assertions. */
#include "text/oniguruma.h"

#include <stdio.h>
#include <string.h>

/* Sets within sets. */
#define DEEPEST 50

typedef struct translation {
    const char *in;
    size_t length, at;
    buffer *out;
    const char *refused;
    bool memory;
    int depth;
} translation;

/* A set of characters on its way: plain items for one pair of brackets, and what must stand beside them. */
typedef struct set {
    buffer items, others; /* others: expressions of one character, each with '|' in front        */
} set;

static void put(translation *t, buffer *out, const char *text, size_t length)
{
    if (!buffer_add(out, text, length))
        t->memory = false;
}

static void put_string(translation *t, buffer *out, const char *text)
{
    put(t, out, text, strlen(text));
}

static void put_buffer(translation *t, buffer *out, const buffer *text)
{
    if (text->size)
        put(t, out, text->data, text->size);
}

static char peek(const translation *t, size_t ahead)
{
    return t->at + ahead < t->length ? t->in[t->at + ahead] : '\0';
}

/* Where what began at from ends with close; SIZE_MAX: it does not. */
static size_t find_close(const translation *t, size_t from, char close)
{
    const char *found = from < t->length ? memchr(t->in + from, close, t->length - from) : NULL;
    return found ? (size_t)(found - t->in) : SIZE_MAX;
}

/* ---- escapes ------------------------------------------------------------------------------------ */

/* \p{...}, \P{...}, or a class with a letter of its own; the text moves behind it. */
static bool read_class(translation *t, bool outside, oniguruma_class *class)
{
    char c = peek(t, 1);
    size_t close = (c == 'p' || c == 'P') && peek(t, 2) == '{' ? find_close(t, t->at, '}') : SIZE_MAX;
    bool found;
    if (close != SIZE_MAX) {
        size_t start = t->at + 3;
        found = oniguruma_class_property(t->in + start, close - start, c == 'P', outside, class, &t->memory);
    } else {
        found = oniguruma_class_escape(c, outside, class, &t->memory);
    }
    if (found)
        t->at = close != SIZE_MAX ? close + 1 : t->at + 2;
    return found;
}

/* \x41, which beyond ASCII would be a byte; \x{...} is copied. */
static void put_hex(translation *t, buffer *out)
{
    size_t close = peek(t, 2) == '{' ? find_close(t, t->at, '}') : SIZE_MAX;
    size_t used = 2;
    if (close != SIZE_MAX)
        used = close + 1 - t->at;
    else if (strchr("89abcdefABCDEF", peek(t, 2)) && peek(t, 2) && strchr("0123456789abcdefABCDEF", peek(t, 3)) &&
             peek(t, 3))
        t->refused = "a byte beyond ASCII (\\xHH)";
    put(t, out, t->in + t->at, used);
    t->at += used;
}

static void put_unicode(translation *t, buffer *out)
{
    char hex[12];
    if (t->length - t->at < 6) {
        t->refused = "an unfinished \\u";
        return;
    }
    snprintf(hex, sizeof hex, "\\x{%.4s}", t->in + t->at + 2);
    put_string(t, out, hex);
    t->at += 6;
}

/* An escape that is no class, within brackets or not. */
static void put_escape(translation *t, buffer *out)
{
    char c = peek(t, 1);
    if (c == 'x') {
        put_hex(t, out);
    } else if (c == 'u') {
        put_unicode(t, out);
    } else if (c == 'v') {
        put_string(t, out, "\\x{b}");
        t->at += 2;
    } else if (c && strchr("EQUVLlpP", c)) { /* means nothing there, but something to PCRE2 */
        put(t, out, &c, 1);
        t->at += 2;
    } else {
        size_t used = c ? 2 : 1;
        put(t, out, t->in + t->at, used);
        t->at += used;
    }
}

/* The edge of a word, whose characters PCRE2 has otherwise. */
static void put_edge(translation *t, bool edge)
{
    oniguruma_class word = {.negated = false};
    static const char *const form[2][5] = {{"(?:(?<=[", "])(?=[", "])|(?<![", "])(?![", "]))"},
                                           {"(?:(?<=[", "])(?![", "])|(?<![", "])(?=[", "]))"}};
    if (!oniguruma_class_escape('w', true, &word, &t->memory))
        t->memory = false;
    for (int i = 0; i < 5; i++) {
        put_string(t, t->out, form[edge][i]);
        if (i < 4)
            put_buffer(t, t->out, &word.items);
    }
    buffer_free(&word.items);
    t->at += 2;
}

static void put_brackets(translation *t, buffer *out, const buffer *items, bool negated)
{
    put_string(t, out, negated ? "[^" : "[");
    put_buffer(t, out, items);
    put_string(t, out, "]");
}

static void translate_escape(translation *t)
{
    oniguruma_class class = {.negated = false};
    char c = peek(t, 1);
    if (c == 'b' || c == 'B') {
        put_edge(t, c == 'b');
    } else if (c == 'O') {
        put_string(t, t->out, "(?s:.)");
        t->at += 2;
    } else if (read_class(t, true, &class)) {
        put_brackets(t, t->out, &class.items, class.negated);
    } else {
        put_escape(t, t->out);
    }
    buffer_free(&class.items);
}

/* ---- sets ----------------------------------------------------------------------------------------- */

static void add_class(translation *t, set *s, const oniguruma_class *class)
{
    if (class->negated) {
        put_string(t, &s->others, "|");
        put_brackets(t, &s->others, &class->items, true);
    } else {
        put_buffer(t, &s->items, &class->items);
    }
}

/* [:alpha:] and the like. False: none begins here. */
static bool add_posix(translation *t, set *s)
{
    size_t close = find_close(t, t->at + 2, ':');
    oniguruma_class class = {.negated = false};
    bool found = peek(t, 1) == ':' && close != SIZE_MAX && close + 1 < t->length && t->in[close + 1] == ']' &&
                 oniguruma_class_posix(t->in + t->at + 2, close - t->at - 2, &class, &t->memory);
    if (found) {
        add_class(t, s, &class);
        t->at = close + 2;
    }
    buffer_free(&class.items);
    return found;
}

static void translate_set(translation *t, buffer *out);

static void add_item(translation *t, set *s)
{
    char c = peek(t, 0);
    oniguruma_class class = {.negated = false};
    if (c == '\\' && read_class(t, false, &class)) {
        add_class(t, s, &class);
    } else if (c == '\\') {
        put_escape(t, &s->items);
    } else if (c == '[' && t->in[t->at - 1] == '-') {
        t->refused = "a range that ends in a set";
    } else if (c == '[' && peek(t, 1) == ':') {
        if (!add_posix(t, s))
            t->refused = "an unknown class in [: :]";
    } else if (c == '[') {
        put_string(t, &s->others, "|");
        translate_set(t, &s->others);
    } else {
        put(t, &s->items, &c, 1);
        t->at++;
    }
    buffer_free(&class.items);
}

/* One operand of &&, as an expression of one character. */
static void put_operand(translation *t, buffer *out, const set *s)
{
    if (!s->others.size && s->items.size) {
        put_brackets(t, out, &s->items, false);
        return;
    }
    put_string(t, out, "(?:");
    if (s->items.size) {
        put_brackets(t, out, &s->items, false);
        put_buffer(t, out, &s->others);
    } else if (s->others.size) {
        put(t, out, s->others.data + 1, s->others.size - 1);
    } else {
        put_string(t, out, "(?!)"); /* nothing is in it */
    }
    put_string(t, out, ")");
}

/* What stands in brackets up to their end: the operands before the last as assertions in *before, the last in *s. */
static void read_operands(translation *t, buffer *before, set *s)
{
    for (size_t first = t->at; t->at < t->length && !t->refused && t->memory;) {
        char c = peek(t, 0);
        if (c == ']' && t->at != first)
            return;
        if (c == '&' && peek(t, 1) == '&') {
            put_string(t, before, "(?=");
            put_operand(t, before, s);
            put_string(t, before, ")");
            buffer_free(&s->items);
            buffer_free(&s->others);
            *s = (set){{0}, {0}};
            t->at += 2;
            first = SIZE_MAX;
        } else if (c == ']') {
            put_string(t, &s->items, "\\]");
            t->at++;
        } else {
            add_item(t, s);
        }
    }
    if (!t->refused && t->memory)
        t->refused = "a set without its end";
}

/* A set in brackets. */
static void translate_set(translation *t, buffer *out)
{
    bool negated = peek(t, 1) == '^';
    buffer before = {0};
    set last = {{0}, {0}};
    if (++t->depth > DEEPEST)
        t->refused = "sets within sets too deep";
    t->at += 1 + negated;
    read_operands(t, &before, &last);
    t->at++;
    t->depth--;
    if (!before.size && !last.others.size && last.items.size) {
        put_brackets(t, out, &last.items, negated);
    } else {
        put_string(t, out, negated ? "(?:(?!" : "(?:");
        put_buffer(t, out, &before);
        put_operand(t, out, &last);
        put_string(t, out, negated ? ")(?s:.))" : ")");
    }
    buffer_free(&before);
    buffer_free(&last.items);
    buffer_free(&last.others);
}

/* ---- the rest --------------------------------------------------------------------------------------- */

/* (?# ... ): what stands there means nothing. */
static void skip_comment(translation *t)
{
    size_t close = find_close(t, t->at, ')');
    if (close == SIZE_MAX)
        t->refused = "a comment without its end";
    else
        t->at = close + 1;
}

/* Options such as (?i:...): Ruby's m is Perl's s. */
static void translate_options(translation *t)
{
    put_string(t, t->out, "(?");
    t->at += 2;
    for (char c = peek(t, 0); c == 'i' || c == 'm' || c == 'x' || c == '-'; c = peek(t, 0)) {
        put(t, t->out, c == 'm' ? "s" : &c, 1);
        t->at++;
    }
}

static void translate_interval(translation *t)
{
    size_t n = 1;
    while (strchr("0123456789,", peek(t, n)) && peek(t, n))
        n++;
    /* Ruby reads {1,3}+ as a repeated interval, Perl as one that never gives back. */
    if (n > 1 && peek(t, n) == '}' && peek(t, n + 1) == '+')
        t->refused = "an interval followed by +";
    /* {,3} has no least number only there. */
    bool open = n > 2 && peek(t, 1) == ',' && peek(t, n) == '}';
    put_string(t, t->out, open ? "{0" : "{");
    t->at++;
}

bool oniguruma_translate(const char *pattern, size_t length, buffer *out, const char **refused)
{
    translation t = {.in = pattern, .length = length, .out = out, .memory = true};
    while (t.at < length && !t.refused && t.memory) {
        char c = peek(&t, 0);
        if (c == '\\') {
            translate_escape(&t);
        } else if (c == '[') {
            translate_set(&t, out);
        } else if (c == '(' && peek(&t, 1) == '?' && peek(&t, 2) == '#') {
            skip_comment(&t);
        } else if (c == '(' && peek(&t, 1) == '?') {
            translate_options(&t);
        } else if (c == '{') {
            translate_interval(&t);
        } else {
            put(&t, out, &c, 1);
            t.at++;
        }
    }
    *refused = t.refused;
    return t.memory;
}
